"""Certificates for TLS: a local authority and a server certificate made on first start, or the operator's own.

Clients trust `ca.pem` once; the server certificate is renewed under it when it nears its end or its names change.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem.wire.files import write_whole

if TYPE_CHECKING:  # heavy: loaded by the functions that make or read certificates
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ALWAYS_NAMED: Final = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS: Final = 3650
_SERVER_DAYS: Final = 397
"""Longer ones are refused by some clients."""
_RENEW_DAYS: Final = 30
_AUTHORITY_RENEW_DAYS: Final = _SERVER_DAYS + _RENEW_DAYS
"""The authority must outlive every certificate it signs."""


class TlsError(Exception):
    """A certificate or key cannot be used. The text names the file and says what to do."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """`certificate` holds the chain; `ca` is what clients must trust."""

    ca: Path
    certificate: Path
    private_key: Path


def ensure_certificates(directory: Path, names: Iterable[str], now: int) -> CertificateFiles:
    """The files in `directory`, made or renewed where needed: covering `names` and the loopback, and good for a month at least."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = CertificateFiles(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    wanted = _wanted(names)
    at = datetime.fromtimestamp(now / 1000, UTC)
    authority = _load_certificate(files.ca)
    authority_key = _load_key(directory / "ca.key")
    if authority is None or _ends_within(authority, at, _AUTHORITY_RENEW_DAYS):
        authority, authority_key = _make_authority(at)
        write_whole(directory / "ca.key", _key_bytes(authority_key), 0o600)
        write_whole(files.ca, _certificate_bytes(authority), 0o644)
    elif _server_is_good(files, authority, wanted, at):
        _tighten(files.private_key, directory / "ca.key")
        return files
    if authority_key is None or not _belongs(authority, authority_key):
        raise TlsError(
            f"{directory / 'ca.key'} is missing or does not belong to {files.ca}, so the server certificate cannot be renewed: "
            f"put it back, or delete {files.ca} to get a new authority that clients must trust anew"
        )
    server, server_key = _make_server(authority, authority_key, wanted, at)
    write_whole(files.private_key, _key_bytes(server_key), 0o600)
    write_whole(files.certificate, _certificate_bytes(server) + _certificate_bytes(authority), 0o644)
    _tighten(files.private_key, directory / "ca.key")
    return files


def nears_end(certificate: Path, now: int) -> bool:
    """Whether `ensure_certificates` would renew it for that."""
    found = _load_certificate(certificate)
    return found is not None and _ends_within(found, datetime.fromtimestamp(now / 1000, UTC), _RENEW_DAYS)


def days_left(certificate: Path, now: int) -> float | None:
    """Of one that was given to us; nothing if it cannot be read."""
    found = _load_certificate(certificate)
    return None if found is None else (found.not_valid_after_utc - datetime.fromtimestamp(now / 1000, UTC)) / timedelta(days=1)


def server_context(certificate: Path, private_key: Path) -> ssl.SSLContext:
    """For listeners. Raises TlsError when the files cannot be read or do not belong together."""
    context = _listening_context()
    for path in (certificate, private_key):
        if not path.is_file():
            raise TlsError(f"{path} does not exist or is not a file")
    try:
        context.load_cert_chain(certificate, private_key, password=_refuse_to_ask)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise TlsError(f"{certificate} and {private_key} cannot be used together: {error}") from error
    return context


def changing_context(current: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """For a listener that keeps its context: each handshake, with a name or without, is done with the current one."""

    def choose(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, own: object) -> None:
        connection.context = current()

    context = _listening_context()
    context.set_servername_callback(choose)
    return context


def client_context(ca: Path | None = None) -> ssl.SSLContext:
    """For our own clients: verifies the host name, against `ca` or the system's authorities."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise TlsError(f"{ca} cannot be read as a file of trusted certificates: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _listening_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _refuse_to_ask() -> str:
    raise ValueError("the private key is protected by a password; give one without")


def _wanted(names: Iterable[str]) -> tuple[str, ...]:
    """Every name once, addresses in canonical form, names in lower-case ASCII."""
    wanted: dict[str, None] = {}
    for name in (*ALWAYS_NAMED, *names):
        try:
            folded = str(ipaddress.ip_address(name.strip("[]")))
        except ValueError:
            try:
                folded = name.rstrip(".").encode("idna").decode("ascii").lower()
            except UnicodeError as error:
                raise TlsError(f"'{name}' cannot be put into a certificate: {error}") from error
        if folded:
            wanted[folded] = None
    return tuple(wanted)


def _load_certificate(path: Path) -> x509.Certificate | None:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise TlsError(f"{path} is damaged ({error}): restore it, or delete it to have a new one made") from error


def _load_key(path: Path) -> EllipticCurvePrivateKey | None:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise TlsError(f"{path} is damaged ({error}): restore it, or delete it and the certificate beside it") from error
    return key if isinstance(key, EllipticCurvePrivateKey) else None


def _server_is_good(files: CertificateFiles, authority: x509.Certificate, wanted: tuple[str, ...], at: datetime) -> bool:
    server = _load_certificate(files.certificate)
    key = _load_key(files.private_key)
    if server is None or key is None or not _belongs(server, key):
        return False
    return _signed_by(server, authority) and _names_of(server) == set(wanted) and not _ends_within(server, at, _RENEW_DAYS)


def _signed_by(server: x509.Certificate, authority: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        server.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _belongs(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> bool:
    """A crash between writing a key and its certificate leaves two that do not match."""
    return certificate.public_key() == key.public_key()


def _names_of(certificate: x509.Certificate) -> set[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*names.get_values_for_type(x509.DNSName), *(str(ip) for ip in names.get_values_for_type(x509.IPAddress))}


def _ends_within(certificate: x509.Certificate, at: datetime, days: int) -> bool:
    """Also true before it begins: a clock that was wrong when it was made."""
    return certificate.not_valid_after_utc <= at + timedelta(days=days) or certificate.not_valid_before_utc > at


def _make_authority(at: datetime) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities must never share a name: a client that trusts the old one would take the new one for it.
    subject = _name(f"Tandem local authority {x509.random_serial_number():x}"[:63])
    certificate = (
        _builder(subject, subject, key, at, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _make_server(
    authority: x509.Certificate, authority_key: EllipticCurvePrivateKey, wanted: tuple[str, ...], at: datetime
) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = []
    for name in wanted:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            names.append(x509.DNSName(name))
    certificate = (
        _builder(_name("Tandem broker"), authority.subject, key, at, _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return certificate, key


def _name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, at: datetime, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(days=1))  # clients' clocks may be behind ours
        .not_valid_after(at + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key_bytes(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _certificate_bytes(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _tighten(*private: Path) -> None:
    """Keys copied in from a backup may have come with a wider mode."""
    for path in private:
        if path.exists() and path.stat().st_mode & 0o077:
            path.chmod(0o600)
