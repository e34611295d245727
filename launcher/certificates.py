"""Certificates for JAX's coordination service: one authority a cluster, one certificate an attempt and rank.

The authority's key lies with the supervisor. A rank's key is made by its agent and never leaves its host: what travels
is a request, which proves that its sender has the key, and a certificate, which is no secret. A certificate names the
attempt in its URI, and ranks accept only their own attempt's: one of another attempt, or of another job, is refused.
"""

import dataclasses
import datetime
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650  # it ends with its cluster, whose folder `down` removes
# It is worth nothing after its attempt, so this bounds the longest attempt only: an older one, whose connections last,
# could not make a new one after a break of the network, and would be started again.
RANK_DAYS = 60
CLOCK_SKEW = datetime.timedelta(days=1)  # hosts' clocks may be behind the head's


class CertificateError(RuntimeError):
    """A request or the authority's files cannot be used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankCertificate:
    """What a rank shows its peers, and what it asks of them. Nothing of it is secret.

    Attributes:
        chain: its certificate, PEM.
        authority: whose signature its peers' certificates need, PEM.
        peer_uri_prefix: with which a URI of its peers' certificates begins; it names the attempt.
    """

    chain: str
    authority: str
    peer_uri_prefix: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankFiles:
    """Where a rank finds its key and certificates: paths."""

    key: str
    chain: str
    authority: str
    peer_uri_prefix: str


class Authority:
    """Signs what the ranks of one cluster show each other. Make it with `open`.

    Args:
        key: private.
        certificate: of that key, signed by itself.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate):
        self._key = key
        self._certificate = certificate

    @classmethod
    def open(cls, folder: Path, cluster_id: str) -> "Authority":
        """The cluster's authority, made by the first who asks; a supervisor that was started again finds it.

        Args:
            folder: the cluster's, on the head. The key is `authority.key` there, readable by its owner alone.
            cluster_id: unique per `up`.

        Raises:
            CertificateError: what is there cannot be read as a key and a certificate.
        """
        key_file, certificate_file = folder / "authority.key", folder / "authority.pem"
        if not certificate_file.exists():  # written last
            key = ec.generate_private_key(ec.SECP256R1())
            _write_private(key_file, _key_pem(key))
            _write_private(certificate_file, _pem(_own_certificate(key, cluster_id)))
        try:
            found = serialization.load_pem_private_key(key_file.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        except (OSError, ValueError) as error:
            raise CertificateError(f"cannot use the cluster's certificate authority in {folder}: {error}") from error
        if not isinstance(found, ec.EllipticCurvePrivateKey) or found.public_key() != certificate.public_key():
            raise CertificateError(f"the key and the certificate of the authority in {folder} do not belong together")
        return cls(found, certificate)

    def issue(self, request: bytes, attempt_id: str, rank: int) -> RankCertificate:
        """Signs the key of one rank of one attempt.

        Args:
            request: of the agent, see `new_request`; only its key counts, whom it is for is said here.
            attempt_id: as in `RankTask`.
            rank: its number.

        Raises:
            CertificateError: the request is none, or not by the owner of its key.
        """
        try:
            asked = x509.load_pem_x509_csr(request)
            key = asked.public_key()
            if not asked.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError("its signature is not by the owner of an elliptic-curve key")
        except (ValueError, InvalidSignature) as error:
            raise CertificateError(f"rank {rank} of {attempt_id}: no usable certificate request: {error}") from error
        prefix = f"spmd-launch://{attempt_id}/"
        uri = x509.UniformResourceIdentifier(f"{prefix}rank/{rank}")
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(f"rank {rank}", self._certificate.subject, RANK_DAYS)
            .public_key(key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([uri]), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return RankCertificate(
            chain=_pem(certificate).decode(), authority=_pem(self._certificate).decode(), peer_uri_prefix=prefix
        )


def new_request() -> tuple[bytes, bytes]:
    """A new key, and the request that asks the authority to sign it; both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_name("rank")).sign(key, hashes.SHA256())
    return _key_pem(key), request.public_bytes(serialization.Encoding.PEM)


def write_files(folder: Path, key: bytes, certificate: RankCertificate) -> RankFiles:
    """Writes what a rank needs into `folder`, readable by its owner alone.

    Args:
        folder: made here, with those above it.
        key: of `new_request`.
        certificate: of `Authority.issue`.
    """
    folder.mkdir(mode=0o700, parents=True)
    files = RankFiles(
        key=str(folder / "key.pem"),
        chain=str(folder / "chain.pem"),
        authority=str(folder / "authority.pem"),
        peer_uri_prefix=certificate.peer_uri_prefix,
    )
    _write_private(Path(files.key), key)
    _write_private(Path(files.chain), certificate.chain.encode())
    _write_private(Path(files.authority), certificate.authority.encode())
    return files


def _own_certificate(key: ec.EllipticCurvePrivateKey, cluster_id: str) -> x509.Certificate:
    name = _name(f"spmd-launch {cluster_id}"[:64])  # X.509 allows no more
    return (
        _builder(name, name, AUTHORITY_DAYS)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )


def _builder(subject: x509.Name | str, issuer: x509.Name, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject) if isinstance(subject, str) else subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_private(path: Path, content: bytes) -> None:
    """Replaces the file in one step; nobody else can read it at any moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)
