"""Parses a client's own query and brings its scores to the scale of the plain query.

The scale is measured once for each shape of queries, which is a query without its text.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import chain
from threading import Lock, Thread
from typing import Any, NamedTuple

import orjson

from ..cluster.connection import Cluster
from ..cluster.record import IndexInfo
from ..cluster.retrievers.lexical import PLACE, Template
from ..cluster.word_fields import query_analyzer_of
from ..errors import ClusterError, DownloadError
from ..files.remembered import known_scales, remember_scales
from ..indexing.terms.terms import Analysis, Word
from ..languages import has_visible_text
from .calibration import PlainQuery, Probes, document_probes, measure_template_scale, template_field_probes
from .clauses import VECTOR_QUERIES, NotRanked, ParsedQuery, QueryReader, scores_as
from .fusions import CompiledQuery, SplitQuery, filtered_query, scaled_query
from .settings import RecallMode

MAX_SHAPES, MAX_WAITING, MAX_SHAPE_BYTES = 1_000, 100, 10_000
REMEASURE_S = 3600.0  # until a scale is measured again; the old one is used meanwhile
AT_ONCE, PAUSE_FACTOR = 100, 4.0
"""Shapes measured without a pause; then each pause is this many times as long as the measurement."""
TEXT_KEYS, SHORT_TEXT = ("query", "value", "wildcard"), 2
SHORTHAND_KINDS = tuple(
    "match match_phrase match_phrase_prefix match_bool_prefix term prefix wildcard fuzzy".split()
)
"""Kinds of queries whose field may hold the text alone, in place of an object of options."""
EXACT_KINDS = frozenset("term prefix wildcard fuzzy".split())
CONDITIONS = ("filter", "must_not", "minimum_should_match")
DEMANDS = ("operator", "default_operator", "minimum_should_match", "_name")
SPELLING_OPTIONS = tuple(
    "fuzziness max_expansions prefix_length fuzzy_transpositions fuzzy_rewrite "
    "fuzzy_max_expansions fuzzy_prefix_length".split()
)
"""Options that match words of another spelling. They are left out of probes: 50 such searches take a cluster
seconds, and scores without them are nearly the same (.92 to .94 on four collections)."""
NEVER_PROBED = VECTOR_QUERIES | frozenset(
    "script percolate more_like_this regexp wrapper template has_child has_parent index".split()
)
"""Queries that are never probed, because a server would send them 50 times with its own rights: vectors,
scripts, patterns, and look-ups in other documents or indices (a `terms` look-up has an `index`)."""
CLAUSES_OF_SYNONYMS, CLAUSES_OF_FUZZY_WORD = 3, 50  # clauses that a cluster makes of one word
BAD_REQUEST = 400


def query_shape(query: Any, texts: Sequence[str], kind: str = "") -> Any:
    """Return a query with `{{query}}` instead of its texts, without parts that only say which documents
    match.

    `kind` is the name under which the query stands. Below some kinds a text alone may stand for the options
    (`"match": {"title": "red shoes"}`).
    """
    if isinstance(query, list):
        return [query_shape(part, texts) for part in query]
    if not isinstance(query, Mapping):
        return query
    left_out: Sequence[str] = (*DEMANDS, *SPELLING_OPTIONS) if isinstance(query.get("query"), str) else ()
    left_out = CONDITIONS if {"must", "should"} & query.keys() else left_out
    shape = {}
    for name, part in query.items():
        if name in left_out:
            continue
        if isinstance(part, str) and (name in TEXT_KEYS or kind in SHORTHAND_KINDS):
            # One or two letters may be part of any word.
            typed = (text for text in texts if part == text or (len(text) > SHORT_TEXT and text in part))
            text = next(typed, None)
            shape[name] = part if text is None else part.replace(text, PLACE)
        else:
            shape[name] = query_shape(part, texts, name)
    return shape


def with_text(query: Any, old: str, new: str, parents: tuple[str, ...] = ()) -> Any:
    """Return a query that searches for the text `new` wherever it searched for exactly the text `old`.

    `parents` are the names under which the query stands. A condition on exact values, such as a `term` in a
    `filter`, stays as it is, also if its value equals the text.
    """
    if isinstance(query, list):
        return [with_text(part, old, new, parents) for part in query]
    if not isinstance(query, Mapping):
        return query
    is_condition = not {"filter", "must_not"}.isdisjoint(parents) and not EXACT_KINDS.isdisjoint(parents)
    may_be_text = bool(parents) and parents[-1] in SHORTHAND_KINDS
    return {
        name: new
        if part == old and not is_condition and (name in TEXT_KEYS or may_be_text)
        else with_text(part, old, new, (*parents, name))
        for name, part in query.items()
    }


def clauses_per_word(info: IndexInfo, field: str) -> int:
    """Return an upper bound on the clauses that the cluster makes of one word of a text in a field.

    That is one clause, or more for an analyser that the index defines itself, since it may add synonyms.
    """
    analyser = query_analyzer_of(info, field)
    is_custom = any(key.startswith(f"index.analysis.analyzer.{analyser}.") for key in info.settings)
    return CLAUSES_OF_SYNONYMS if is_custom or info.mapping_of(field).get("type") == "alias" else 1


def max_leaf_clauses(query: Any, words: int, per_word: Mapping[str, int], parent: str = "") -> int:
    """Return an upper bound on the clauses that the cluster makes of a query for a text of `words` words.

    `per_word` bounds the clauses of a word by field; a word with fuzziness counts as fifty. A pattern may
    name several fields; no field means all fields, or `parent`, the name under which the query stands, if
    that is a field. A text alone may stand for its options (`"match": {"title": "red shoes"}`).
    """
    if isinstance(query, list):
        return sum(max_leaf_clauses(clause, words, per_word) for clause in query)
    if not isinstance(query, Mapping):
        return 0
    if not isinstance(query.get("query"), str):
        short = [
            name for name, clause in query.items() if isinstance(clause, str) and parent.startswith("match")
        ]
        count = sum(max_leaf_clauses(clause, words, per_word, name) for name, clause in query.items())
        return 1 + words * sum(per_word.get(name, CLAUSES_OF_SYNONYMS) for name in short) + count
    fields = query.get("fields") or [query.get("default_field", parent if parent in per_word else "*")]
    reads_signs = "default_operator" in query  # fuzziness holds only for words that end with ~
    is_fuzzy = "~" in query["query"] or (query.get("fuzziness") is not None and not reads_signs)
    clauses: list[int] = []
    for pattern in (str(field).partition("^")[0] for field in fields):
        matching = [count for field, count in per_word.items() if fnmatchcase(field, pattern)]
        clauses += matching if "*" in pattern else [per_word.get(pattern, CLAUSES_OF_SYNONYMS)]
    return words * (CLAUSES_OF_FUZZY_WORD * len(clauses) if is_fuzzy else sum(clauses))


class ShapeScale(NamedTuple):
    """The factor by which scores of a shape are divided (0 if unknown), the time of its measurement, and the
    shape.

    The shape is not stored on disk, because it may contain words that users typed.
    """

    scale: float
    at: float
    shape: bytes = b""


class Shapes:
    """The scales of one index's query shapes, for the last 1,000 that were asked.

    In the background, a thread measures a shape when it is first seen; after a hundred shapes it works a
    fifth of the time, so that shapes that never repeat cost a cluster little. Measured scales are stored on
    this machine for the next server. Without `background`, up to 1,000 shapes are measured at once.
    """

    def __init__(
        self, cluster: Cluster, info: IndexInfo, plain: PlainQuery, *, background: bool = False
    ) -> None:
        self.cluster, self.info, self.plain, self.background = cluster, info, plain, background
        self._lock, self._working, self._recalled = Lock(), False, not background
        self._known: OrderedDict[str, ShapeScale] = OrderedDict()
        self._waiting: OrderedDict[bytes, None] = OrderedDict()
        self._probes, self._probed_at = list[Probes](), 0.0

    @property
    def waiting(self) -> int:
        """Return the number of shapes that are waiting to be measured."""
        return len(self._waiting)

    def scale(self, query: Mapping[str, Any], texts: Sequence[str]) -> float | None:
        """Return the number that divides the scores of a client's query, to bring them to the scale of BM25.

        It is 0 if it cannot be measured, None if it is not measured yet.
        """
        shape = orjson.dumps(query_shape(query, texts), option=orjson.OPT_SORT_KEYS)
        if len(shape) > MAX_SHAPE_BYTES:
            return 0.0
        with self._lock:
            self._load_stored_scales()
            scale = self._known.pop(key := sha256(shape).hexdigest(), None)
            if scale:
                self._known[key] = scale._replace(shape=shape)  # the last one asked; recalled without it
            if self.background and (scale is None or scale.at + REMEASURE_S < time.monotonic()):
                self._queue(shape)
        if scale is None and not self.background and len(self._known) < MAX_SHAPES:
            return self._measure(shape)
        return scale.scale if scale else None

    def take_over(self, earlier: Shapes) -> None:
        """Take over the known and waiting shapes of `earlier`, whose index was served until now, and stop its
        background work.

        Scales of another index are measured again in the background, most recently asked shapes first.
        """
        with earlier._lock:
            recent, waiting = list(earlier._known.items()), list(earlier._waiting)
            earlier._waiting.clear()
        with self._lock:
            self._load_stored_scales()
            if earlier._name == self._name:
                self._known.update(recent)
            for shape in [*waiting, *(scale.shape for _, scale in reversed(recent) if scale.shape)]:
                if sha256(shape).hexdigest() not in self._known:
                    self._queue(shape)

    @property
    def _name(self) -> str:
        """The key under which the scales of this index and these fields are stored."""
        return " ".join([self.info.uuid, *self.plain.fields])

    def _load_stored_scales(self) -> None:
        """Read, once, the scales that another server on this machine measured for the index."""
        if not self._recalled:
            self._recalled = True
            stored = known_scales(self._name).items()
            self._known.update((key, ShapeScale(scale, time.monotonic())) for key, scale in stored)

    def _queue(self, shape: bytes) -> None:
        """Queue a shape of queries to be measured by the background thread."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting[shape] = None
            if not self._working:
                self._working = True
                Thread(target=self._work, name="hybridr-shapes", daemon=True).start()

    def _work(self) -> None:
        """Measure the queued shapes, with pauses in between, and store the scales (background thread)."""
        measured_count = 0
        while True:
            with self._lock:
                self._working = bool(self._waiting)
                if not self._waiting:
                    break
                shape = next(iter(self._waiting))
            began = time.monotonic()
            try:
                self._measure(shape)
            except Exception:  # what a cluster refuses now it may answer later
                measured_count = max(measured_count, AT_ONCE)
            with self._lock:
                self._waiting.pop(shape, None)
            measured_count += 1
            if measured_count > AT_ONCE or len(self._known) > AT_ONCE:
                time.sleep(PAUSE_FACTOR * (time.monotonic() - began))
        with suppress(DownloadError):
            remember_scales(self._name, {key: scale.scale for key, scale in self._known.copy().items()})

    def _measure(self, shape: bytes) -> float:
        """Measure and store the scale of a shape. Raises HybridrError if the cluster does not answer."""
        cluster, info = self.cluster, self.info
        try:
            template = Template(orjson.loads(shape))
            never_probed = any(b'"%s":' % name.encode() in shape for name in NEVER_PROBED)
            probes = chain(template_field_probes(cluster, info, self.plain, template), self._documents())
            scale = 0.0 if never_probed else measure_template_scale(cluster, info, probes, template)
        except ClusterError as error:
            if error.status != BAD_REQUEST:
                raise
            scale = 0.0
        with self._lock:
            self._known[sha256(shape).hexdigest()] = ShapeScale(scale, time.monotonic(), shape)
            while len(self._known) > MAX_SHAPES:
                self._known.popitem(last=False)
        return scale

    def _documents(self) -> Iterator[Probes]:
        """Yield probe texts from the index's documents, drawn again after an hour."""
        if not self._probes or self._probed_at + REMEASURE_S < time.monotonic():
            self._probes = list(document_probes(self.cluster, self.info, self.plain))
            self._probed_at = time.monotonic()
        yield from self._probes


