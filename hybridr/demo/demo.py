"""The demo: everything from an empty machine to hybrid search, on the documentation of the running Python's
standard library, which needs no download.

Docstrings are read by `ast` from the sources, nothing is imported. Known-item queries are summary lines,
each removed from its document, so that it must be found by the rest of the docstring.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..cluster.embedded.process import start
from ..cluster.embedded.state import NodeState
from ..cluster.loading import Loading
from ..cluster.settings import ClusterSettings, LoadSettings, NodeSettings
from ..encoders.adapters.ensemble import EnsembleSettings
from ..encoders.export.exporting import second_retriever
from ..errors import DataError, HybridrError
from ..evaluation.evaluation import Evaluation, JudgedQueries
from ..files.formats import write_beir
from ..files.local import data_folder
from ..index import Connection
from ..indexing.reindexing import ReindexResult
from ..records import Document, Hit, Hits, Progress, Qrels, Query, silent
from ..search.systems import Compared
from ..training.settings import AdaptSettings

if TYPE_CHECKING:
    from ..training.adaptation import AdaptResult

INDEX = "pydocs"
QUESTION = "change the extension of a file name"
UNANSWERED, AT_LEAST = "prune a rose bush in winter", 0.95
"""A question that this corpus cannot answer, and the least confidence of hits shown for it."""
QUERIES = 500
"""Number of queries, fewer if too few summaries are suitable. 200 are too few to detect .01 nDCG."""


@dataclass(frozen=True)
class Demonstration:
    """Results of all steps of the demo, and the seconds of each step.

    `foreign` are the hits of a question without an answer.
    """

    node: NodeState
    loading: Loading
    adaptation: AdaptResult
    reindexing: ReindexResult
    hits: list[Hit]
    foreign: Hits
    evaluation: Evaluation
    seconds: dict[str, float]


def demonstrate(
    *,
    documents: int = 260,
    node_settings: NodeSettings | None = None,
    adapt_settings: AdaptSettings | None = None,
    progress: Progress = silent,
) -> Demonstration:
    """Start a node, load the Python documentation, adapt the encoder, reindex, search, evaluate.

    `adapt_settings` are those of `adapt`, except the folder of the encoder. The node keeps running. Steps
    that an earlier run completed are skipped. Raises the errors of the steps.
    """
    requested_node, step_seconds = node_settings or NodeSettings(), dict[str, float]()

    @contextmanager
    def timing(step: str) -> Iterator[None]:
        """Measure the time of the block as `step`."""
        started = time.monotonic()
        yield
        step_seconds[step] = time.monotonic() - started

    folder = data_folder() / "demo"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = (adapt_settings or AdaptSettings()).model_copy(update={"out": folder / "encoder"})
    download = Thread(target=fetch_encoders, args=(settings,), daemon=True)
    with timing("node"), ThreadPoolExecutor(1) as pool:  # the corpus and the encoders need no node
        download.start()
        collection = pool.submit(
            lambda: write_beir(folder, *read_pydocs(max_documents=documents, queries=QUERIES))
        )
        node = start(requested_node, progress=progress)
        index = Connection.connect(ClusterSettings(url=node.url)).index(INDEX)
    with timing("load"):
        collection.result()
        analyzer = (
            "standard" if requested_node.is_elasticsearch else None
        )  # analysers of languages are in a module
        load_settings = LoadSettings(index=INDEX, language="en", analyzer=analyzer)
        loading = index.load(folder, load_settings, progress=progress)
    with timing("adapt"):
        download.join()
        adaptation = index.adapt(settings, progress=progress)
    with timing("reindex"):
        reindexing = index.reindex(progress=progress)
    with timing("search"):
        search = index.open_search()
        strict_search = search.requiring(AT_LEAST) if search.answers.calibration else search
        hits, foreign = search(QUESTION, 2), strict_search(UNANSWERED, 2)
    with timing("evaluate"):
        compared = Compared(("bm25", "dense", "hybrid-plain", "hybrid"))
        evaluation = index.evaluate(JudgedQueries(folder), compared, progress=progress)
    return Demonstration(node, loading, adaptation, reindexing, hits, foreign, evaluation, step_seconds)


def fetch_encoders(settings: AdaptSettings) -> None:
    """Download the encoders of the ensemble, while the node starts. `adapt` reports any error."""
    with suppress(HybridrError):
        second_retriever(settings.base)
        second_retriever(EnsembleSettings(**(settings.objective_settings or {})).second)


MIN_WORDS = 20
"""Fewest words of a docstring, and of its rest without the summary; shorter ones say too little."""

SUMMARY_WORDS = (5, 25)
"""Fewest and most words of a summary that serves as a query."""

SKIPPED = frozenset(
    "dist-packages distutils ensurepip idlelib lib2to3 pydoc_data site-packages test tests turtledemo".split()
)
"""Folders with tests, third-party packages, or modules that later Python versions removed."""

UNFIT = re.compile(
    r"\b(deprecated|obsolete|override|overridden|see|same as|like|similar to|above|below|this)\b"
    r"|[=|<>\[*]|``|:$|^\W",
    re.IGNORECASE,
)
"""Marks a summary that is boilerplate, a signature, or points at another text instead of standing alone."""

Described: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Entry(NamedTuple):
    """A documented object; `body` is the docstring without its first paragraph, the `summary`."""

    name: str
    title: str
    summary: str
    body: str

    @property
    def docstring(self) -> str:
        """Return summary and body."""
        return f"{self.summary}\n\n{self.body}".strip()


def read_pydocs(
    *, max_documents: int = 1500, queries: int = 200, seed: int = 13, library: Path | None = None
) -> tuple[list[Document], list[Query], Qrels]:
    """Return the corpus, its known-item queries and their qrels, the same on every call with one Python.

    The documents are a sample by `seed` if the library holds more; there are fewer queries than requested if
    too few summaries are suitable. `library` is a folder of sources, None that of the running Python. Takes
    about 2 s. Raises DataError if the folder has no documented sources.
    """
    root = library or Path(sysconfig.get_paths()["stdlib"])
    names: set[str] = set()
    texts: set[str] = set()
    unique = []
    for entry in _read_library(root):
        text = _folded(entry.docstring)
        if entry.name not in names and text not in texts:
            unique.append(entry)
        names.add(entry.name)
        texts.add(text)
    if not unique:
        raise DataError(
            f"no documented Python sources under {root}",
            hint="use a Python that is installed with its .py files, or: hybridr load FOLDER --index NAME",
        )
    entries = _sample(unique, max_documents, seed)
    occurrences = Counter(_folded(part) for entry in unique for part in (entry.summary, entry.body))
    suitable = [
        entry
        for entry in entries
        if is_query(entry) and occurrences[_folded(entry.summary)] == occurrences[_folded(entry.body)] == 1
    ]
    targets = sorted(_sample(suitable, queries, seed + 1))
    query_names = {entry.name for entry in targets}
    documents = [
        Document(entry.name, entry.body if entry.name in query_names else entry.docstring, entry.title)
        for entry in sorted(entries)
    ]
    topics = [Query(f"q{i:03d}", entry.summary.rstrip(".")) for i, entry in enumerate(targets, 1)]
    qrels = {topic.query_id: {entry.name: 1} for topic, entry in zip(topics, targets, strict=True)}
    return documents, topics, qrels


def is_query(entry: Entry) -> bool:
    """Return whether the summary, without the object's name, is a query that the docstring answers."""
    low, high = SUMMARY_WORDS
    long_enough = low <= len(entry.summary.split()) <= high and len(entry.body.split()) >= MIN_WORDS
    own_name = entry.name.rsplit(".", 1)[-1]
    names_itself = re.search(rf"\b{re.escape(own_name)}\b", entry.summary, re.IGNORECASE) is not None
    repeated = _folded(entry.summary) in _folded(entry.body)
    return long_enough and not names_itself and not repeated and not UNFIT.search(entry.summary)


