"""TLS and a password for a node with the security plugin: our own authority, one user, no demo content."""

from __future__ import annotations

import datetime
import ipaddress
import json
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import extra
from ...files.atomic import replacing
from ...files.folders import below
from .java import Java
from .layout import run_tool

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, KeyUsage, Name

USER = "admin"
VALID_DAYS = 3650
LOOPBACKS = ("127.0.0.1", "::1")
PASSWORD_BYTES = 24
PASSWORD_VARIABLE = "HYBRIDR_NODE_PASSWORD"


class Credentials(NamedTuple):
    """Where a secured node's secrets lie; they are never read into a state, a log or a message."""

    user: str
    password_file: Path
    ca_certs: Path


def secure(folder: Path, home: Path, java: Java) -> Credentials:
    """Make certificates and a password for the node in `folder`, once in the life of its data.

    The password file is written last and says that all is there. The authority's key is never stored.
    Raises MissingExtra without the package `cryptography`.
    """
    config = folder / "config"
    credentials = Credentials(USER, folder / "secrets" / "password", folder / "secrets" / "ca.pem")
    if not credentials.password_file.is_file():
        password = f"{secrets.token_urlsafe(PASSWORD_BYTES)}-aA1"  # each class of characters is there
        config.mkdir(parents=True, exist_ok=True)
        write_certificates(config, credentials.ca_certs)
        write_users(config / "opensearch-security", home, hashed(password, home, java))
        with replacing(credentials.password_file, private=True) as temporary:
            temporary.write_text(password + "\n", encoding="utf-8")
    return credentials


def security_values() -> dict[str, Any]:
    """Give the security plugin's settings of opensearch.yml."""
    values: dict[str, Any] = {
        "plugins.security.allow_default_init_securityindex": True,
        "plugins.security.audit.type": "noop",
        "plugins.security.nodes_dn": ["CN=hybridr-node"],
        "plugins.security.restapi.roles_enabled": ["all_access"],
        "plugins.security.ssl.http.enabled": True,
        "plugins.security.ssl.transport.enforce_hostname_verification": False,
    }
    for layer in ("http", "transport"):
        values |= {
            f"plugins.security.ssl.{layer}.pemcert_filepath": "node.pem",
            f"plugins.security.ssl.{layer}.pemkey_filepath": "node.key",
            f"plugins.security.ssl.{layer}.pemtrustedcas_filepath": "ca.pem",
        }
    return values


def hashed(password: str, home: Path, java: Java) -> str:
    """Hash a password with the plugin's own tool, which reads it from a variable, not from its arguments."""
    tool = home / "plugins" / "opensearch-security" / "tools" / "hash.sh"
    said = run_tool(tool, home, java, "-env", PASSWORD_VARIABLE, **{PASSWORD_VARIABLE: password})
    return said.strip().splitlines()[-1]


def write_users(folder: Path, home: Path, password_hash: str) -> None:
    """Lay out the plugin's configuration with one administrator and without the demo users and roles."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(home / "config" / "opensearch-security", folder)
    users = {USER: {"hash": password_hash, "reserved": True, "backend_roles": ["admin"]}}
    mapping = {"all_access": {"reserved": False, "backend_roles": ["admin"]}}
    for name, kind, entries in (
        ("internal_users", "internalusers", users),
        ("roles_mapping", "rolesmapping", mapping),
    ):
        content = {"_meta": {"type": kind, "config_version": 2}, **entries}
        below(folder, f"{name}.yml").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_certificates(config: Path, ca_certs: Path) -> None:
    """Make an authority and the node's certificate, for this machine's loopback only."""
    with extra("embedded", "a secured node"):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    authority_key, node_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = sign(distinguished_name("hybridr-authority"), authority_key, None, authority_key)
    node = sign(distinguished_name("hybridr-node"), node_key, authority, authority_key)
    pem = serialization.Encoding.PEM
    ca_certs.parent.mkdir(parents=True, exist_ok=True)
    for path in (config / "ca.pem", ca_certs):
        path.write_bytes(authority.public_bytes(pem))
    (config / "node.pem").write_bytes(node.public_bytes(pem) + authority.public_bytes(pem))
    with replacing(config / "node.key", private=True) as temporary:
        temporary.write_bytes(
            node_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )


def distinguished_name(common_name: str) -> Name:
    """Give a distinguished name."""
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def sign(
    subject: Name, key: EllipticCurvePrivateKey, issuer: Certificate | None, signing: EllipticCurvePrivateKey
) -> Certificate:
    """Make a certificate, of an authority when `issuer` is None, with all that strict clients ask for."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    is_authority = issuer is None
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
        .add_extension(key_usage(is_authority), critical=True)
    )
    if not is_authority:
        both = [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        names = [x509.DNSName("localhost"), *(x509.IPAddress(ipaddress.ip_address(a)) for a in LOOPBACKS)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signing, hashes.SHA256())


def key_usage(is_authority: bool) -> KeyUsage:
    """Say what a key is for: an authority's signs certificates too."""
    from cryptography import x509

    others = ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        **dict.fromkeys(others, False),
    )
