"""The configuration of an embedded node: its folder, TLS certificates, password and start command.

A node with the security plugin has its own certificate authority, one user, and no demo content.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import NodeError, extra
from ...files.local import child_path, replacing, text_within
from ...files.programs import give_to_node, node_account
from ..settings import NodeSettings
from .layout import Java, clean_environment, run_tool
from .state import data_argument

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

LICENCE = (
    "Elasticsearch {} is fetched from the public Maven repository, under its makers' licences: the Server "
    "Side Public License 1.0, and for x-pack the Elastic License 2.0. It is the core alone, for trying: no "
    "scripts, no analyser but the built-in ones, no security"
)
LAUNCHER_HEAP = ("-Xms4m", "-Xmx64m", "-XX:+UseSerialGC")
LOOPBACK = "127.0.0.1"
MAP_LIMIT = Path("/proc/sys/vm/max_map_count")
MIN_MEMORY_MAPS = 65530  # default of Linux; with fewer, memory-mapped segments can fail
DROPPED_OPTIONS = ("-Xms", "-Xmx", "file=logs/gc.log", "-XX:ErrorFile", "HeapDump", "java.io.tmpdir")
PRE_TOUCH = "-XX:+AlwaysPreTouch"  # an option for servers: it allocates the whole heap at the start
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Java 17's security manager must allow ICU's word breaking (WORD_BREAKING) to register itself.
LOCALE_POLICY = 'grant { permission java.lang.RuntimePermission "localeServiceProvider"; };\n'
LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}][%node_name]%marker %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
logger.deprecation.name = org.{product}.deprecation
logger.deprecation.level = error
"""
USER = "admin"
VALID_DAYS = 3650
PASSWORD_BYTES = 24
PASSWORD_VARIABLE = "HYBRIDR_NODE_PASSWORD"
SECURITY = {
    "plugins.security.allow_default_init_securityindex": True,
    "plugins.security.audit.type": "noop",
    "plugins.security.nodes_dn": ["CN=hybridr-node"],
    "plugins.security.restapi.roles_enabled": ["all_access"],
    "plugins.security.ssl.http.enabled": True,
    "plugins.security.ssl.transport.enforce_hostname_verification": False,
    **{
        f"plugins.security.ssl.{layer}.{part}_filepath": file
        for layer in ("http", "transport")
        for part, file in (("pemcert", "node.pem"), ("pemkey", "node.key"), ("pemtrustedcas", "ca.pem"))
    },
}
"""The security plugin's settings of opensearch.yml."""


def licence_of(settings: NodeSettings) -> str | None:
    """Return the text about the licence of the node's product; None for OpenSearch (hybridr's licence)."""
    return LICENCE.format(settings.release) if settings.is_elasticsearch else None


