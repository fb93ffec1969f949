"""`hybridr serve` with its page: its routes, the searches that it compares, and the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import chain, zip_longest
from pathlib import Path
from threading import Lock, RLock, Thread
from typing import Annotated, Any, Literal, TypeAlias

from ...errors import HybridrError, NotFound, SettingsError, extra

with extra("serve", "hybridr serve"):
    from fastapi import Depends, FastAPI, Request, Response

from pydantic import BaseModel, Field

from ...cluster.connection import Cluster
from ...cluster.destinations import destinations, resolve
from ...cluster.field_values import text_of
from ...cluster.reading import hits_by_id, sources_by_id
from ...evaluation.evaluation import JudgedQueries
from ...files.formats import fits_column
from ...files.local import read_within
from ...records import Progress, silent
from ...relevance.tuning import reset_tuning, tune, without_chain
from ...search.checks import HYBRID, encoder_for
from ...search.rules.rule import read_rule
from ...search.rules.rules import RulesChange, RulesVersion, add_rules, fetch_rules, remove_rules, signature
from ...search.search import Search
from ...search.settings import SearchSettings
from ...search.systems import Compared, check_collection, evaluate_searches, system
from ..application import Server, open_server
from ..requests import Refused, json_response
from ..settings import ServeSettings
from ..snapshots import IndexSnapshot, Searches
from ..telemetry import LOGGER
from .judgements import Judgements

COMPARED = ("bm25", "hybrid-stock", "hybrid-plain", "hybrid", "dense")
POOLED = ("bm25", "hybrid", "hybrid-stock", "dense")
POOL_SIZE = 10  # documents of a query that are judged, and hits of each system
SHOWN_CHARACTERS = 2_000  # characters of a field
OTHER_INDEX = "hybrid@"


class SideBySide:
    """The searches that can be compared: systems of the served index, and other indices with vectors of its
    source.

    Each is opened on first use, and again after the server reopened its index.
    """

    def __init__(self, searches: Searches) -> None:
        self.searches, self.cluster = searches, searches.cluster
        self._snapshot: IndexSnapshot = searches.now
        self._opened: dict[str, Search] = {}
        self._lock = RLock()

    @property
    def hybrid(self) -> Search:
        """Return the search that the server answers with."""
        return self.searches.now.search(HYBRID)

    def names(self) -> list[str]:
        """Return the names of systems to compare; `hybrid@INDEX` is another index with vectors of the
        source.
        """
        info, template = self.hybrid.info, ["template"] if self.hybrid.context.template else []
        indices = destinations(self.cluster, self.cluster.index_info(info.record.source or info.name))
        names = [
            index.name for index in indices if index.record.state == "complete" and index.name != info.name
        ]
        return [*COMPARED, *template, *(f"{OTHER_INDEX}{name}" for name in names)]

    def search(self, name: str) -> Search:
        """Return the search of a system. Raises SettingsError, and NotFound for an unknown index."""
        with self._lock:
            if self._snapshot is not self.searches.now:
                self._snapshot = self.searches.now
                self._opened.clear()
            if name not in self._opened:
                self._opened[name] = self._open(name)
            return self._opened[name]

    def lists(self, query: str, names: Sequence[str], k: int) -> dict[str, dict[str, Any]]:
        """Return the best `k` hits of each system, with the parts of their scores, and the nearest hit of
        systems without hits.
        """
        by_system = {name: self.search(name)(query, k, explain=True) for name in names}
        return {
            "lists": {name: [hit.to_json() for hit in hits] for name, hits in by_system.items()},
            "nearest": {name: hits.nearest.to_json() for name, hits in by_system.items() if hits.nearest},
        }

    def pool(self, query: str, judge: str) -> list[dict[str, Any]]:
        """Return the documents of a query to judge, with their fields, but not which system found them.

        The best hits of several systems are interleaved, whatever their confidence, and shuffled: equal hits
        have the same order for the same query and judge. Documents whose id cannot stand in a qrels file are
        left out.
        """
        lists = [
            [
                hit.doc_id
                for hit in self.search(name).requiring(at_least=0)(query, POOL_SIZE)
                if fits_column(hit.doc_id)
            ]
            for name in POOLED
        ]
        doc_ids = blind_order(interleaved(lists, POOL_SIZE), f"{judge} {query}")
        record = self.hybrid.info.record
        sources = sources_by_id(self.cluster, self.hybrid.info.name, doc_ids)
        texts = {
            doc_id: [[name, text_of(source, [name])[:SHOWN_CHARACTERS]] for name in record.fields]
            for doc_id, source in sources.items()
        }
        return [{"doc_id": doc_id, "fields": texts[doc_id]} for doc_id in doc_ids if doc_id in texts]

    def _open(self, name: str) -> Search:
        """Return the search of a system by its name. Raises NotFound, SettingsError."""
        if name == HYBRID:
            return self.hybrid
        is_other_index = name.startswith(OTHER_INDEX)
        if name not in (names := self.names()):
            kind = NotFound if is_other_index else SettingsError
            raise kind(f"there is no system '{name[:100]}' to compare", hint=", ".join(names))
        hybrid, settings = self.hybrid, self.searches.settings
        if is_other_index:
            index = self.cluster.index_info(name.removeprefix(OTHER_INDEX))
            info = replace(index, scope=hybrid.info.scope)  # only the documents that the server's name shows
            return Search(self.cluster, info, encoder_for(info, None), settings=settings)
        condition = system(name)
        settings = condition.search_settings(settings, 0)
        return Search(
            self.cluster, hybrid.info, hybrid.encoder, condition.mode, condition.feedback, settings=settings
        )


def interleaved(lists: Sequence[Sequence[str]], count: int) -> list[str]:
    """Return the documents of the lists interleaved, best first, up to `count` different ones."""
    doc_ids = chain.from_iterable(zip_longest(*lists))
    return list(dict.fromkeys(doc_id for doc_id in doc_ids if doc_id is not None))[:count]


def blind_order(doc_ids: Sequence[str], seed: str) -> list[str]:
    """Return documents in a pseudo-random order that depends only on the seed."""
    return sorted(doc_ids, key=lambda doc_id: blake2b(f"{seed} {doc_id}".encode(), digest_size=8).digest())


SHOWN_RULES = 500
MEASURED = Compared(("bm25", "hybrid-stock", "hybrid"), measures=("nDCG@10", "RR@10"))
QueryText = Annotated[str, Field(min_length=1, max_length=1_000)]
Judge = Annotated[str, Field(pattern=r"^[\w-]{1,40}$", description="a name; letters, digits, - and _")]
DocumentId = Annotated[str, Field(min_length=1, max_length=512)]
FOLDER = Path(__file__).parent / "static"
CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
PageWork: TypeAlias = Callable[[Progress], dict[str, Any]]
"""A function that reports its progress and returns JSON values."""


class CompareRequest(BaseModel):
    """The body of `/compare`."""

    query: QueryText = Field(description="what a user types")
    systems: list[str] = Field(min_length=1, max_length=4, description="names that GET /compare lists")
    k: int = Field(10, ge=1, le=50, description="how many hits of each")


class QueriesRequest(BaseModel):
    """The body of `/judging/queries`."""

    queries: list[QueryText] = Field(min_length=1, max_length=10_000, description="queries to be judged")


class NextRequest(BaseModel):
    """The body of `/judging/next`."""

    judge: Judge
    skip: list[str] = Field([], max_length=10_000, description="ids of queries to leave out")
    query_id: str | None = Field(None, description="this query, judged or not; None: the next one")


class GradesRequest(BaseModel):
    """The body of `/judging/grades`."""

    judge: Judge
    query_id: str = Field(description="as /judging/next names it")
    grades: dict[DocumentId, Literal[0, 1]] = Field(
        min_length=1, max_length=100, description="document id -> 1 relevant, 0 not"
    )


class TaskRequest(BaseModel):
    """The body of `/tasks`."""

    task: Literal["tune", "reset", "evaluate"] = Field(description="what to do with the judgements")


class RuleRequest(BaseModel):
    """The body of `/rules`."""

    rule: dict[str, Any] = Field(description="a rule, as a line of `hybridr rules INDEX export`")
    by: Judge


class RuleNames(BaseModel):
    """The body of `/rules/remove`."""

    names: list[str] = Field(min_length=1, max_length=1_000, description="of rules")
    by: Judge


def open_workbench(
    settings: ServeSettings,
    *,
    cluster: Cluster | None = None,
    search: SearchSettings | None = None,
    progress: Progress = silent,
) -> Server:
    """Return the server of `open_server` with the page at `/`, which without an index explains what it needs.
    Raises the errors of `open_server`.
    """
    added = partial(add_workbench, settings=settings, cluster=cluster)
    return open_server(settings, cluster=cluster, search=search, progress=progress, added=added)


def add_workbench(
    app: FastAPI, searches: Searches | None, settings: ServeSettings, cluster: Cluster | None
) -> None:
    """Add the page and the routes that it calls."""
    paths = {"/": "index.html"} | {f"/page/{file.name}": file.name for file in sorted(FOLDER.glob("page.*"))}
    for path, name in paths.items():
        app.add_api_route(path, partial(page_file, name), include_in_schema=False)
    if searches is None or cluster is None:
        return
    comparison = SideBySide(searches)

    def judgements() -> Judgements:  # an alias may move to the vectors of another source
        """Return the judgements of the source whose vectors the alias stands for now."""
        return Judgements.of(searches.now.info)

    judgements()  # raises at once for a name that no index can have

    @app.get("/compare", summary="The systems that can be compared", dependencies=SAME_SITE)
    def systems() -> Response:
        return json_response({"index": comparison.hybrid.info.name, "systems": comparison.names()})

    @app.post("/compare", summary="The best documents by several systems", dependencies=SAME_SITE)
    def compare(body: CompareRequest) -> Response:
        return json_response(comparison.lists(body.query, body.systems, body.k))

    add_judging(app, comparison, judgements)
    add_rule_editing(app, cluster, str(settings.index), comparison)
    add_tasks(app, PageWorks(cluster, str(settings.index), comparison, judgements))


def require_same_site(request: Request) -> None:
    """Raise Refused for a request that a browser sends from another site's page."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Refused(403, "this was sent by another site's page")


