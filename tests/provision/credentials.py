"""What a client of google's needs to be let in, made for a test: nothing of it is worth anything anywhere else."""

import datetime
import ipaddress
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID


def make_certificate(address: str, file: Path) -> bytes:
    """Writes a certificate for an IP address, signed by itself, and returns its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a Cloud TPU of tests")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return _pem(key)


def write_service_account(file: Path) -> str:
    """Writes the key file of a service account; returns a line of its private key, to look for where it must not be."""
    key = _pem(rsa.generate_private_key(65537, 2048)).decode()
    account = {
        "type": "service_account",
        "project_id": "test-project",
        "private_key_id": "0" * 40,
        "private_key": key,
        "client_email": "tester@test-project.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": "https://127.0.0.1:1/token",
    }
    file.write_text(json.dumps(account))
    file.chmod(0o600)
    return key.splitlines()[5]


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
