"""Certificates that real TLS handshakes accept, for the names asked for and no others."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509

from tandem.wire import tls

DAY_MS = 86_400_000
NOW_MS = time.time_ns() // 1_000_000


def handshake(files: tls.CertificateFiles, name: str, context: ssl.SSLContext | None = None) -> str | None:
    """A real handshake over a real socket pair; the protocol version, or the client's complaint raised."""
    ours, theirs = socket.socketpair()
    server = tls.server_context(files.certificate, files.private_key)

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with (context or tls.client_context(files.ca)).wrap_socket(ours, server_hostname=name) as wrapped:
            return wrapped.version()
    finally:
        ours.close()
        thread.join(10)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "bus.example.org", "10.1.2.3"])
def test_client_that_trusts_the_authority_accepts_every_name_asked_for(tmp_path: Path, name: str) -> None:
    files = tls.ensure_certificates(tmp_path / "tls", ["bus.example.org", "10.1.2.3"], NOW_MS)
    assert handshake(files, name) == "TLSv1.3"


def test_strict_verification_finds_nothing_wrong(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path, [], NOW_MS)
    context = tls.client_context(files.ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert handshake(files, "localhost", context) == "TLSv1.3"


def test_client_refuses_a_name_that_is_not_in_the_certificate(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path, ["bus.example.org"], NOW_MS)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(files, "other.example.org")


def test_client_that_does_not_trust_the_authority_refuses(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path / "a", [], NOW_MS)
    other = tls.ensure_certificates(tmp_path / "b", [], NOW_MS)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "localhost", tls.client_context(other.ca))


def test_old_protocol_versions_are_not_offered(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path, [], NOW_MS)
    assert tls.server_context(files.certificate, files.private_key).minimum_version == ssl.TLSVersion.TLSv1_2
    assert tls.client_context(files.ca).minimum_version == ssl.TLSVersion.TLSv1_2


def test_private_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    files = tls.ensure_certificates(directory, [], NOW_MS)
    assert {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()} == {
        "ca.pem": 0o644,
        "ca.key": 0o600,
        "server.pem": 0o644,
        "server.key": 0o600,
    }
    files.private_key.chmod(0o644)
    tls.ensure_certificates(directory, [], NOW_MS)
    assert files.private_key.stat().st_mode & 0o777 == 0o600


def test_second_start_changes_nothing(tmp_path: Path) -> None:
    tls.ensure_certificates(tmp_path, ["bus.example.org"], NOW_MS)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    tls.ensure_certificates(tmp_path, ["BUS.example.org."], NOW_MS + 300 * DAY_MS)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_changed_names_renew_the_certificate_under_the_same_authority(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path, ["old.example.org"], NOW_MS)
    trusted = files.ca.read_bytes()
    tls.ensure_certificates(tmp_path, ["new.example.org"], NOW_MS)
    assert files.ca.read_bytes() == trusted
    assert handshake(files, "new.example.org") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "old.example.org")


def test_certificate_near_its_end_is_renewed_and_the_authority_kept(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path, [], NOW_MS)
    first, trusted = certificate(files.certificate), files.ca.read_bytes()
    tls.ensure_certificates(tmp_path, [], NOW_MS + 380 * DAY_MS)
    second = certificate(files.certificate)
    assert second.not_valid_after_utc > first.not_valid_after_utc
    assert files.ca.read_bytes() == trusted


def test_authority_is_renewed_before_it_would_end_within_a_certificate_s_life(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path, [], NOW_MS)
    first = certificate(files.ca)
    tls.ensure_certificates(tmp_path, [], NOW_MS + 3300 * DAY_MS)
    second = certificate(files.ca)
    assert second.subject != first.subject
    certificate(files.certificate).verify_directly_issued_by(second)


def test_key_and_certificate_torn_apart_by_a_crash_are_made_anew(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path / "a", [], NOW_MS)
    other = tls.ensure_certificates(tmp_path / "b", [], NOW_MS)
    files.private_key.write_bytes(other.private_key.read_bytes())
    with pytest.raises(tls.TlsError, match="cannot be used together"):
        tls.server_context(files.certificate, files.private_key)
    tls.ensure_certificates(tmp_path / "a", [], NOW_MS)
    assert handshake(files, "localhost") == "TLSv1.3"


def test_certificate_of_another_authority_is_replaced(tmp_path: Path) -> None:
    files = tls.ensure_certificates(tmp_path / "a", [], NOW_MS)
    other = tls.ensure_certificates(tmp_path / "b", [], NOW_MS)
    files.private_key.write_bytes(other.private_key.read_bytes())
    files.certificate.write_bytes(other.certificate.read_bytes())
    tls.ensure_certificates(tmp_path / "a", [], NOW_MS)
    assert handshake(files, "localhost") == "TLSv1.3"


def test_missing_authority_key_stops_a_renewal_with_what_to_do(tmp_path: Path) -> None:
    tls.ensure_certificates(tmp_path, [], NOW_MS)
    (tmp_path / "ca.key").unlink()
    tls.ensure_certificates(tmp_path, [], NOW_MS)  # nothing to renew: not needed
    with pytest.raises(tls.TlsError, match=r"ca\.key is missing.*delete .*ca\.pem"):
        tls.ensure_certificates(tmp_path, ["new.example.org"], NOW_MS)


@pytest.mark.parametrize("name", ["ca.pem", "server.pem", "server.key", "ca.key"])
def test_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    tls.ensure_certificates(tmp_path, [], NOW_MS)
    (tmp_path / name).write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    with pytest.raises(tls.TlsError, match=rf"{name} is damaged"):
        tls.ensure_certificates(tmp_path, [], NOW_MS)


def test_own_certificate_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(tls.TlsError, match=r"mine\.pem does not exist"):
        tls.server_context(tmp_path / "mine.pem", tmp_path / "mine.key")


def test_own_key_with_a_password_is_refused_instead_of_asking(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    files = tls.ensure_certificates(tmp_path, [], NOW_MS)
    key = serialization.load_pem_private_key(files.private_key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    encryption = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    with pytest.raises(tls.TlsError, match="protected by a password"):
        tls.server_context(files.certificate, locked)


@pytest.mark.slow
def test_name_that_no_certificate_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tls.TlsError, match="cannot be put into a certificate"):
        tls.ensure_certificates(tmp_path, ["a" * 80 + ".example.org"], NOW_MS)
