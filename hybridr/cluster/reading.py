"""Reads documents of an index that is in use: all of them, those by id, or a random sample.

All documents are read with one point in time per shard, sorted by `_seq_no`. This order is cheap on every
supported version (`_doc` loses documents across shards, `_shard_doc` is missing before 3.x). An update moves
its document to the end, so an interrupted reader can resume after the last number. In a shrunk index several
documents of a shard may have one number; no page ends between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..errors import AccessDenied, ClusterError, Unreachable
from ..records import Progress, silent
from .connection import PLAIN, Cluster, path_of
from .failures import BREAKER, TOO_LARGE
from .field_values import require_stored_source
from .record import IndexInfo
from .routing import copies_preference
from .semantic import plain_source

LOST_VIEW = "search_context_missing_exception"
PAGE, ID_PAGE, CHUNK = 250, 1_000, 1_000
DEEPEST = 10_000
"""Most documents of a sample, if the index allows a search as many hits."""
T = TypeVar("T")
Key: TypeAlias = "tuple[str, str]"
"""Id and routing ("" if none) of a document; several shards may hold the same id."""


class SourceDocument(NamedTuple):
    """A stored document with version, sequence number and routing, for safe copies and updates."""

    doc_id: str
    source: dict[str, Any]
    version: int
    seq_no: int
    primary_term: int
    routing: str | None

    @property
    def key(self) -> Key:
        """Return id and routing, which name one document."""
        return self.doc_id, self.routing or ""

    @property
    def as_read(self) -> dict[str, Any]:
        """Return the options of a bulk action that fails if the document has changed since it was read."""
        return {"routing": self.routing, "if_seq_no": self.seq_no, "if_primary_term": self.primary_term}


@dataclass
class Position:
    """Position of a reader in an index: shard -> highest `_seq_no` read; empty at the start."""

    seq_no: dict[int, int] = field(default_factory=dict)

    @classmethod
    def at(cls, position: Position | None) -> Position:
        """Return a copy of a position; for None the start."""
        return cls(dict(position.seq_no) if position else {})


class Share(NamedTuple):
    """A range of documents by position: after `since` (None: the start), up to `until` (None: the end)."""

    since: Position | None = None
    until: Position | None = None


ALL = Share()


def read_pages(
    cluster: Cluster,
    index: str | IndexInfo,
    *,
    page: int = 500,
    share: Share = ALL,
    position: Position | None = None,
    where: dict[str, Any] | None = None,
    fields: Sequence[str] | None = None,
) -> Iterator[list[SourceDocument]]:
    """Yield pages of the documents of an index in the range `share`.

    Reading begins after `position`, if given, which each page moves on. Only matches of the query `where` are
    read. `fields` limits `_source`; None reads all of it. Raises DataError if `_source` is disabled.
    """
    info = index if isinstance(index, IndexInfo) else cluster.index_info(index)
    require_stored_source(info)
    position, until = position or Position.at(share.since), share.until
    for shard in shards_shown(cluster, info):
        last = until.seq_no.get(shard, -1) if until else None
        if last is not None and position.seq_no.get(shard, -1) >= last:
            continue
        range_filter: dict[str, Any] = {"range": {"_seq_no": {} if last is None else {"lte": last}}}
        body = {
            "size": min(page + 1, info.result_window),  # the last document shows where the page may end
            # A range filter is cheaper than search_after on large shards.
            "query": {"bool": {"filter": [range_filter, where] if where else [range_filter]}},
            "sort": [{"_seq_no": {"order": "asc", "unmapped_type": "long"}}],  # an index may map nothing
            **hit_options(fields, info),
        }
        yield from _read_shard(cluster, info, shard, body, position)


def shards_shown(cluster: Cluster, info: IndexInfo) -> list[int]:
    """Return the numbers of the shards in an index's scope: those of its routing values, else all."""
    shards = list(range(info.shards))
    if not info.scope.routing or len(shards) == 1:
        return shards
    numbers = []
    for shard in shards:
        answer = cluster.search(info, {"size": 0}, {"preference": f"_shards:{shard}"})
        with cluster.reading_answer("_search"):
            if answer["_shards"]["total"]:
                numbers.append(shard)
    return numbers


