"""The keys of a federation: a certificate authority of its own, the server's certificate, one key per site."""

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpg.errors import ConfigError
from fedpg.storage import StorageError, write_whole

DAYS = 3650
"""The server's certificate lasts ten years: it is the federation's own, and nobody else's trust hangs on it."""
CA_DAYS = 3 * DAYS
"""Its authority lasts longer than what it signs: a server's certificate can be renewed, and no site needs anything."""
WARNING = 30
"""Days before a certificate expires from which on everybody is told."""


def write_authority(folder: Path, hosts: list[str]) -> None:
    """ca.crt and ca.key, and the server's certificate and key for these names and addresses."""
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedpg federation CA")])
    only_sign = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = (
        _certificate(ca_name, ca_name, ca_key.public_key(), _in_days(CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(only_sign, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_whole(folder / "ca.crt", ca.public_bytes(serialization.Encoding.PEM))
    write_secret(folder / "ca.key", _pem(ca_key))
    write_secret(folder / "server.key", _pem(server_key))
    write_whole(folder / "server.crt", _server_certificate(ca, ca_key, server_key.public_key(), hosts, DAYS))


def renew_server(folder: Path, hosts: list[str], authority: Path | None = None, days: float = DAYS) -> None:
    """A new server.crt for the key and the names that the server has, signed by ca.key: one file, replaced whole."""
    path = authority or folder / "ca.key"
    ca = read_certificate(folder / "ca.crt")
    try:
        ca_key = serialization.load_pem_private_key(path.read_bytes(), None)
        server_key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
    except FileNotFoundError as error:
        raise StorageError(
            f"there is no {error.filename}: the key of the authority signs the new certificate. If it was put away, as "
            "it should be, bring it, and give its place with --ca-key"
        ) from None
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StorageError(f"{path} or {folder / 'server.key'} is no private key: {error}") from error
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey) or ca_key.public_key() != ca.public_key():
        raise StorageError(f"{path} is not the key of {folder / 'ca.crt'}: sites would not trust what it signs")
    if days_left(folder / "ca.crt") <= 0:
        raise StorageError(f"{folder / 'ca.crt'} has expired: make the federation anew with fedpg federation create")
    write_whole(folder / "server.crt", _server_certificate(ca, ca_key, server_key.public_key(), hosts, days))


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate from its file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise StorageError(f"there is no certificate at {path}") from None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} is no certificate: {error}") from error


def days_left(path: Path) -> float:
    """Days until a certificate expires; negative if it has."""
    left = read_certificate(path).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return left / datetime.timedelta(days=1)


def about_expiry(path: Path, mend: str) -> str:
    """A warning if a certificate expires soon, with what mends that; nothing if it does not."""
    left, when = days_left(path), f"{read_certificate(path).not_valid_after_utc:%Y-%m-%d}"
    if left > WARNING:
        return ""
    return f"{path} {'expired on' if left <= 0 else f'expires in {max(0, int(left))} days, on'} {when}: {mend}"


def write_site_key(path: Path) -> None:
    """A new private key of a site, in the form that Flower's own tools read as well."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def public_half(private: Path) -> bytes:
    """The public key of a site, as a line of a file."""
    key = read_site_key(private).public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"


def read_site_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A site's private key, if nobody else on this machine can read it."""
    if os.name == "posix" and path.exists() and path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} can be read by others on this machine: chmod 600 {path}")
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise StorageError(f"there is no key at {path}: is this the folder of a site?") from None
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise StorageError(f"{path} is no private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise StorageError(f"{path} is a key of another kind: make the federation again with fedpg federation create")
    return key


def read_public_key(path: Path) -> bytes:
    """A site's public key, as Flower compares it."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except FileNotFoundError:
        raise StorageError(
            f"there is no public key at {path}: if {path.stem} is to leave, take it off with fedpg federation "
            "remove-site; if not, give it a new key with fedpg federation renew --site"
        ) from None
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise StorageError(f"{path} is no public key: {error}") from error
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_secret(path: Path, data: bytes) -> None:
    """A file that only its owner can read, from its first byte on."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _server_certificate(
    ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, key: Any, hosts: list[str], days: float
) -> bytes:
    """Of the server's public key, for these hosts; it ends with its authority at the latest."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    made = (
        _certificate(name, ca.subject, key, min(_in_days(days), ca.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name_of(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def _certificate(subject: x509.Name, issuer: x509.Name, key: Any, end: datetime.datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_in_days(-2))  # the sites' clocks may be behind
        .not_valid_after(end)
    )


def _in_days(days: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
