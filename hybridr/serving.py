"""The embedding server: vectors the way OpenAI's API gives them, and hybrid search when it has an index.

The name of the model says which side a text is on: `...-query` for what users type, `...-passage` for
what is indexed (`hybridr-query` and `hybridr-passage` are listed, any other beginning is taken too).
"""

from __future__ import annotations

import base64
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import orjson
from pydantic import AfterValidator, BaseModel, Field

from .errors import ClusterError, DataError, HybridrError, MissingExtra, NotFound, SettingsError, Unreachable
from .progress import Progress, silent
from .settings import ServeSettings

try:
    import uvicorn
    from fastapi import Depends, FastAPI, Request, Response
    from fastapi.exceptions import RequestValidationError
except ImportError as error:
    raise MissingExtra(error.name or "fastapi", "serve", "hybridr serve") from None

if TYPE_CHECKING:
    from .cluster import Cluster
    from .encoder import Encoder, Vectors
    from .retrieval import Search

MOST_TEXTS = 2048  # per request, as OpenAI's own limit
SIDES = ("query", "passage")
Mode = Literal["lexical", "dense", "hybrid"]


def whole(text: str) -> str:
    """Refuse half a surrogate pair, which JSON can hold and no tokenizer can read."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("not valid unicode")
    return text


Text = Annotated[str, AfterValidator(whole)]


class EmbeddingRequest(BaseModel):
    """The body of `/v1/embeddings`."""

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    @property
    def texts(self) -> list[str]:
        """Give the input as a list."""
        return [self.input] if isinstance(self.input, str) else self.input


class SearchRequest(BaseModel):
    """The body of `/search`."""

    query: Text = Field(min_length=1)
    k: int = Field(10, ge=1, le=1000)
    mode: Mode = "hybrid"


class Refused(Exception):
    """A request that HTTP has its own status for: an unknown model, a missing token."""

    def __init__(self, status: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint


STATUS: tuple[tuple[type[HybridrError], int], ...] = (
    (DataError, 400), (SettingsError, 400), (NotFound, 404), (Unreachable, 503), (ClusterError, 502),
)  # fmt: skip


class Server(NamedTuple):
    """An app and the socket it is going to answer on, already bound."""

    app: FastAPI
    listener: socket.socket

    @property
    def url(self) -> str:
        """Give the address, with the port that a request for port 0 was given."""
        host, port = self.listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Answer requests until the process is told to stop."""
        config = uvicorn.Config(self.app, log_level="warning", access_log=False)
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
        token = settings.token.get_secret_value() if settings.token else None
        return Server(create_app(encoder, cluster=cluster, index=settings.index, token=token), listener)
    except BaseException:
        listener.close()
        raise


def listen(host: str, port: int) -> socket.socket:
    """Bind a port; 0 takes a free one. Raises SettingsError when that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(
            f"port {port} of {host} cannot be used: {error.strerror}",
            hint="--port takes another, 0 a free one",
        ) from None


def find_encoder(settings: ServeSettings, cluster: Cluster | None, progress: Progress) -> Encoder:
    """Load the encoder of the settings, else that of the index, else the packaged MiniLM."""
    if cluster is not None and settings.index is not None:
        from .destinations import resolve
        from .known_encoders import encoder_for

        return encoder_for(cluster, resolve(cluster, settings.index), settings.encoder, progress=progress)
    from .encoder import load_encoder
    from .packaged import minilm_encoder

    return load_encoder(settings.encoder or minilm_encoder(progress=progress))


def create_app(
    encoder: Encoder, *, cluster: Cluster | None = None, index: str | None = None, token: str | None = None
) -> FastAPI:
    """Build the app: `/v1/embeddings`, `/v1/models`, `/healthz`, and `/search` when an index is given.

    With `token`, everything but `/healthz` asks for `Authorization: Bearer <token>`.
    """
    app = FastAPI(title="hybridr")
    guard = [Depends(bearer_check(token))] if token else []
    app.add_exception_handler(Refused, refused)  # type: ignore[arg-type]
    app.add_exception_handler(HybridrError, failed)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, invalid)  # type: ignore[arg-type]
    add_embeddings(app, encoder, guard)
    if cluster is not None and index is not None:
        add_search(app, cluster, index, encoder, guard)

    @app.get("/healthz")
    def health() -> Response:
        return answer({
            "status": "ok", "encoder": encoder.fingerprint, "dim": encoder.dim,
            "similarity": encoder.similarity, "max_tokens": encoder.max_tokens, "index": index,
        })  # fmt: skip

    return app


def add_embeddings(app: FastAPI, encoder: Encoder, guard: list[Any]) -> None:
    """Add the routes that turn text into vectors."""
    one_at_a_time = threading.Lock()  # one request already uses every core

    @app.post("/v1/embeddings", dependencies=guard)
    def embeddings(request: EmbeddingRequest) -> Response:
        encode = encoder.encode_queries if side_of(request.model) == "query" else encoder.encode_documents
        check_input(request, encoder.dim)
        with one_at_a_time:
            vectors = encode(request.texts)
        return answer(embedding_answer(request, vectors) | usage(encoder, request.texts))

    @app.get("/v1/models", dependencies=guard)
    def models() -> Response:
        names = [{"id": f"hybridr-{side}", "object": "model", "owned_by": "hybridr"} for side in SIDES]
        return answer({"object": "list", "data": names})


def add_search(app: FastAPI, cluster: Cluster, index: str, encoder: Encoder, guard: list[Any]) -> None:
    """Add the route that searches; the encoder is checked against the index now."""
    from .retrieval import Search

    hybrid = Search(cluster, index, encoder)
    searches: dict[Mode, Search] = {
        "hybrid": hybrid, "lexical": hybrid.using("lexical"), "dense": hybrid.using("dense"),
    }  # fmt: skip

    @app.post("/search", dependencies=guard)
    def search(request: SearchRequest) -> Response:
        hits = searches[request.mode](request.query, k=request.k)
        return answer({"mode": request.mode, "hits": [hit._asdict() for hit in hits]})


def side_of(model: str) -> str:
    """Read the side off a model's name. Raises Refused."""
    side = model.rpartition("-")[2].lower()
    if side not in SIDES:
        hint = "use hybridr-query for queries, hybridr-passage for documents"
        raise Refused(404, f"the model '{model}' names no side", hint)
    return side


