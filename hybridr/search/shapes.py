"""Shapes of clients' queries (queries without their text), each measured once for its scale against the plain
query.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import chain
from threading import Lock, Thread
from typing import Any, NamedTuple

import orjson

from ..cluster.connection import Cluster
from ..cluster.fields import mapping_of
from ..cluster.record import IndexInfo
from ..cluster.retrievers.lexical import PLACE, Template
from ..cluster.word_fields import query_analyzer_of
from ..errors import ClusterError, DownloadError
from ..files.remembered import remember_scales, scales_known
from .calibration import PlainQuery, Probes, probes_in_fields, probes_of, scale_among
from .clauses import OF_VECTORS

MOST_SHAPES, MOST_WAITING, MOST_BYTES = 1_000, 100, 10_000
FITTED_S = 3600.0  # after that a scale is measured anew, and used meanwhile
AT_ONCE, REST = 100, 4.0  # shapes fitted without a rest; then so many times as long as each took
TYPED, LETTERS = ("query", "value", "wildcard"), 2
SHORT = tuple("match match_phrase match_phrase_prefix match_bool_prefix term prefix wildcard fuzzy".split())
"""Kinds of queries whose field may hold the text alone, in place of an object of options."""
CONDITIONS = ("filter", "must_not", "minimum_should_match")
DEMANDS = ("operator", "default_operator", "minimum_should_match", "_name")
SPELT = tuple(
    "fuzziness max_expansions prefix_length fuzzy_transpositions fuzzy_rewrite "
    "fuzzy_max_expansions fuzzy_prefix_length".split()
)
"""By what words match that are spelt otherwise: without it scores are nearly the same (.92 to .94 of them on
four collections), and fifty such searches take a cluster seconds."""
NEVER_ASKED = OF_VECTORS | frozenset(
    "script percolate more_like_this regexp wrapper template has_child has_parent index".split()
)
"""What is not measured, for a server asks by its own rights, fifty times, what any client may send: vectors,
scripts, patterns, and what looks into other documents or indices (a `terms` look-up has an `index`)."""
SYNONYMS, EXPANDED = 3, 50  # clauses that a cluster makes of one word
NO_QUERY = 400


def query_shape(query: Any, texts: Sequence[str], kind: str = "") -> Any:
    """Return a query with `{{query}}` instead of its texts, without parts that only say which documents
    match.

    A text alone may stand for the options inside a query of a `kind` (`"match": {"title": "red shoes"}`).
    """
    if isinstance(query, list):
        return [query_shape(part, texts) for part in query]
    if not isinstance(query, Mapping):
        return query
    left_out: Sequence[str] = (*DEMANDS, *SPELT) if isinstance(query.get("query"), str) else ()
    left_out = CONDITIONS if {"must", "should"} & query.keys() else left_out
    shape = {}
    for name, part in query.items():
        if name in left_out:
            continue
        if isinstance(part, str) and (name in TYPED or kind in SHORT):  # a letter or two may stand anywhere
            typed = (text for text in texts if part == text or (len(text) > LETTERS and text in part))
            text = next(typed, None)
            shape[name] = part if text is None else part.replace(text, PLACE)
        else:
            shape[name] = query_shape(part, texts, name)
    return shape


def with_text(query: Any, old: str, new: str, kind: str = "") -> Any:
    """Return a query with a text replaced wherever the query searches for exactly that text."""
    if isinstance(query, list):
        return [with_text(part, old, new) for part in query]
    if not isinstance(query, Mapping):
        return query
    return {
        name: new if part == old and (name in TYPED or kind in SHORT) else with_text(part, old, new, name)
        for name, part in query.items()
    }


def clauses_per_word(info: IndexInfo, field: str) -> int:
    """Return an upper bound on the clauses that the cluster makes of one word of a text in a field.

    That is one clause, or more for an index with its own analyser, whose synonyms may have several words.
    """
    analyser = query_analyzer_of(info, field)
    own = any(key.startswith(f"index.analysis.analyzer.{analyser}.") for key in info.settings)
    return SYNONYMS if own or mapping_of(info, field).get("type") == "alias" else 1


def leaves_in(query: Any, words: int, per_word: Mapping[str, int], inside: str = "") -> int:
    """Return an upper bound on the clauses that the cluster makes of a query for a text of `words` words.

    `per_word` bounds the clauses of a word by field; a word with fuzziness counts as fifty. A pattern may
    name several fields; no field means all, unless the query is `inside` one. A text alone may stand for its
    options (`"match": {"title": "red shoes"}`).
    """
    if isinstance(query, list):
        return sum(leaves_in(clause, words, per_word) for clause in query)
    if not isinstance(query, Mapping):
        return 0
    if not isinstance(query.get("query"), str):
        short = [
            name for name, clause in query.items() if isinstance(clause, str) and inside.startswith("match")
        ]
        count = sum(leaves_in(clause, words, per_word, name) for name, clause in query.items())
        return 1 + words * sum(per_word.get(name, SYNONYMS) for name in short) + count
    named = query.get("fields") or [query.get("default_field", inside if inside in per_word else "*")]
    of_words = "default_operator" not in query  # else a sign says which words may be spelt otherwise
    misspelt = (of_words and query.get("fuzziness") is not None) or "~" in query["query"]
    clauses: list[int] = []
    for name in (str(field).partition("^")[0] for field in named):
        matching = [count for field, count in per_word.items() if fnmatchcase(field, name)]
        clauses += matching if "*" in name else [per_word.get(name, SYNONYMS)]
    return words * (EXPANDED * len(clauses) if misspelt else sum(clauses))


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
        """Return the factor by which the scores of a query are divided.

        That is 0 if it cannot be measured, None if it is not measured yet.
        """
        shape = orjson.dumps(query_shape(query, texts), option=orjson.OPT_SORT_KEYS)
        if len(shape) > MOST_BYTES:
            return 0.0
        with self._lock:
            self._recall()
            scale = self._known.pop(key := sha256(shape).hexdigest(), None)
            if scale:
                self._known[key] = scale._replace(shape=shape)  # the last one asked; recalled without it
            if self.background and (scale is None or scale.at + FITTED_S < time.monotonic()):
                self._ask_for(shape)
        if scale is None and not self.background and len(self._known) < MOST_SHAPES:
            return self._fit(shape)
        return scale.scale if scale else None

    def follow(self, before: Shapes) -> None:
        """Take over the shapes of an index that was opened before; `before` does no more work.

        Scales of another index are measured again in the background, most recently asked shapes first.
        """
        with before._lock:
            recent, waiting = list(before._known.items()), list(before._waiting)
            before._waiting.clear()
        with self._lock:
            self._recall()
            if before._name == self._name:
                self._known.update(recent)
            for shape in [*waiting, *(scale.shape for _, scale in reversed(recent) if scale.shape)]:
                if sha256(shape).hexdigest() not in self._known:
                    self._ask_for(shape)

    @property
    def _name(self) -> str:
        """The key under which the scales of this index and these fields are stored."""
        return " ".join([self.info.uuid, *self.plain.fields])

    def _recall(self) -> None:
        """Read, once, the scales that another server on this machine measured for the index."""
        if not self._recalled:
            self._recalled = True
            before = scales_known(self._name).items()
            self._known.update((key, ShapeScale(scale, time.monotonic())) for key, scale in before)

    def _ask_for(self, shape: bytes) -> None:
        """Queue a shape of queries to be measured by the background thread."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting[shape] = None
            if not self._working:
                self._working = True
                Thread(target=self._work, name="hybridr-shapes", daemon=True).start()

    def _work(self) -> None:
        """Measure the queued shapes, with rests in between, and store the scales (background thread)."""
        fitted = 0
        while True:
            with self._lock:
                self._working = bool(self._waiting)
                if not self._waiting:
                    break
                shape = next(iter(self._waiting))
            began = time.monotonic()
            try:
                self._fit(shape)
            except Exception:  # what a cluster refuses now it may answer later
                fitted = max(fitted, AT_ONCE)
            with self._lock:
                self._waiting.pop(shape, None)
            fitted += 1
            if fitted > AT_ONCE or len(self._known) > AT_ONCE:
                time.sleep(REST * (time.monotonic() - began))
        with suppress(DownloadError):
            remember_scales(self._name, {key: scale.scale for key, scale in self._known.copy().items()})

    def _fit(self, shape: bytes) -> float:
        """Measure and store the scale of a shape. Raises HybridrError if the cluster does not answer."""
        cluster, info = self.cluster, self.info
        try:
            template = Template(orjson.loads(shape))
            unasked = any(b'"%s":' % name.encode() in shape for name in NEVER_ASKED)
            probes = chain(probes_in_fields(cluster, info, self.plain, template), self._documents())
            scale = 0.0 if unasked else scale_among(cluster, info, probes, template)
        except ClusterError as error:
            if error.status != NO_QUERY:
                raise
            scale = 0.0
        with self._lock:
            self._known[sha256(shape).hexdigest()] = ShapeScale(scale, time.monotonic(), shape)
            while len(self._known) > MOST_SHAPES:
                self._known.popitem(last=False)
        return scale

    def _documents(self) -> Iterator[Probes]:
        """Yield probe texts from the index's documents, drawn again after an hour."""
        if not self._probes or self._probed_at + FITTED_S < time.monotonic():
            self._probes = list(probes_of(self.cluster, self.info, self.plain))
            self._probed_at = time.monotonic()
        yield from self._probes
