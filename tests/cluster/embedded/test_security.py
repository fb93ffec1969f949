from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

from hybridr.cluster.embedded import configuration


def test_the_certificate_is_trusted_by_its_own_authority_only(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        configuration.write_certificates(tmp_path / name, tmp_path / name / "secrets" / "ca.pem")
    assert (tmp_path / "mine" / "node.key").stat().st_mode & 0o777 == 0o600
    assert sum("PRIVATE KEY" in path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()) == 2
    assert handshake(tmp_path / "mine", tmp_path / "mine" / "secrets" / "ca.pem", "127.0.0.1") is None
    assert handshake(tmp_path / "mine", tmp_path / "mine" / "secrets" / "ca.pem", "localhost") is None
    assert "self-signed" in str(handshake(tmp_path / "mine", tmp_path / "other" / "ca.pem", "127.0.0.1"))
    assert "mismatch" in str(handshake(tmp_path / "mine", tmp_path / "mine" / "ca.pem", "192.0.2.1"))


def handshake(config: Path, ca_certs: Path, host: str) -> ssl.SSLError | None:
    """Let a strict client meet a server that has the node's certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(config / "node.pem", config / "node.key")
    client = ssl.create_default_context(cafile=str(ca_certs))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(far, server_side=True).close()
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(near, server_hostname=host).close()
    except ssl.SSLError as error:
        return error
    finally:
        near.close()
        thread.join(timeout=10)
    return None
