"""The embedding server: vectors the way OpenAI's API gives them, and hybrid search when it has an index.

The name of the model says which side a text is on: `...-query` for what users type, `...-passage` for
what is indexed (`hybridr-query` and `hybridr-passage` are listed, any other beginning is taken too).
"""

from ..errors import MissingExtra

try:
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise MissingExtra(error.name or "fastapi", "serve", "hybridr serve") from None

from .application import create_app
from .server import Server, listen, open_server

__all__ = ["Server", "create_app", "listen", "open_server"]
