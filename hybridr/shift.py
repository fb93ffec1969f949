"""How far an index is from another collection: words, kinds of queries, judgements and vectors."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .cluster.connection import Cluster
from .cluster.fields import choose_text_fields
from .cluster.reading import sample_documents, text_of
from .encoding.contract import Encoder
from .errors import DataError, SettingsError
from .evaluation.measures import hole
from .evaluation.shift_statistics import (
    LEAST_VECTORS,
    Plane,
    Vectors,
    alignment,
    domain_accuracy,
    knn_source,
    principal_plane,
    query_type,
    uniformity,
    weighted_jaccard,
    word_counts,
)
from .files.formats import document_of, read_corpus, read_jsonl, read_qrels, read_run
from .files.pictures import svg
from .progress import Progress, silent

HOLE_DEPTH, NEIGHBOURS, LEAST_TEXT = 10, 100, 40
ENCODED_AT_ONCE = 64
YU = "Yu et al. 2022, COCO-DR"
XIONG = "Xiong et al. 2021, ANCE"
XIN = "Xin et al. 2022, MoDIR"
WANG = "Wang and Isola 2020"
NEED_VECTORS = {
    "domain_accuracy_documents": XIN,
    "domain_accuracy_queries": XIN,
    "knn_source": XIN,
    "alignment": WANG,
    "uniformity_source": WANG,
    "uniformity_target": WANG,
}
T = TypeVar("T")


class Statistic(NamedTuple):
    """One statistic; value None: `note` says what it needs. `paper` is where it comes from."""

    name: str
    value: float | None
    note: str
    paper: str


@dataclass(frozen=True)
class Shift:
    """The distance of `target` from `source`; pairs of numbers are (source, target)."""

    source: str
    target: str
    documents: tuple[int, int]
    queries: tuple[int, int]
    encoded: tuple[int, int]
    encoder: str | None
    seed: int
    findings: tuple[Statistic, ...]
    plane: Plane | None = field(repr=False)

    def value(self, name: str) -> float | None:
        """Give one statistic by its name."""
        return next(finding.value for finding in self.findings if finding.name == name)

    def to_json(self) -> dict[str, Any]:
        """Give everything but the plane as JSON values."""
        kept = {name: value for name, value in vars(self).items() if name not in ("findings", "plane")}
        stated = {
            one.name: {"value": one.value, "note": one.note, "paper": one.paper} for one in self.findings
        }
        return {**kept, "findings": stated}


@dataclass(frozen=True)
class ShiftSettings:
    """What is read of both sides: `sample` documents and queries of each, `vectors` of them encoded.

    `fields` are those of the index. Query files are BEIR folders, JSONL or one query per line; `run` and
    `qrels` (TREC or BEIR) belong to the index.
    """

    fields: Sequence[str] = ()
    queries: Path | None = None
    source_queries: Path | None = None
    run: Path | None = None
    qrels: Path | None = None
    sample: int = 1000
    vectors: int = 300
    seed: int = 13


def measure_shift(
    cluster: Cluster,
    index: str,
    source: str,
    settings: ShiftSettings | None = None,
    *,
    encoder: Encoder | None = None,
    progress: Progress = silent,
) -> Shift:
    """Compare an index with `source`: a BEIR folder, or else another index. Nothing is written.

    Samples are random, repeatable and capped. Raises NotFound, SettingsError and DataError.
    """
    given = settings or ShiftSettings()
    if (given.run is None) != (given.qrels is None):
        raise SettingsError("Hole@k needs both a run and its qrels", hint="--run FILE --qrels FILE")
    size, seed = given.sample, given.seed
    asked = read_query_texts(given.queries, size, seed) if given.queries else []
    theirs = read_query_texts(given.source_queries, size, seed) if given.source_queries else []
    target = sample_index(cluster, index, size, seed, fields=given.fields, queries=asked, progress=progress)
    if Path(source).is_dir():
        origin = sample_folder(Path(source), size, seed, queries=theirs)
    else:
        origin = sample_index(cluster, source, size, seed, queries=theirs, progress=progress)
    judged = None
    if given.run and given.qrels:
        judged = hole(read_run(given.run), read_qrels(given.qrels), HOLE_DEPTH)
    return compare_samples(
        origin, target, encoder, hole_share=judged, vectors=given.vectors, seed=seed, progress=progress
    )


class TextSample(NamedTuple):
    """Texts of a collection that are not empty, and queries to it."""

    name: str
    documents: list[str]
    queries: list[str]


def compare_samples(
    source: TextSample,
    target: TextSample,
    encoder: Encoder | None = None,
    *,
    hole_share: float | None = None,
    vectors: int = 300,
    seed: int = 13,
    progress: Progress = silent,
) -> Shift:
    """Compute every statistic that the samples and the encoder allow."""
    documents = [side.documents[:vectors] for side in (source, target)]
    texts = _textual(source, target, hole_share)
    plane: Plane | None = None
    if encoder:
        described, plane = _vectorial(source, target, encoder, vectors, seed, progress)
    else:
        described = [Statistic(name, None, "needs an encoder", paper) for name, paper in NEED_VECTORS.items()]
    return Shift(
        source.name,
        target.name,
        (len(source.documents), len(target.documents)),
        (len(source.queries), len(target.queries)),
        (len(documents[0]), len(documents[1])) if encoder else (0, 0),
        encoder.fingerprint if encoder else None,
        seed,
        (*texts, *described),
        plane,
    )


def _textual(source: TextSample, target: TextSample, hole_share: float | None) -> list[Statistic]:
    words = weighted_jaccard(word_counts(source.documents), word_counts(target.documents))
    found = [
        Statistic("word_jaccard", words, "1 the same words, 0 none in common; MS MARCO against BEIR: .35", YU)
    ]
    if source.queries and target.queries:
        types = weighted_jaccard(*(Counter(map(query_type, side.queries)) for side in (source, target)))
        note = "9 types by the first English word; MS MARCO against BEIR: .32"
        found.append(Statistic("query_type_jaccard", types, note, YU))
    else:
        found.append(Statistic("query_type_jaccard", None, "needs queries of both", YU))
    note = "share of the top 10 that nobody judged" if hole_share is not None else "needs a run and its qrels"
    found.append(Statistic(f"hole@{HOLE_DEPTH}", hole_share, note, XIONG))
    return found


def _vectorial(
    source: TextSample, target: TextSample, encoder: Encoder, count: int, seed: int, progress: Progress
) -> tuple[list[Statistic], Plane]:
    ours, theirs = target.documents[:count], source.documents[:count]
    pairs = [halves(text) for text in ours if len(text) >= LEAST_TEXT]
    parts = [theirs, ours, [left for left, _ in pairs], [right for _, right in pairs]]
    asked = [source.queries[:count], target.queries[:count]]
    total, steps = sum(map(len, [*parts, *asked])), 0

    def encode(texts: list[str], call: Callable[[Sequence[str]], Vectors]) -> Vectors:
        nonlocal steps
        found = [np.zeros((0, encoder.dim), dtype=np.float32)]
        for start in range(0, len(texts), ENCODED_AT_ONCE):
            found.append(call(texts[start : start + ENCODED_AT_ONCE]))
            steps += len(texts[start : start + ENCODED_AT_ONCE])
            progress("encode", steps, total)
        return np.concatenate(found)

    away, here, left, right = (encode(texts, encoder.encode_documents) for texts in parts)
    questions = [encode(texts, encoder.encode_queries) for texts in asked]
    found = [
        *_told_apart(away, here, questions, seed),
        _neighbours(questions[1], away, here),
        _aligned(left, right),
        _spread("uniformity_source", away),
        _spread("uniformity_target", here),
    ]
    return found, principal_plane(away, here)


def _told_apart(away: Vectors, here: Vectors, questions: list[Vectors], seed: int) -> list[Statistic]:
    names = ("domain_accuracy_documents", "domain_accuracy_queries")
    groups = {names[0]: (away, here), names[1]: (questions[0], questions[1])}
    enough = {name: pair for name, pair in groups.items() if min(map(len, pair)) >= LEAST_VECTORS}
    found = dict(zip(enough, domain_accuracy(list(enough.values()), seed), strict=True)) if enough else {}
    return [
        Statistic(
            name,
            found.get(name),
            f".5 cannot be told apart, 1 fully; {min(map(len, groups[name]))} of each, linear classifier"
            if name in found
            else f"needs {LEAST_VECTORS} of both",
            XIN,
        )
        for name in names
    ]


def _neighbours(questions: Vectors, away: Vectors, here: Vectors) -> Statistic:
    if not len(questions):
        return Statistic("knn_source", None, "needs queries of the index", XIN)
    size = min(len(away), len(here))
    # The more of all documents are called near, the closer the share is to one half whatever they are.
    k = max(1, min(NEIGHBOURS, size // 3))
    note = f"share of source among the {k} nearest of each query, {size} documents of each"
    return Statistic("knn_source", knn_source(questions, away, here, k), note, XIN)


def _aligned(left: Vectors, right: Vectors) -> Statistic:
    if not len(left):
        return Statistic("alignment", None, f"needs texts of {LEAST_TEXT} characters", WANG)
    note = f"squared distance of the halves of {len(left)} documents of the index; less is better"
    return Statistic("alignment", alignment(left, right), note, WANG)


def _spread(name: str, vectors: Vectors) -> Statistic:
    value = uniformity(vectors) if len(vectors) > 1 else None
    return Statistic(name, value, "0 all the same, towards -4 spread evenly", WANG)


def draw_plane(found: Shift, file: Path) -> None:
    """Draw source and target documents as points, as SVG; the same input gives the same bytes.

    Raises MissingExtra without matplotlib, SettingsError without vectors or for another suffix than .svg.
    """
    if found.plane is None:
        raise SettingsError("the plot needs vectors", hint="--encoder FOLDER")
    with svg(file, (6, 5)) as axes:
        sides = ((found.source, found.plane.source, "#888888"), (found.target, found.plane.target, "#c2410c"))
        for name, points, colour in sides:
            axes.scatter(
                points[:, 0], points[:, 1], s=9, alpha=0.6, color=colour, linewidths=0, label=label_of(name)
            )
        axes.set(
            title=f"two principal components, {found.plane.explained:.0%} of the variance",
            xticks=[],
            yticks=[],
        )
        axes.legend()


def label_of(name: str) -> str:
    """Keep matplotlib from reading a name as formula or as hidden."""
    return name.replace("$", r"\$").lstrip("_") or "?"


def sample_index(
    cluster: Cluster,
    index: str,
    size: int,
    seed: int,
    *,
    fields: Sequence[str] = (),
    queries: Sequence[str] = (),
    progress: Progress = silent,
) -> TextSample:
    """Read up to `size` documents of an index at random. Raises DataError when none has text."""
    info = cluster.index_info(index)
    chosen = choose_text_fields(cluster, info, fields)
    found = sample_documents(cluster, info, size, fields=chosen, seed=seed, progress=progress)
    texts = [text_of(document.source, chosen) for document in found]
    return capped(index, texts, size, queries, seed)


def sample_folder(folder: Path, size: int, seed: int, *, queries: Sequence[str] = ()) -> TextSample:
    """Read up to `size` documents of a BEIR folder at random, and its queries when none are given."""
    texts = drawn((document_of(record, folder).contents for record in read_corpus(folder)), size, seed)
    if not queries and (folder / "queries.jsonl").is_file():
        queries = drawn(query_texts(folder), size, seed)
    return capped(folder.name, texts, size, queries, seed)


def capped(name: str, texts: Sequence[str], size: int, queries: Sequence[str], seed: int) -> TextSample:
    """Drop empty texts, cap and shuffle both, so that a prefix is a sample. Raises DataError without text."""
    present = [text for text in texts if text.strip()]
    if not present:
        raise DataError(f"'{name}' has no document with text")
    return TextSample(name, shuffled(present, size, seed), shuffled(queries, size, seed))


def shuffled(texts: Sequence[str], size: int, seed: int) -> list[str]:
    """Draw up to `size` texts in random order: equal texts and seeds give equal orders."""
    return random.Random(seed).sample(texts, min(size, len(texts)))


def read_query_texts(path: Path, size: int, seed: int) -> list[str]:
    """Read up to `size` queries at random: of a BEIR folder, of JSONL with `text`, or one per line.

    Raises DataError when there are none.
    """
    if not (found := drawn(query_texts(path), size, seed)):
        raise DataError(f"{path} holds no queries")
    return found


def query_texts(path: Path) -> Iterator[str]:
    """Yield the queries of a file or BEIR folder that have text."""
    file = path / "queries.jsonl" if path.is_dir() else path
    if file.suffix == ".jsonl":
        texts: Iterable[str] = (str(record.get("text") or "") for _, record in read_jsonl(file))
    else:
        texts = _read_lines(file)
    return (text.strip() for text in texts if text.strip())


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None


def drawn(items: Iterable[T], size: int, seed: int) -> list[T]:
    """Draw `size` items without holding the others (reservoir sampling, Vitter 1985)."""
    chance = random.Random(seed)
    kept: list[T] = []
    for place, item in enumerate(items):
        if place < size:
            kept.append(item)
        elif (slot := chance.randrange(place + 1)) < size:
            kept[slot] = item
    return kept


def halves(text: str) -> tuple[str, str]:
    """Cut a text at the first blank behind its middle, else in the middle."""
    middle = len(text) // 2
    blank = text.find(" ", middle)
    cut = blank if 0 < blank < len(text) - 1 else middle
    return text[:cut].strip(), text[cut:].strip()
