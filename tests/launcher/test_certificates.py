"""One authority a cluster, one certificate an attempt and rank; and that Python's own TLS agrees with what they say."""

import base64
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from launcher.certificates import Authority, CertificateError, RankFiles, new_request, write_files

ATTEMPT = "job.1.18a"


def mode(path: Path | str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def rank_files(authority: Authority, folder: Path, attempt_id: str = ATTEMPT, rank: int = 0) -> RankFiles:
    key, request = new_request()
    return write_files(folder, key, authority.issue(request, attempt_id, rank))


def test_an_authority_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    first = Authority.open(tmp_path, "lab-1")
    again = Authority.open(tmp_path, "lab-1")
    _, request = new_request()
    assert again.issue(request, ATTEMPT, 0).authority == first.issue(request, ATTEMPT, 0).authority
    assert mode(tmp_path / "authority.key") == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["authority.key", "authority.pem"]


def test_an_authority_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    Authority.open(tmp_path, "lab-1")
    (tmp_path / "authority.pem").unlink()
    _, request = new_request()
    assert Authority.open(tmp_path, "lab-1").issue(request, ATTEMPT, 0)


@pytest.mark.parametrize("name", ["authority.key", "authority.pem"])
def test_a_damaged_authority_is_refused(tmp_path: Path, name: str) -> None:
    Authority.open(tmp_path, "lab-1")
    (tmp_path / name).write_text("not PEM")
    with pytest.raises(CertificateError, match="cannot use the cluster's certificate authority"):
        Authority.open(tmp_path, "lab-1")


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Authority.open(tmp_path / name, name)
    (tmp_path / "a" / "authority.key").write_bytes((tmp_path / "b" / "authority.key").read_bytes())
    with pytest.raises(CertificateError, match="do not belong together"):
        Authority.open(tmp_path / "a", "a")


def test_a_certificate_names_its_attempt_and_rank_and_signs_nothing(tmp_path: Path) -> None:
    files = rank_files(Authority.open(tmp_path, "lab-1"), tmp_path / "tls", rank=3)
    certificate = x509.load_pem_x509_certificate(Path(files.chain).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"{files.peer_uri_prefix}rank/3"]
    assert files.peer_uri_prefix == f"spmd-launch://{ATTEMPT}/"
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lifetime.days < 90


def test_what_a_rank_gets_is_private_on_disk(tmp_path: Path) -> None:
    files = rank_files(Authority.open(tmp_path, "lab-1"), tmp_path / "tls")
    assert mode(tmp_path / "tls") == 0o700
    assert [mode(path) for path in (files.key, files.chain, files.authority)] == [0o600] * 3
    assert "PRIVATE KEY" in Path(files.key).read_text()
    assert "PRIVATE KEY" not in Path(files.chain).read_text() + Path(files.authority).read_text()


@pytest.mark.parametrize("damage", [lambda text: b"garbage", lambda text: text.replace(b"BEGIN", b"BEGUN")])
def test_a_request_that_is_none_is_refused(tmp_path: Path, damage: object) -> None:
    _, request = new_request()
    with pytest.raises(CertificateError, match=f"rank 1 of {ATTEMPT}: no usable certificate request"):
        Authority.open(tmp_path, "lab-1").issue(damage(request), ATTEMPT, 1)  # type: ignore[operator]


def test_a_request_that_its_sender_did_not_sign_is_refused(tmp_path: Path) -> None:
    _, request = new_request()
    forged = bytearray(x509.load_pem_x509_csr(request).public_bytes(Encoding.DER))
    forged[-1] ^= 1  # the signature comes last
    text = (
        f"-----BEGIN CERTIFICATE REQUEST-----\n{base64.encodebytes(forged).decode()}-----END CERTIFICATE REQUEST-----\n"
    )
    with pytest.raises(CertificateError, match="no usable certificate request"):
        Authority.open(tmp_path, "lab-1").issue(text.encode(), ATTEMPT, 1)


def test_a_stranger_without_a_certificate_is_refused_and_a_peer_is_not(tmp_path: Path) -> None:
    """By Python's TLS; `tests/e2e/test_security.py` asks JAX's."""
    authority = Authority.open(tmp_path, "lab-1")
    server = rank_files(authority, tmp_path / "server", rank=0)
    peer = rank_files(authority, tmp_path / "peer", rank=1)
    (tmp_path / "elsewhere").mkdir()
    stranger = rank_files(Authority.open(tmp_path / "elsewhere", "lab-2"), tmp_path / "stranger")
    assert handshake(server, peer)
    assert not handshake(server, stranger)
    assert not handshake(server, None)


def handshake(server: RankFiles, client: RankFiles | None) -> bool:
    """Whether the server takes the client, who takes any server."""
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(server.chain, server.key)
    accepting.load_verify_locations(server.authority)
    accepting.verify_mode = ssl.CERT_REQUIRED
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    if client is not None:
        asking.load_cert_chain(client.chain, client.key)
    ours, theirs = socket.socketpair()

    def ask() -> None:
        try:
            with asking.wrap_socket(theirs) as connection:
                connection.recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        with accepting.wrap_socket(ours, server_side=True):
            return True
    except ssl.SSLError:
        return False
    finally:
        ours.close()
        thread.join(10)
        assert not thread.is_alive()
