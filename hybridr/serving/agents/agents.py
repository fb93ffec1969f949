"""`hybridr mcp`: a server of the Model Context Protocol, by stdio or local HTTP, with tools that search
indices. Nothing is ever written.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from ...errors import HybridrError, SettingsError, extra

with extra("mcp", "hybridr mcp"):
    import anyio
    import anyio.to_thread
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.stdio import stdio_server
    from mcp.shared.message import SessionMessage
    from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, ToolAnnotations

from pydantic import Field, ValidationError

from ...cluster.connection import Cluster
from ...records import Progress, silent
from ...search.settings import SearchSettings
from ..application import Server, create_app, find_encoder
from ..doorway import Doorway, is_local, listen
from ..settings import McpSettings, ServeSettings
from ..telemetry import Metrics
from .documents import (
    ANSWER_BYTES,
    MAX_SYSTEMS,
    WARNED,
    WRITERS,
    Report,
    Reports,
    ToolFailure,
    as_much_as_fits,
    cut_to_limit,
    describe_fields,
    documents_as_text,
    hit_lines,
    plain_text,
    post_to_app,
    shortened_to,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

READING = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
FAILED = "the tool failed; ask again once, and if it fails again, tell the user to look at the server's log"
NEXT = "look at the tool's parameters and send those alone"
MAX_K, MAX_OFFSET, MAX_CHARACTERS = 20, 1_000, 8_000
NO_REPORTS: Mapping[str, Report] = MappingProxyType({})
NO_START = 100_000_000
MAX_ERROR_CHARACTERS = 600  # characters of an error

AskedText = Annotated[str, Field(description="a question or words, in plain text; no query language")]
IndexName = Annotated[str | None, Field(description="name of an index; left out: the first")]
Filters = Annotated[
    dict[str, Any] | None,
    Field(
        description="what every hit has to match: term, terms, range, exists, match, or bool of these; a "
        'price below 50 of one brand is {"bool": {"filter": [{"term": {"brand": "acme"}}, '
        '{"range": {"price": {"lt": 50}}}]}}; ask `fields` for names and values',
        examples=[
            {"term": {"brand": "acme"}},
            {"range": {"price": {"gte": 10, "lt": 50}}},
            {"bool": {"filter": [{"terms": {"color": ["red", "blue"]}}, {"exists": {"field": "price"}}]}},
        ],
    ),
]
K = Annotated[int, Field(description=f"how many hits, 1 to {MAX_K}")]
Offset = Annotated[int, Field(description=f"how many of the best to skip, 0 to {MAX_OFFSET}")]
AtLeast = Annotated[
    float | None, Field(description="find nothing where the best hit has less confidence, such as 0.95")
]
SystemNames = Annotated[
    tuple[str, ...],
    Field(description=f"1 to {MAX_SYSTEMS}, the first the baseline: bm25, dense, hybrid, hybrid-stock, rm3"),
]
DocumentIds = Annotated[list[str], Field(description="ids as `search` shows them, 1 to 20")]
FirstCharacter = Annotated[int, Field(description="the first character of each text")]
Characters = Annotated[int, Field(description=f"how many of each text, 1 to {MAX_CHARACTERS}")]
NO_JSON = "this line is no JSON; send one request of JSON-RPC 2.0 a line, without halves of surrogate pairs"
NO_REQUEST = "this is not a JSON-RPC 2.0 request; send jsonrpc, id, method and params, one request per line"


@dataclass
class Tools:
    """The tools that agents call; each is answered by the app of its index, as `/search` is.

    Every answer keeps to the limits of `documents.py`. Tools raise ToolFailure with a hint for the next
    step.
    """

    apps: Mapping[str, FastAPI]
    reports: Reports

    async def search(
        self,
        query: AskedText,
        index: IndexName = None,
        filters: Filters = None,
        k: K = 10,
        offset: Offset = 0,
        at_least: AtLeast = None,
    ) -> str:
        """Return the hits of a search as text; one more hit is requested, to know whether there are more."""
        require_within("k", k, 1, MAX_K)
        require_within("offset", offset, 0, MAX_OFFSET)
        body = {"query": query, "k": k + 1, "offset": offset} | ({"filter": filters} if filters else {})
        body |= {} if at_least is None else {"at_least": at_least}
        answer = await post_to_app(self.app_of(index), "/search", body)
        return cut_to_limit(hits_as_text(answer, k, offset))

    async def get(
        self,
        ids: DocumentIds,
        index: IndexName = None,
        start: FirstCharacter = 0,
        characters: Characters = 2_000,
    ) -> str:
        """Return the texts of documents from the character `start` on, and their other fields."""
        require_within("start", start, 0, NO_START)
        require_within("characters", characters, 1, MAX_CHARACTERS)
        return await self._answer(index, documents_as_text, ids, start, characters)

    async def fields(self, index: IndexName = None) -> str:
        """Return a description of the fields that filters can use."""
        return await self._answer(index, describe_fields)

    async def inspect(self, index: IndexName = None) -> str:
        """Return a description of the index, as `hybridr inspect` reports it."""
        return await self.reports.write("inspect", self.name_of(index))

    async def plan(self, index: IndexName = None) -> str:
        """Return the plan of a reindex."""
        return await self.reports.write("plan", self.name_of(index))

    async def evaluate(
        self, index: IndexName = None, systems: SystemNames = ("bm25", "dense", "hybrid")
    ) -> str:
        """Return measures of systems on the judgements that the server was started with."""
        require_within("the number of systems", len(set(systems)), 1, MAX_SYSTEMS)
        return await self.reports.write("evaluate", self.name_of(index), tuple(dict.fromkeys(systems)))

    def name_of(self, index: IndexName) -> str:
        """Return the name of an index; None means the first. Raises ToolFailure for an unknown name."""
        if index is not None and index not in self.apps:
            raise ToolFailure("there is no such index", hint=f"index is one of {', '.join(self.apps)}")
        return index if index is not None else next(iter(self.apps))

    def app_of(self, index: IndexName) -> FastAPI:
        """Return the app of an index."""
        return self.apps[self.name_of(index)]

    async def _answer(self, index: IndexName, reader: Callable[..., str], *arguments: Any) -> str:
        """Run `reader` on an index in a thread and return its text. Raises ToolFailure for a HybridrError."""
        searches = self.app_of(index).state.searches
        work = partial(reader, searches.cluster, searches.now.info, *arguments)
        try:
            return cut_to_limit(await anyio.to_thread.run_sync(work))
        except HybridrError as error:
            raise ToolFailure(error.message, hint=error.hint) from None

    def end(self) -> None:
        """Stop all threads."""
        for app in self.apps.values():
            app.state.searches.end()
            app.state.embedder.close()


def hits_as_text(answer: Mapping[str, Any], k: int, offset: int) -> str:
    """Return hits as text for a model, as many as fit, with the offset of the next ones."""
    hits = answer["hits"][:k]
    if not hits and (nearest := answer.get("nearest")):
        return f"nothing fits; the nearest is\n{WARNED}\n{hit_lines(nearest)}"
    if not hits:
        return "nothing found" + ("" if offset else ": try other words, or fewer filters")
    warning = f"{answer['warning']}\n" if answer.get("warning") else ""
    text, count = as_much_as_fits(f"{warning}{WARNED}", map(hit_lines, hits))
    remaining = len(answer["hits"]) - count
    return text + (f"\nat least {remaining} more: offset={offset + count}" if remaining else "\nno more hits")


def require_within(name: str, value: int, minimum: int, maximum: int) -> None:
    """Raise ToolFailure for a number out of range."""
    if not minimum <= value <= maximum:
        raise ToolFailure(f"{name} is {minimum} to {maximum:,}", hint=f"send {name} within that range")


class BoundedServer(MCPServer[Any]):
    """An MCP server that shortens every error and adds what to do next."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool; errors are raised as ToolError, shortened."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            message = shortened_to(plain_text(str(error)), MAX_ERROR_CHARACTERS)
            raise ToolError(f"{message}; {NEXT}") from error.__cause__

    async def run_stdio_async(self) -> None:
        """Answer by stdin and stdout; a line that the SDK cannot read is answered by an error."""
        server = self._lowlevel_server
        requests, messages = anyio.create_memory_object_stream[SessionMessage | Exception]()

        async def pass_on(lines: AsyncIterable[SessionMessage | Exception], answers: Any) -> None:
            """Pass readable messages on to the server, and answer unreadable ones."""
            async with requests:
                async for line in lines:
                    if not isinstance(line, Exception):
                        await requests.send(line)
                    elif (error := answer_to(line)) is not None:
                        await answers.send(SessionMessage(error))

        async with stdio_server() as (lines, answers), anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on, lines, answers)
            await server.run(messages, answers, server.create_initialization_options())
            tasks.cancel_scope.cancel()