SAME_SITE = [Depends(require_same_site)]


def add_judging(app: FastAPI, comparison: SideBySide, judgements: Callable[[], Judgements]) -> None:
    """Add `/judging` and the routes that collect and export judgements."""

    @app.get("/judging", summary="How far the judging is, and how far people agree", dependencies=SAME_SITE)
    def progress() -> Response:
        return json_response(judgements().progress_report())

    @app.post("/judging/queries", summary="Add queries to be judged", dependencies=SAME_SITE)
    def queries(body: QueriesRequest) -> Response:
        store = judgements()
        return json_response({"added": store.add_queries(body.queries), **store.progress_report()})

    @app.post("/judging/next", summary="A query and its documents, shuffled", dependencies=SAME_SITE)
    def next_query(body: NextRequest) -> Response:
        store = judgements()
        judge_grades = store.grades_by(body.judge)
        excluded_ids = {*judge_grades, *body.skip} if body.query_id is None else set()
        queries = [query for query in store.queries() if body.query_id in (None, query.query_id)]
        query = next((query for query in queries if query.query_id not in excluded_ids), None)
        if query is None:
            return json_response({"query": None})
        documents = comparison.pool(query.text, body.judge)
        grades = judge_grades.get(query.query_id, {})
        return json_response(
            {"query": query.text, "query_id": query.query_id, "documents": documents, "grades": grades}
        )

    @app.post("/judging/grades", summary="Keep a person's grades of one query", dependencies=SAME_SITE)
    def grades(body: GradesRequest) -> Response:
        hits = hits_by_id(comparison.cluster, comparison.hybrid.info, list(body.grades), {"_source": False})
        shown_ids = {hit["_id"] for hit in hits}
        if unknown := sorted(set(body.grades) - shown_ids):
            raise NotFound(f"the index has no document '{unknown[0][:100]}'", hint="grade what was shown")
        store = judgements()
        store.store_grades(body.judge, body.query_id, body.grades)
        return json_response(store.progress_report())

    @app.get("/judging/export", summary="All judgements as a BEIR folder, zipped", dependencies=SAME_SITE)
    def export() -> Response:
        return Response(judgements().zip_bytes(), media_type="application/zip")