def _read_library(root: Path) -> Iterator[Entry]:
    """Yield the documented entries of all public Python files below a folder."""
    for relative, path in sorted((path.relative_to(root), path) for path in root.rglob("*.py")):
        parts = relative.with_suffix("").parts
        if any(part in SKIPPED or (part.startswith("_") and part != "__init__") for part in parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # unreadable, or written for another version of Python
        name = ".".join(part for part in parts if part != "__init__")
        yield from _entries(tree, (name,))


def _entries(node: Described, names: tuple[str, ...]) -> Iterator[Entry]:
    """Yield an entry for a documented module, class or function, and for all definitions inside."""
    docstring = ast.get_docstring(node) or ""
    if len(docstring.split()) >= MIN_WORDS:
        summary, _, body = docstring.partition("\n\n")
        yield Entry(".".join(names), _title(node, names), " ".join(summary.split()), body.strip())
    if isinstance(node, (ast.Module, ast.ClassDef)):
        for child in _definitions(node):
            yield from _entries(child, (*names, child.name))


def _definitions(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public definitions of a scope, including those inside `if` and `try`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if not child.name.startswith("_"):
                yield child
        elif isinstance(child, (ast.If, ast.Try)):
            yield from _definitions(child)


def _title(node: Described, names: tuple[str, ...]) -> str:
    """Return a title such as `pathlib > Path > touch()`; analysers read a dotted name as one word."""
    path = " > ".join((*names[0].split("."), *names[1:]))
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return path
    signature = node.args
    arguments = [
        argument.arg for argument in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)
    ]
    return f"{path}({', '.join(name for name in arguments if name not in ('self', 'cls'))})"


def _sample(entries: list[Entry], size: int, seed: int) -> list[Entry]:
    """Return the `size` entries with the smallest hash of their name, so that a new Python changes few."""
    return sorted(entries, key=lambda entry: hashlib.sha256(f"{seed}:{entry.name}".encode()).digest())[:size]


def _folded(text: str) -> str:
    """Return a text's words in lower case, joined by blanks, to compare texts."""
    return " ".join(re.findall(r"\w+", text.lower()))