def configure(settings: NodeSettings, folder: Path, home: Path, java: Java, values: dict[str, Any]) -> None:
    """Write a node's configuration files into `folder/config`; its other files there stay.

    The folders `config` (with keys), `data` and `temporary` are closed to other users and given to the
    account that runs the node. The user keeps the log folder, because hybridr opens the log before the start.
    """
    config = folder / "config"
    for part in ("config", "data", "logs", "temporary"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    lines = [f"{name}: {json.dumps(value)}" for name, value in values.items()]  # JSON is valid YAML
    contents = {
        "jvm.options": trim_options(text_within(home / "config" / "jvm.options"), java),
        "java.policy": LOCALE_POLICY if java.packaged else "",
        "log4j2.properties": LOGGING.replace("{product}", settings.product),
        f"{settings.product}.yml": "\n".join(lines) + "\n",
    }
    for name, content in contents.items():
        child_path(config, name).write_text(content, encoding="utf-8")
    if settings.is_elasticsearch:
        heap = config / "jvm.options.d" / "heap.options"
        heap.parent.mkdir(exist_ok=True)
        heap.write_text(f"-Xms{settings.heap}\n-Xmx{settings.heap}\n", encoding="utf-8")
    for path in config.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    for part in ("config", "data", "logs", "temporary"):
        (folder / part).chmod(0o700)
        if part != "logs":
            give_to_node(folder / part)


def trim_options(options: str, java: Java) -> str:
    """Return the text of jvm.options without options for shared folders or for modules that `java` lacks."""
    unwanted = (*DROPPED_OPTIONS, VECTOR_MODULE) if java.packaged else DROPPED_OPTIONS
    lines = [line for line in options.splitlines() if not any(part in line for part in unwanted)]
    return "\n".join(lines) + "\n"


def node_settings(settings: NodeSettings, folder: Path, port: int) -> dict[str, Any]:
    """Return the settings of opensearch.yml or elasticsearch.yml; the command line sets `path.data`."""
    values: dict[str, Any] = {
        "cluster.name": f"hybridr-{settings.name}",
        "node.name": settings.name,
        "node.attr.hybridr_embedded": "true",
        "discovery.type": "single-node",
        "network.host": LOOPBACK,
        "http.port": port,
        "transport.port": 0,
        "path.logs": str(folder / "temporary"),  # the log that people read is the JVM's output in `logs`
        "path.repo": str(folder / "data" / "snapshots"),
        "cluster.routing.allocation.disk.threshold_enabled": False,
    }
    if settings.is_elasticsearch:
        values["xpack.security.enabled"] = False
    if MAP_LIMIT.is_file() and int(MAP_LIMIT.read_text()) < MIN_MEMORY_MAPS:  # only Linux has this limit
        values["node.store.allow_mmap"] = False
    return values


def launch_command(settings: NodeSettings, folder: Path, home: Path, java: Java) -> list[str]:
    """Return the command line that starts the node's JVM directly, without the product's start script."""
    temporary, config = folder / "temporary", folder / "config"
    if settings.is_elasticsearch:
        options = [
            *LAUNCHER_HEAP,
            "-Dcli.name=server",
            f"-Dcli.script={home / 'bin' / 'elasticsearch'}",
            "-Dcli.libs=lib/tools/server-cli",
            f"-Des.path.home={home}",
            f"-Des.path.conf={config}",
            "-Des.distribution.type=zip",
            "-Des.java.type=JAVA_HOME",
        ]
        libraries = f":{home / 'lib' / 'cli-launcher' / '*'}"
        main = "org.elasticsearch.launcher.CliToolLauncher"
    else:
        options = [
            "-Xshare:auto",
            *jvm_arguments(config, home, java, settings.heap),
            f"-XX:ErrorFile={temporary / 'hs_err.log'}",
            f"-Dopensearch.path.home={home}",
            f"-Dopensearch.path.conf={config}",
            f"-Djava.security.policy={config / 'java.policy'}",
            "-Dopensearch.distribution.type=zip",
            "-Dopensearch.bundled_jdk=false",
        ]
        libraries, main = "", "org.opensearch.bootstrap.OpenSearch"
    place = [f"-Djava.io.tmpdir={temporary}", "-cp", f"{home / 'lib' / '*'}{libraries}", main]
    return [str(java.home / "bin" / "java"), *options, *place, data_argument(str(folder / "data"))]


JAVA_FRAME = (
    "Exception in ",
    "\tat ",
    "output:",
    "error:",
    "Error occurred during initialization",
    "Error: ",
)
"""How lines of a refusal by Java begin that do not say the reason."""


def jvm_arguments(config: Path, home: Path, java: Java, heap: str) -> list[str]:
    """Return the JVM options for this Java and heap, as the distribution's launcher computes them."""
    parser, classes = "org.opensearch.tools.launchers.JvmOptionsParser", str(home / "lib" / "*")
    command = [str(java.home / "bin" / "java"), "-Xshare:auto", "-cp", classes, parser, str(config)]
    # The parser fails if this variable is not set. The node's own folder stands on its command line.
    options = {"OPENSEARCH_TMPDIR": "-", "OPENSEARCH_JAVA_OPTS": f"-Xms{heap} -Xmx{heap}"}
    environment = clean_environment() | options
    process = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, check=False, **node_account()
    )
    if process.returncode != 0:
        lines = [line for line in process.stderr.splitlines() if line and not line.startswith(JAVA_FRAME)]
        raise NodeError(
            f"Java refuses to start with a heap of {heap}: {(lines or [process.stderr[-300:]])[0]}",
            hint="try another --heap, or another Java",
        )
    return [option for option in process.stdout.split() if option != PRE_TOUCH]