def settled_position(
    cluster: Cluster, index: str | IndexInfo, since: Position | None = None
) -> Position | None:
    """Return for each shard the `_seq_no` up to which every operation is finished and visible to searches.

    The highest visible `_seq_no` is not enough, since an operation can become visible after a later one. Up
    to the global checkpoint all are finished. If nothing was written since the settled position `since`, no
    refresh is needed. Return None without the rights to read the checkpoint or to refresh.
    """

    def global_checkpoints() -> Position:
        """Return the global checkpoint of each primary shard. Raises Unreachable if a shard is missing."""
        answer = cluster.request("GET", path_of(info.name, "_stats", "docs"), params={"level": "shards"})
        shards = answer["indices"].get(info.name, {"shards": {}})["shards"]
        # A searchable snapshot always reports 0. It takes no writes, so its commit holds all operations.
        is_snapshot = info.settings.get("index.store.type") == "remote_snapshot"
        checkpoints = {
            int(number): copy["commit"]["user_data"]["local_checkpoint"]
            if is_snapshot
            else copy["seq_no"]["global_checkpoint"]
            for number, copies in shards.items()
            for copy in copies
            if copy["routing"]["primary"] and "seq_no" in copy
        }
        if missing := info.shards - len(checkpoints):
            raise Unreachable(f"{missing} shards of '{info.name}' are not there yet", hint="hybridr doctor")
        return Position({number: max(int(checkpoint), -1) for number, checkpoint in checkpoints.items()})

    try:
        info = index if isinstance(index, IndexInfo) else cluster.index_info(index)
        if (position := cluster.patiently(global_checkpoints)) != since:
            cluster.refresh(info.name)
    except AccessDenied:
        return None
    return position


def documents_between(cluster: Cluster, index: str, shard: int, first: int, last: int) -> int:
    """Count a shard's documents whose `_seq_no` is above `first` and at most `last`."""
    if last <= first:
        return 0
    between = {"range": {"_seq_no": {"gt": first, "lte": last}}}
    return cluster.count(index, between, {"preference": f"_shards:{shard}"})


def hidden_operations(cluster: Cluster, index: str, since: Position, until: Position) -> int:
    """Count the operations between two settled positions that left no document (deletes, overwritten
    versions).

    Every operation takes one `_seq_no`, so 0 proves that nothing was deleted in between. Documents that share
    a number, such as the first ones of a shrunk index, are counted as excess.
    """
    hidden = 0
    for shard, last in until.seq_no.items():
        first = since.seq_no.get(shard, -1)
        hidden += abs(last - first - documents_between(cluster, index, shard, first, last))
    return hidden


def _read_shard(
    cluster: Cluster, info: IndexInfo, shard: int, body: dict[str, Any], position: Position
) -> Iterator[list[SourceDocument]]:
    """Yield the pages of one shard after `position`, which moves on; halve a page that is too large."""
    bounds, preference = body["query"]["bool"]["filter"][0]["range"]["_seq_no"], f"_shards:{shard}"
    bounds["gt"] = position.seq_no.get(shard, -1)
    if (documents := _only_page(cluster, info, body, preference)) is not None:
        if documents:
            yield documents
            position.seq_no[shard] = documents[-1].seq_no
        return
    is_full = True
    while is_full:
        try:
            with cluster.point_in_time(info.name, preference=preference) as pit:
                body["pit"] = {"id": pit, "keep_alive": cluster.view_keep_alive}
                while is_full:
                    documents = view_documents(cluster, info, body)
                    if is_full := len(documents) == body["size"]:
                        documents = _whole_numbers(cluster, info, body, documents)
                    if documents:
                        yield documents
                        position.seq_no[shard] = bounds["gt"] = documents[-1].seq_no
        except ClusterError as error:
            body["size"] = _size_after(error, body["size"])


def _only_page(
    cluster: Cluster, info: IndexInfo, body: dict[str, Any], preference: str
) -> list[SourceDocument] | None:
    """Return the documents of a shard by one search, without a view; None if a page cannot hold them all."""
    number_filter, *where = body["query"]["bool"]["filter"]
    bounds = number_filter["range"]["_seq_no"]
    if not where and "lte" in bounds and bounds["lte"] - bounds["gt"] >= body["size"]:
        return None
    try:
        documents = view_documents(cluster, info, body, preference)
    except ClusterError as error:
        body["size"] = _size_after(error, body["size"])
        return None
    return documents if len(documents) < body["size"] else None


def _size_after(error: ClusterError, size: int) -> int:
    """Return the page size with which reading goes on after an error; raise the error if it cannot go on.

    A node that restarts loses its views: a new one is opened.
    """
    if error.kind == TOO_LARGE and size > 1:
        return size // 2
    if error.kind == LOST_VIEW:
        return size
    raise error


def _whole_numbers(
    cluster: Cluster, info: IndexInfo, body: dict[str, Any], documents: list[SourceDocument]
) -> list[SourceDocument]:
    """Return a full page with all documents of a `_seq_no`, or none of them."""
    last = documents[-1].seq_no
    if complete := [document for document in documents if document.seq_no != last]:
        return complete
    filters = [*body["query"]["bool"]["filter"], {"term": {"_seq_no": last}}]
    last_query = {**body, "query": {"bool": {"filter": filters}}}
    while rest := view_documents(cluster, info, {**last_query, "from": len(documents)}):
        documents += rest
    return documents