UNCHANGED_TEMPLATE_HINT = "--mode lexical asks the template as it stands"
MAX_CHARACTERS = 1_000_000
MAX_SHOWN = 200  # characters of a query that a reason quotes
RELATIVES = ("has_child", "has_parent")
INNER_HITS_KINDS = ("nested", *RELATIVES)


class ClientQueries:
    """Parses queries that clients send to one index, or that a template makes of a text.

    `fields` are those of the lexical search. A text may have `limit` characters. `shapes` know the scales of
    queries of the same shape.
    """

    def __init__(
        self,
        info: IndexInfo,
        fields: Sequence[str],
        analysis: Analysis,
        shapes: Shapes,
        limit: int = MAX_CHARACTERS,
    ) -> None:
        self.analysis, self.shapes, self.limit = analysis, shapes, limit
        types = info.types
        self.reader = QueryReader({*fields, *info.record.fields}, types)
        self.per_word = {field: clauses_per_word(info, field) for field in types}

    def parse(self, query: Any, recall: RecallMode) -> ParsedQuery | NotRanked:
        """Return the text that a query searches for, or why it is not ranked.

        Raises TypeError, ValueError or AttributeError for a malformed query.
        """
        parsed = self.reader.read(query)
        if isinstance(parsed, NotRanked):
            return parsed
        if parsed.required_match and recall == "all":
            return NotRanked(parsed.required_match)
        if len(parsed.text) > self.limit:
            return NotRanked("too_long")
        if not (has_visible_text(parsed.text) and is_unicode(parsed.text)):
            return NotRanked("no_text")
        if parsed.words is None:
            return parsed
        scale = self.shapes.scale(parsed.words, parsed.strings)
        if scale is None:
            return NotRanked("calibrating")
        if not scale:
            shape = orjson.dumps(query_shape(parsed.words, parsed.strings)).decode()[:MAX_SHOWN]
            return NotRanked("scale", shape)
        return parsed._replace(scale=scale)

    def split_query(
        self,
        query: Mapping[str, Any],
        parsed: ParsedQuery,
        *,
        recall: RecallMode = "all",
        single: bool = False,
    ) -> SplitQuery:
        """Return the client's query split into a part that finds hits and a part that scores words, both
        scaled to the plain query.

        `single` says that one query finds and scores, without a `rescore`.
        """
        wrappers = tuple((part, without_inner_hits(outside)) for part, outside in parsed.wrappers)
        only_words_find = recall == "lexical"
        if parsed.words is None:
            leaves = self.max_clauses(query, parsed) if single else 0
            return SplitQuery(
                query,
                leaf_clauses=leaves,
                wrappers=wrappers,
                scale=parsed.scale,
                only_words_find=only_words_find,
            )
        scores_words_alone = scores_as(query, parsed.words) and not wrappers
        sends_words = not (only_words_find and scores_words_alone)  # else the unscaled query scores them
        finding_query, word_query = (
            scaled_query(part, 1 / parsed.scale) for part in (query, without_inner_hits(parsed.words))
        )
        leaves = 0  # counted only if needed: analysing new words costs a request
        if sends_words:
            leaves += self.max_clauses(parsed.words, parsed)
        if single:  # the finding query has the client's filters too
            leaves += self.max_clauses(query, parsed)
        finding_scale = 0.0 if sends_words else parsed.scale
        return SplitQuery(
            finding_query, word_query, leaves, finding_scale, wrappers, parsed.scale, only_words_find
        )

    def max_clauses(self, query: Mapping[str, Any], parsed: ParsedQuery) -> int:
        """Return an upper bound on the Lucene clauses that this query expands to.

        Analysed words are counted, because languages such as Chinese have no spaces.
        """
        by_field = Counter(word.field for word in self.words(parsed.text))
        return max_leaf_clauses(query, max(len(parsed.text.split()), *by_field.values(), 0), self.per_word)

    def words(self, text: str) -> Sequence[Word]:
        """Return the words of a text as the searched fields analyse them."""
        return self.analysis.of([text])[0].words