def add_rule_editing(app: FastAPI, cluster: Cluster, index: str, comparison: SideBySide) -> None:
    """Add `/rules`: the rules of the index, and changes to them."""

    @app.get("/rules", summary="The rules of the index", dependencies=SAME_SITE)
    def rules() -> Response:
        return json_response(shown_rules(fetch_rules(cluster, index)))

    @app.post("/rules", summary="Add a rule, or change the one of its name", dependencies=SAME_SITE)
    def add(body: RuleRequest) -> Response:
        return reopened(
            add_rules(cluster, index, [read_rule(body.rule, "this rule")], by=signature(cluster, body.by))
        )

    @app.post("/rules/remove", summary="Take rules away", dependencies=SAME_SITE)
    def remove(body: RuleNames) -> Response:
        return reopened(remove_rules(cluster, index, body.names, by=signature(cluster, body.by)))

    def reopened(change: RulesChange) -> Response:
        """Reopen the searches with the changed rules, and return the response."""
        comparison.searches.reopen()
        return json_response(shown_rules(change.now) | {"missing": list(change.missing)})


def shown_rules(version: RulesVersion) -> dict[str, Any]:
    """Return the newest rules as the page shows them."""
    newest = [rule.to_json() for rule in reversed(version.rules[-SHOWN_RULES:])]
    left_out = dict(version.left_out)
    return {"version": version.version, "total": len(version.rules), "rules": newest, "left_out": left_out}