def view_documents(
    cluster: Cluster, info: IndexInfo, body: dict[str, Any], preference: str | None = None
) -> list[SourceDocument]:
    """Run a search in the index's scope and return its documents; every shard must answer. Without a point in
    time it asks the copies of `preference`. Raises ClusterError (TOO_LARGE) at once if the node lacks memory.
    """
    without_retries, path, params = cluster.with_patience(0.0), "/_search", PLAIN
    if "pit" not in body:
        path = path_of(info.name, "_search")
        params = PLAIN | copies_preference(cluster.segmented, info.name, preference)

    def ask() -> Any:
        """Search without retries: a node that lacks memory answers 429, like a busy one."""
        try:
            return without_retries.request("POST", path, info.scope.body(body), params, every_shard=True)
        except ClusterError as error:
            if error.kind == BREAKER and body["size"] > 1:
                raise ClusterError(error.message, hint=error.hint, kind=TOO_LARGE) from None
            raise

    answer = cluster.patiently(ask)
    with cluster.reading_answer("_search"):
        return [source_document(hit, info) for hit in answer["hits"]["hits"]]


def hit_options(fields: Sequence[str] | None = None, info: IndexInfo | None = None) -> dict[str, Any]:
    """Return the search body that `source_document` needs; `fields` limits `_source` (None: all of it)."""
    source: Any = True if fields is None else list(fields) or False  # an empty list would mean all fields
    if source and info is not None and info.semantic:
        stored = [semantic.stored for semantic in info.semantic.values()]
        source = {"includes": list(fields or ()), "excludes": stored}
    return {
        "track_total_hits": False,
        "seq_no_primary_term": True,
        "version": True,
        "_source": source,
    }