class TemplateQueries(ClientQueries):
    """The queries that a user's template makes of texts, for one index; built like `ClientQueries`."""

    def __init__(self, *parts: Any, template: Template) -> None:
        super().__init__(*parts)
        self.template = template

    def parse_text(self, text: str) -> ParsedQuery | NotRanked:
        """Return the template's query for a text, parsed, or why it is not ranked."""
        try:
            return self.parse(self.template.filled(text), "lexical")
        except (TypeError, ValueError, AttributeError):
            return NotRanked("unreadable")

    def with_template(self, text: str, parsed: ParsedQuery, query: CompiledQuery) -> CompiledQuery:
        """Return the compiled query extended by the template's query for the text.

        The template's query finds documents instead of the plain words, and only it does if it requires
        matches. Its filters also restrict the neighbours by vector.
        """
        client_query = self.split_query(without_inner_hits(self.template.filled(text)), parsed)
        filters = [part for part in (query.filter, dense_filter(parsed)) if part]
        client_query = client_query._replace(
            finding_query=filtered_query(client_query.finding_query, query.filter)
        )
        return replace(
            query.with_client_query(client_query),
            filter={"bool": {"filter": filters}} if filters else None,
            only_words_find=query.only_words_find or parsed.required_match is not None,
        )


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8, which a lone surrogate cannot."""
    try:
        text.encode()  # looking at each character in Python takes a hundred times as long
    except UnicodeEncodeError:
        return False
    return True


def dense_filter(parsed: ParsedQuery) -> dict[str, Any] | None:
    """Return the filters of a parsed query for the dense retriever; None if there are none."""
    if not parsed.filters and not parsed.excluded:
        return None
    parts = {"filter": parsed.filters, "must_not": parsed.excluded}
    copied = {name: [without_inner_hits(query) for query in part] for name, part in parts.items()}
    return {"bool": {name: part for name, part in copied.items() if part}}


def without_inner_hits(query: Any) -> Any:
    """Return a copy of a query without `inner_hits`, which a request may name only once."""
    return change_parts(
        query,
        INNER_HITS_KINDS,
        lambda body: {name: value for name, value in body.items() if name != "inner_hits"},
    )


def change_parts(query: Any, kinds: Collection[str], change: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return a copy of a query in which `change` has changed the bodies of all queries of these kinds, which
    contain a query themselves.
    """
    if isinstance(query, list):
        return [change_parts(part, kinds, change) for part in query]
    if not isinstance(query, Mapping):
        return query
    parts = {}
    for name, value in query.items():
        is_changed = name in kinds and isinstance(value, Mapping) and "query" in value
        parts[name] = change_parts(change(value) if is_changed else value, kinds, change)
    return parts
