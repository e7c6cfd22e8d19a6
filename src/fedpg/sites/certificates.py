"""The keys of a federation: a certificate authority of its own, the server's certificate, one key per site."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpg.errors import ConfigError
from fedpg.storage import StorageError, write_whole

DAYS = 3650
"""A federation's certificates last ten years: they are its own, and nobody else's trust hangs on them."""


def write_authority(folder: Path, hosts: list[str]) -> None:
    """ca.crt and ca.key, and the server's certificate and key for these names and addresses."""
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedpg federation CA")])
    only_sign = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = (
        _certificate(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(only_sign, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    server = (
        _certificate(name, ca_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name_of(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_whole(folder / "ca.crt", ca.public_bytes(serialization.Encoding.PEM))
    write_whole(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM))
    write_secret(folder / "ca.key", _pem(ca_key))
    write_secret(folder / "server.key", _pem(server_key))


def write_site_key(private: Path, public: Path) -> None:
    """A new key of a site, both halves in the form that Flower's own tools read as well."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    write_secret(private, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    ssh = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_whole(public, ssh + b"\n")


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
        raise StorageError(f"there is no public key at {path}") from None
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


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # the sites' clocks may be behind
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