def random_order_query(query: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return a query that puts the matches of `query` into a random order, fixed by the seed."""
    random_scores = {"random_score": {"seed": seed, "field": "_seq_no"}, "boost_mode": "replace"}
    return {"function_score": {"query": query, **random_scores}}


def source_document(hit: dict[str, Any], info: IndexInfo | None = None) -> SourceDocument:
    """Return the document in a search hit, with the semantic fields of `info` as text. Raises KeyError."""
    source = hit.get("_source", {})
    return SourceDocument(
        hit["_id"],
        plain_source(source, info.semantic) if info else source,
        hit["_version"],
        hit["_seq_no"],
        hit["_primary_term"],
        hit.get("_routing"),
    )


def read_documents(
    cluster: Cluster,
    index: str | IndexInfo,
    *,
    fields: Sequence[str] | None = None,
    progress: Progress = silent,
) -> Iterator[SourceDocument]:
    """Yield every document of an index once, with progress."""
    info = index if isinstance(index, IndexInfo) else cluster.index_info(index)
    total = cluster.count(info)
    done = 0
    progress("read", 0, total)
    for documents in read_pages(cluster, info, fields=fields):
        yield from documents
        done += len(documents)
        progress("read", done, max(total, done))


def sample_documents(
    cluster: Cluster,
    info: IndexInfo,
    size: int,
    *,
    fields: Sequence[str] | None = None,
    seed: int = 13,
    total: int | None = None,
    progress: Progress = silent,
) -> list[SourceDocument]:
    """Return all documents of an index that has at most `size`, else a random sample (at most `DEEPEST`).

    `total` is their number, if known. `fields` limits `_source`; None reads all of it. Raises DataError if
    `_source` is disabled.
    """
    require_stored_source(info)
    if (cluster.count(info) if total is None else total) <= size:
        return [document for page in read_pages(cluster, info, fields=fields) for document in page]
    size = min(size, info.result_window, DEEPEST)
    query = {"query": random_order_query({"match_all": {}}, seed), **hit_options(fields, info)}
    page = PAGE
    while True:
        sample: list[SourceDocument] = []
        try:
            with cluster.point_in_time(info.name, scope=info.scope) as pit:
                query["pit"] = {"id": pit, "keep_alive": cluster.view_keep_alive}
                while len(sample) < size:
                    window = {"from": len(sample), "size": min(page, size - len(sample))}
                    documents = view_documents(cluster, info, query | window)
                    if not documents:
                        break
                    sample += documents
                    progress("sample", len(sample), size)
                return sample
        except ClusterError as error:
            page = _size_after(error, page)


def sources_by_id(
    cluster: Cluster, index: str | IndexInfo, doc_ids: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return id -> source of the documents with these ids, as `documents_in_pages` reads them."""
    pages = documents_in_pages(cluster, index, doc_ids, page=DEEPEST)
    return {document.doc_id: document.source for page in pages for document in page}


def counterparts(
    cluster: Cluster, info: IndexInfo, documents: Sequence[SourceDocument], *, with_source: bool = True
) -> dict[Key, SourceDocument]:
    """Return key of each of `documents` -> the index's document with the same id in the shard of its routing,
    read as by `documents_in_pages`. Those that the index lacks are left out.
    """
    ids = list({document.doc_id: None for document in documents})
    pages = documents_in_pages(cluster, info, ids, page=CHUNK, with_source=with_source)
    stored = {document.key: document for page in pages for document in page}
    key_by_id = {key[0]: key for key in stored}
    unmatched = [d.key for d in documents if d.doc_id in key_by_id and d.key not in stored]
    stored_keys = {key: key_by_id[key[0]] for key in unmatched if info.shards == 1}
    for part in groups_of(unmatched if info.shards > 1 else [], CHUNK):
        stored_keys |= counterpart_keys(cluster, info, part)  # another routing may lead to the same shard
    sought_keys = {document.key: stored_keys.get(document.key, document.key) for document in documents}
    return {key: stored[stored_key] for key, stored_key in sought_keys.items() if stored_key in stored}


def counterpart_keys(cluster: Cluster, info: IndexInfo, keys: Sequence[Key]) -> dict[Key, Key]:
    """Return key -> key of the index's document with the same id, in the shard to which the routing leads;
    its routing may differ. Keys without such a document are left out.
    """
    if info.mappings.get("_routing", {}).get("required"):
        keys = [(doc_id, routing) for doc_id, routing in keys if routing]
    if not keys:
        return {}
    documents = [{"_id": doc_id, **({"routing": routing} if routing else {})} for doc_id, routing in keys]
    path, params = path_of(info.name, "_mget"), {"realtime": "false", "_source": "false"}
    answer = cluster.request("POST", path, {"docs": documents}, params, every_shard=True)
    with cluster.reading_answer("_mget"):
        return {
            key: (document["_id"], document.get("_routing") or "")
            for key, document in zip(keys, answer["docs"], strict=True)
            if document.get("found")
        }


def hits_by_id(
    cluster: Cluster,
    index: str | IndexInfo,
    doc_ids: Sequence[str],
    parts: Mapping[str, Any],
    query: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the search hits of the documents with these ids, by as many searches as the result window needs.

    An id that several shards hold gives several hits. `parts` are added to each search body. `query`, if any,
    scores the documents or leaves some out.
    """
    limit = index.result_window if isinstance(index, IndexInfo) else DEEPEST
    hits: list[dict[str, Any]] = []
    queue = groups_of(doc_ids, max(1, limit))
    while queue:
        group = queue.pop(0)
        ids: dict[str, Any] = {"ids": {"values": list(group)}}
        full_query = {"bool": {"must": [query], "filter": [ids]}} if query else ids
        body = {**parts, "query": full_query, "track_total_hits": True}
        search = partial(cluster.search, index, params=params, every_shard=True)
        try:
            answer = search({"size": len(group), **body})["hits"]
            total = answer.get("total", {}).get("value", 0)
            if len(group) < total <= limit:
                answer = search({"size": total, **body})["hits"]
        except ClusterError as error:
            if error.kind not in (TOO_LARGE, BREAKER) or len(group) == 1:
                raise
            total = limit + 1
        if len(group) > 1 and total > limit:
            queue[:0] = [group[: len(group) // 2], group[len(group) // 2 :]]
        else:
            hits += answer["hits"]
    return hits


def documents_in_pages(
    cluster: Cluster, index: str | IndexInfo, doc_ids: Sequence[str], *, page: int, with_source: bool = True
) -> Iterator[list[SourceDocument]]:
    """Yield the documents with these ids in pages of `page` ids, read by searches, so that the right to read
    the index is enough.

    Missing documents are left out. For whole documents of an index with semantic fields pass its `IndexInfo`.
    """
    info = index if isinstance(index, IndexInfo) else None
    for group in groups_of(doc_ids, page):
        hits = hits_by_id(cluster, index, group, hit_options(None if with_source else (), info))
        yield [source_document(hit, info) for hit in hits]


def count_missing(cluster: Cluster, index: str | IndexInfo, doc_ids: Collection[str]) -> int:
    """Count the ids without a document that a search of the index finds."""
    unique = sorted(set(doc_ids))
    pages = documents_in_pages(cluster, index, unique, page=CHUNK, with_source=False)
    return len(unique) - len({document.doc_id for page in pages for document in page})


def groups_of(doc_ids: Sequence[T], size: int) -> list[Sequence[T]]:
    """Return document ids in groups of at most `size`."""
    return [doc_ids[start : start + size] for start in range(0, len(doc_ids), size)]