def make_credentials(folder: Path, home: Path, java: Java) -> dict[str, str]:
    """Make certificates and a password for the node in `folder`, unless they exist already.

    Return the user name and the paths of the secrets, never the secrets. The password file is written last,
    so its existence means that all files exist. The authority's key is never stored. Raises MissingExtra
    without the package `cryptography`.
    """
    config, part = folder / "config", "opensearch-security"
    password_file, ca_certs = folder / "secrets" / "password", folder / "secrets" / "ca.pem"
    access = {"user": USER, "password_file": str(password_file), "ca_certs": str(ca_certs)}
    if password_file.is_file():
        return access
    config.mkdir(parents=True, exist_ok=True)
    write_certificates(config, ca_certs)
    password = f"{secrets.token_urlsafe(PASSWORD_BYTES)}-aA1"  # all classes of characters
    # The plugin's own tool reads the password from a variable, not from its arguments.
    tool = home / "plugins" / part / "tools" / "hash.sh"
    output = run_tool(tool, home, java, "-env", PASSWORD_VARIABLE, **{PASSWORD_VARIABLE: password})
    shutil.rmtree(config / part, ignore_errors=True)
    shutil.copytree(home / "config" / part, config / part)
    administrator = {"reserved": True, "backend_roles": ["admin"], "hash": output.strip().splitlines()[-1]}
    for name, kind, entries in (  # without the demo's users and roles
        ("internal_users", "internalusers", {USER: administrator}),
        ("roles_mapping", "rolesmapping", {"all_access": {"reserved": False, "backend_roles": ["admin"]}}),
    ):
        content = {"_meta": {"type": kind, "config_version": 2}, **entries}
        child_path(config / part, f"{name}.yml").write_text(json.dumps(content) + "\n", encoding="utf-8")
    with replacing(password_file, private=True) as temporary:
        temporary.write_text(password + "\n", encoding="utf-8")
    return access


def write_certificates(config: Path, ca_certs: Path) -> None:
    """Write the certificates of an authority and of the node, and the node's key; valid for loopback only."""
    with extra("embedded", "a secured node"):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    authority_key, node_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = signed_certificate("hybridr-authority", authority_key, None, authority_key)
    node = signed_certificate("hybridr-node", node_key, authority, authority_key)
    pem = serialization.Encoding.PEM
    ca_certs.parent.mkdir(parents=True, exist_ok=True)
    for path in (config / "ca.pem", ca_certs):
        path.write_bytes(authority.public_bytes(pem))
    (config / "node.pem").write_bytes(node.public_bytes(pem) + authority.public_bytes(pem))
    with replacing(config / "node.key", private=True) as temporary:
        temporary.write_bytes(
            node_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )


def signed_certificate(
    common_name: str,
    key: EllipticCurvePrivateKey,
    issuer: Certificate | None,
    signing_key: EllipticCurvePrivateKey,
) -> Certificate:
    """Return a signed certificate for `key`; a self-signed authority if `issuer` is None."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    is_authority = issuer is None
    usages = ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_encipherment=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        **dict.fromkeys(usages, False),
    )
    today = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
    )
    extensions: list[x509.ExtensionType] = [
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
    ]
    if not is_authority:
        addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in (LOOPBACK, "::1")]
        extensions += [
            x509.ExtendedKeyUsage(
                [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]),
        ]
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signing_key, hashes.SHA256())