def check_input(request: EmbeddingRequest, dim: int) -> None:
    """Raise DataError for what would give a meaningless vector."""
    for position, text in enumerate(request.texts):
        if not text.strip():
            raise DataError(f"input {position} is empty", hint="leave texts without words out")
    if request.dimensions not in (None, dim):
        raise DataError(f"this encoder gives {dim} dimensions, {request.dimensions} were asked for")


def embedding_answer(request: EmbeddingRequest, vectors: Vectors) -> dict[str, Any]:
    """Give vectors `(n, dim)` the form of OpenAI's answer."""
    shown = [encoded(vector, request.encoding_format) for vector in vectors]
    return {
        "object": "list",
        "model": request.model,
        "data": [{"object": "embedding", "index": i, "embedding": value} for i, value in enumerate(shown)],
    }


def usage(encoder: Encoder, texts: list[str]) -> dict[str, Any]:
    """Count the tokens as OpenAI does; nothing for an encoder that cannot count them."""
    count = getattr(encoder, "count_tokens", None)
    if count is None:
        return {}
    tokens = sum(count(texts))
    return {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def encoded(vector: Vectors, encoding: str) -> Any:
    """Give a vector `(dim,)` as numbers, or as the base64 of its little-endian float32 bytes."""
    values = np.ascontiguousarray(vector, dtype="<f4")
    return base64.b64encode(values.tobytes()).decode("ascii") if encoding == "base64" else values


def answer(value: Any, status: int = 200) -> Response:
    """Answer with JSON; FastAPI's own way walks through every number in Python."""
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status_code=status, media_type="application/json")


def bearer_check(token: str) -> Callable[[Request], Awaitable[None]]:
    """Make the dependency that asks for a bearer token."""
    expected = f"Bearer {token}".encode()

    async def check(request: Request) -> None:
        if not secrets.compare_digest(request.headers.get("authorization", "").encode("latin-1"), expected):
            raise Refused(401, "the bearer token is missing or wrong", "send Authorization: Bearer TOKEN")

    return check


async def refused(_: Request, error: Refused) -> Response:
    """Answer what was refused before the library was asked."""
    return refusal(error.status, error.message, error.hint, "invalid_request_error")


async def failed(_: Request, error: HybridrError) -> Response:
    """Give an error of the library the form that OpenAI's clients read."""
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    return refusal(status, error.message, error.hint, type(error).__name__)


async def invalid(_: Request, error: RequestValidationError) -> Response:
    """Name the field of a request that cannot be used, without repeating what was in it."""
    problems = [f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors()]
    return refusal(400, "; ".join(problems), None, "invalid_request_error")


def refusal(status: int, message: str, hint: str | None, kind: str) -> Response:
    """Answer with an error object."""
    return answer({"error": {"message": message, "hint": hint, "type": kind, "code": status}}, status)
