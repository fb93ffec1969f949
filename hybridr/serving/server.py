"""The server: an app on a port."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, NamedTuple

import uvicorn
from fastapi import FastAPI

from ..encoder import Encoder
from ..errors import SettingsError
from ..progress import Progress, silent
from ..settings import SearchSettings, ServeSettings
from .application import create_app
from .logs import configuration

if TYPE_CHECKING:
    from ..cluster import Cluster


class Server(NamedTuple):
    """An app and the socket it is going to answer on, already bound."""

    app: FastAPI
    listener: socket.socket
    stop_timeout_s: int = 30

    @property
    def url(self) -> str:
        """Give the address, with the port that a request for port 0 was given."""
        host, port = self.listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self, log_level: str = "warning") -> None:
        """Answer requests until the process is told to stop; then those under way are answered first.

        The log goes to stderr, one JSON object per line: every request from level `info` on.
        """
        config = uvicorn.Config(
            self.app, log_config=configuration(log_level), access_log=False,
            timeout_graceful_shutdown=self.stop_timeout_s,
        )  # fmt: skip
        try:
            uvicorn.Server(config).run(sockets=[self.listener])
        except KeyboardInterrupt:
            pass  # Ctrl-C is how a server ends


def open_server(
    settings: ServeSettings, *, cluster: Cluster | None = None, progress: Progress = silent
) -> Server:
    """Load the encoder and bind the port.

    `cluster` is needed when the settings name an index. Raises ModelError, SettingsError when the port is
    taken, FingerprintMismatch when the index was written by another encoder.
    """
    listener = listen(settings.host, settings.port)
    try:
        encoder = find_encoder(settings, cluster, progress)
        return Server(create_app(encoder, settings, cluster=cluster), listener, settings.stop_timeout_s)
    except BaseException:
        listener.close()
        raise


def listen(host: str, port: int) -> socket.socket:
    """Bind a port; 0 takes a free one. Raises SettingsError when that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(
            f"port {port} of {host} cannot be used: {error.strerror}",
            hint="--port takes another, 0 a free one",
        ) from None
    # asyncio sends without delay only where the protocol is named; 40 ms an answer otherwise.
    return socket.socket(bound.family, bound.type, socket.IPPROTO_TCP, fileno=bound.detach())


def find_encoder(settings: ServeSettings, cluster: Cluster | None, progress: Progress) -> Encoder:
    """Load the encoder of the settings, else that of the index, else the packaged MiniLM."""
    if cluster is not None and settings.index is not None:
        from ..destinations import resolve
        from ..known_encoders import encoder_for
        from ..tuned import mapped

        info = resolve(cluster, settings.index)
        encoder = encoder_for(cluster, info, settings.encoder, progress=progress)
        return mapped(encoder, info, SearchSettings(query_map=settings.query_map))
    from ..encoder import load_encoder
    from ..packaged import minilm_encoder

    return load_encoder(settings.encoder or minilm_encoder(progress=progress))