class Agents(NamedTuple):
    """An MCP server ready to run; `web` answers by HTTP."""

    server: MCPServer[Any]
    tools: Tools
    web: Server | None = None

    def run(self, log_level: str = "warning") -> None:
        """Answer until the client leaves or the process is stopped."""
        for app in self.tools.apps.values():
            app.state.searches.follow()
        try:
            if self.web:
                self.web.run(log_level)
            else:
                self.server.run("stdio")
        finally:
            self.tools.end()


def open_agents(
    cluster: Cluster,
    indices: Sequence[str],
    settings: McpSettings | None = None,
    *,
    search: SearchSettings | None = None,
    serving: ServeSettings | None = None,
    reports: Mapping[str, Report] = NO_REPORTS,
    progress: Progress = silent,
) -> Agents:
    """Return an MCP server with tools for some indices; the first index is the default.

    `reports` are the functions behind the tools `inspect`, `plan` and `evaluate`; a tool without one is not
    offered. Filters and limits are those of `serving`. Raises SettingsError without an index, for HTTP on an
    address that other machines reach, and for HTTP without a token; and what `Search` raises for an index.
    """
    settings = settings or McpSettings()
    if not indices:
        raise SettingsError("no index was named", hint="hybridr mcp INDEX")
    if settings.http and not is_local(settings.host):
        raise SettingsError(f"other machines can reach {settings.host}", hint='[mcp] host = "127.0.0.1"')
    if settings.http and settings.token is None:
        raise SettingsError("--http needs a token", hint="set HYBRIDR_MCP_TOKEN")
    base = (serving or ServeSettings()).model_copy(update={"token": None, "hosts": ()})
    apps = {}
    for name in dict.fromkeys(indices):
        index_settings = base.model_copy(update={"index": name})
        encoder = find_encoder(index_settings, cluster, progress)
        apps[name] = create_app(encoder, index_settings, cluster=cluster, search=search)
    tools = Tools(apps, Reports(reports, settings.report_timeout_s))
    intro = f"{settings.description}\n" if settings.description else ""
    names = f"Indices: {', '.join(tools.apps)}. Answers have at most {ANSWER_BYTES} tokens."
    server: MCPServer[Any] = BoundedServer("hybridr", instructions=f"{intro}{names}", log_level="WARNING")

    descriptions: dict[Callable[..., Coroutine[Any, Any, str]], str] = {
        tools.search: "Search documents by meaning and by words. "
        "Gives ids, scores and the best passage of each.",
        tools.get: "Read the text and the other fields of documents that `search` found, part by part.",
        tools.fields: "Tell which fields a filter may name: types, frequent values, ranges.",
        tools.inspect: "Describe an index: which text is encoded, lengths, language, duplicates, advice.",
        tools.plan: "Say what `hybridr reindex` would do: documents, requests, disk, time. Sends nothing.",
        tools.evaluate: "Measure systems of ranking on judged queries, with intervals and tests.",
    }
    for tool, purpose in descriptions.items():
        if tool.__name__ in WRITERS and tool.__name__ not in tools.reports.reports:
            continue
        text = f"{intro}{purpose} {names}"
        server.add_tool(as_tool(tool), description=text, annotations=READING, structured_output=False)
    if not settings.http:
        return Agents(server, tools)
    # Over HTTP, the Doorway of `hybridr serve` checks token, host and size.
    http_settings = ServeSettings(host=settings.host, port=settings.port, token=settings.token)
    app = server.streamable_http_app(json_response=True, stateless_http=True, host=settings.host)
    doorway = Doorway(app, http_settings, Metrics(), {"/mcp"})
    return Agents(server, tools, Server(doorway, listen(settings.host, settings.port), http_settings))