@dataclass
class PageWorks:
    """The tasks behind the page's buttons, for the index name that the server was started with."""

    cluster: Cluster
    index: str
    comparison: SideBySide
    judgements: Callable[[], Judgements]

    @property
    def judged_queries(self) -> JudgedQueries:
        """Return the judgements stored on this machine."""
        return JudgedQueries(self.judgements().folder)

    def tune(self, progress: Progress) -> dict[str, Any]:
        """Tune how the retrievers are combined, and reopen the server's search with the result."""
        judgements, encoder = self.judged_queries.read(), self.comparison.hybrid.encoder
        search = without_chain(self.comparison.searches.settings)
        tuning = tune(self.cluster, self.index, judgements, encoder=encoder, search=search, progress=progress)
        self.comparison.searches.reopen()
        choice = tuning.choice
        assert choice is not None
        bounds = f"{choice.gain:+.4f} [{choice.low:+.4f}, {choice.high:+.4f}]"
        settings_in_use = "; ".join(tuning.in_use) or "the defaults: nothing was shown to be better"
        summary = f"{choice.queries} judged queries. Gain of {choice.measure} on unseen queries: {bounds}."
        return {"said": f"{summary} In use from now on: {settings_in_use}.", "applied": choice.applied}

    def reset(self, progress: Progress) -> dict[str, Any]:
        """Undo tuning, and reopen the server's search with the defaults."""
        result = reset_tuning(self.cluster, self.index)
        self.comparison.searches.reopen()
        return {"said": "nothing was tuned" if result.tuned is None else "the defaults rank again"}

    def evaluate(self, progress: Progress) -> dict[str, Any]:
        """Evaluate BM25, OpenSearch's own hybrid search and the default."""
        queries, qrels = self.judged_queries.read()
        check_collection(self.cluster, resolve(self.cluster, self.index), qrels)
        searches = {name: self.comparison.search(name) for name in MEASURED.systems}
        evaluation = evaluate_searches(searches, queries, qrels, MEASURED, progress)
        columns, rows = evaluation.table(bounds=True)
        return {"said": f"{evaluation.queries} judged queries", "columns": columns, "rows": rows}


def add_tasks(app: FastAPI, works: PageWorks) -> None:
    """Add `/tasks`."""
    tasks = Tasks()
    work_by_name: dict[str, PageWork] = {"tune": works.tune, "reset": works.reset, "evaluate": works.evaluate}

    @app.get("/tasks", summary="The task under way, or the last one", dependencies=SAME_SITE)
    def state() -> Response:
        return json_response(tasks.state)

    @app.post("/tasks", summary="Tune, evaluate or take back what was tuned", dependencies=SAME_SITE)
    def start(body: TaskRequest) -> Response:
        tasks.start(body.task, work_by_name[body.task])
        return json_response(tasks.state, 202)


def page_file(name: str) -> Response:
    """Return a file of the page as a response."""
    file = FOLDER / name
    media_type = f"{CONTENT_TYPES[file.suffix]}; charset=utf-8"
    return Response(read_within(file), media_type=media_type, headers=HEADERS)


class Tasks:
    """The running task of the page, or the last one, as JSON values."""

    def __init__(self) -> None:
        self._state: dict[str, Any] = {"state": "none"}
        self._lock = Lock()

    @property
    def state(self) -> dict[str, Any]:
        """Return the `task`, its `state` (none, running, done or failed), its progress and its result or
        error.
        """
        with self._lock:
            return dict(self._state)

    def start(self, name: str, work: PageWork) -> None:
        """Start a task in a thread. Raises Refused (409) while another one runs."""
        with self._lock:
            if self._state["state"] == "running":
                raise Refused(409, f"'{self._state['task']}' is under way", "one task at a time: wait for it")
            self._state = {"task": name, "state": "running"}
        Thread(target=self._run, args=(work,), name=f"hybridr-{name}", daemon=True).start()

    def _run(self, work: PageWork) -> None:
        """Run the work of a task, and keep its result or error as the state."""
        try:
            self._tell(state="done", result=work(self._progress))
        except HybridrError as error:
            self._tell(state="failed", error=error.message, hint=error.hint)
        except Exception:
            LOGGER.exception("a task of the page failed")
            self._tell(state="failed", error="the server failed", hint="the server's log names the error")

    def _progress(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Keep the progress of the task in the state."""
        self._tell(stage=stage, done=done, total=total)

    def _tell(self, **facts: Any) -> None:
        """Update the state of the task."""
        with self._lock:
            self._state |= facts