def as_tool(tool: Callable[..., Coroutine[Any, Any, str]]) -> Callable[..., Coroutine[Any, Any, str]]:
    """Return a tool whose errors are raised as ToolError, with a message and a hint for a model."""

    @wraps(tool)
    async def answered(*arguments: Any, **named: Any) -> str:
        try:
            return await tool(*arguments, **named)
        except ToolFailure as error:
            message = shortened_to(plain_text(error.message), MAX_ERROR_CHARACTERS)
            hint = shortened_to(
                plain_text(error.hint or "change the request, or tell the user"), MAX_ERROR_CHARACTERS
            )
            raise ToolError(f"{message}; {hint}") from error
        except Exception as error:
            raise ToolError(FAILED) from error

    return answered


def answer_to(failure: Exception) -> JSONRPCError | None:
    """Return the JSON-RPC error for an unreadable line; None for a blank line.

    A line that cannot be parsed has no id: JSON-RPC wants null.
    """
    problems = failure.errors(include_url=False) if isinstance(failure, ValidationError) else []
    if not problems or problems[0]["type"] == "json_invalid":
        line = problems[0]["input"] if problems else None
        if isinstance(line, str) and not line.strip():
            return None
        return JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=PARSE_ERROR, message=NO_JSON))
    objects = (problem["input"] for problem in problems if isinstance(problem["input"], dict))
    sent_id = next((request["id"] for request in objects if "jsonrpc" in request and "id" in request), None)
    request_id = sent_id if isinstance(sent_id, int | str) and not isinstance(sent_id, bool) else None
    return JSONRPCError(
        jsonrpc="2.0", id=request_id, error=ErrorData(code=INVALID_REQUEST, message=NO_REQUEST)
    )
