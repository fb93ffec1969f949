"""Fitting a retriever to documents without labels: which ways rank better than leaving it alone?

    python benchmarks/run.py fitting FOLDER [--form reduced|whole] [--work DIR] [--ways A,B] [--sets A,B]
        [--seed N] [--json FILE]

FOLDER holds collections in BEIR layout. Each is cut as `soup` does, or taken whole, and what is left is the
index: each way is fitted to it, by its documents alone, and ranks it. Ranking is exact; hybrid is BM25 and
vectors by score completion. p is of a paired t against the retriever as it comes. The file has each way of
each collection when it is done; a training goes on in DIR.

Without gradients, from one encoding: `centre` (the mean of the documents is taken off), `top` (and three
main directions), `whiten` (covariance shrunk by half), `rare` (tokens weighted by their rarity in the index),
`near` (a document and its neighbours). By a low-rank change: `span` (the product's), `pairs` (title and
text, or the first sentence and the rest), `kept` (the same, and the retriever's own scores), `made` (queries
made from documents, and its own scores). Of queries alone: `asked` (their own documents and the retriever's
scores), `taught` (the hybrid's scores). A dose is the share of the new vectors beside the retriever's.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray

from conditions import read_form
from hybridr.adaptation.loop import Processes, train
from hybridr.adaptation.objectives.span import SpanContrast, span_loss
from hybridr.adaptation.settings import SpanSettings
from hybridr.encoding.packaged import minilm
from hybridr.encoding.retriever import Retriever
from hybridr.encoding.sentence_transformers import read_retriever
from hybridr.encoding.tokens import padded
from hybridr.evaluation.bm25 import Bm25
from hybridr.evaluation.label_free import SENTENCE_END, draw_probes
from hybridr.files.manifest import fingerprint
from hybridr.records import Document
from rankings import completed
from studies.methods import Collection, read_collection
from studies.soup import compared
from study import LEAD, RESULTS, Record, Section, kept, listed, machine_of, table, write_result
from workshop import DEPTH, Vectors, dense_run, encoded, hybrid_run, nearest, reporter

Array: TypeAlias = NDArray[np.float32]
FIVE = ["cranfield", "npl", "fiqa_mini", "tldr_cmd", "squadshifts_amazon"]
HEADING, LEAST = 8, 4  # words of a heading where nothing ends one; words that either side of a pair has
PROBES = 600
AT_ONCE = 1000
SHARPNESS = 2.0  # of the hybrid's scores, which are standardised


class Bench(NamedTuple):
    """A collection and the retriever as it comes."""

    retriever: Retriever
    found: Collection
    vectors: Vectors
    form: Record
    work: Path
    way: str = ""

    def encoded(self, retriever: Retriever) -> Vectors:
        """Encode documents and queries by another retriever."""
        return encoded(retriever, self.found.corpus, self.found.queries, self.form["max_tokens"])


Way: TypeAlias = Callable[[Bench], Mapping[str, Vectors]]


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections and the ways."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="collections in BEIR layout")
    parser.add_argument("--sets", type=listed, default=FIVE, metavar="A,B", help="some of them")
    parser.add_argument("--ways", type=listed, default=list(WAYS), metavar="A,B", help="some of them")
    parser.add_argument("--work", type=Path, default=Path("fitting-work"), metavar="DIR")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--form", default="reduced")
    parser.add_argument("--json", type=Path, metavar="FILE")


def measure(given: argparse.Namespace) -> None:
    """Measure every way on every collection; the file has each when it is done."""
    form = read_form("fitting", given.form) | {"seed": given.seed}
    given.json = given.json or RESULTS / f"fitting-{given.form}.json"
    record = kept(given.json, form) or {"settings": form, "sets": {}}

    @functools.cache
    def bench(name: str) -> Bench:
        found = read_collection(given.folder / name, form["queries"], form["documents"])
        retriever = read_retriever(minilm(), max_tokens=form["max_tokens"])
        vectors = known_vectors(retriever, found, form, given.work / f"{name}.npz")
        return Bench(retriever, found, vectors, form, given.work / name)

    for way in given.ways:
        for name in given.sets:
            done = record["sets"].setdefault(name, {})
            if way not in done:
                done[way] = measured(bench(name)._replace(way=way), WAYS[way])
                write_result(given.json, record)
                print(name, way, done[way], flush=True)


def known_vectors(retriever: Retriever, found: Collection, form: Record, file: Path) -> Vectors:
    """Encode documents and queries, unless the file has them: most ways change them and encode nothing."""
    if not file.is_file():
        vectors = encoded(retriever, found.corpus, found.queries, form["max_tokens"])
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, documents=vectors.documents, queries=vectors.queries)
    known = np.load(file)
    return Vectors(known["documents"], known["queries"])


def measured(bench: Bench, way: Way) -> Record:
    """Rank by each dose of a way; means, and p against the retriever as it comes."""
    before = time.process_time()
    doses = {"0": bench.vectors, **way(bench)}
    told: Record = {"cpu_s": round(time.process_time() - before, 1), "queries": len(bench.found.queries)}
    for name, ranking in {"dense": dense_run, "hybrid": hybrid_run}.items():
        runs = {dose: ranking(one, bench.found.corpus, bench.found.queries) for dose, one in doses.items()}
        told[name] = compared(runs, bench.found, "0")
    return told


def unit(rows: Array) -> Array:
    """Scale rows to length 1."""
    scaled: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-9)
    return scaled


def mixed(bench: Bench, other: Vectors) -> dict[str, Vectors]:
    """Mix other vectors with those of the retriever, by doses."""
    pairs = list(zip(bench.vectors, other, strict=True))
    return {
        str(dose): Vectors(*(unit((1 - dose) * old + dose * unit(new)) for old, new in pairs))
        for dose in bench.form["doses"]
    }


def centre(bench: Bench) -> dict[str, Vectors]:
    """Take the mean of the documents off."""
    mean = bench.vectors.documents.mean(0)
    return mixed(bench, Vectors(*(one - mean for one in bench.vectors)))


def top(bench: Bench) -> dict[str, Vectors]:
    """Take the mean and the three main directions of the documents off (Mu and Viswanath 2018)."""
    mean = bench.vectors.documents.mean(0)
    main = np.linalg.svd(bench.vectors.documents - mean, full_matrices=False)[2][:3]  # (3, dim)
    return mixed(bench, Vectors(*(one - mean - (one - mean) @ main.T @ main for one in bench.vectors)))


def whiten(bench: Bench) -> dict[str, Vectors]:
    """Whiten by the documents' covariance, shrunk by half to a round one."""
    mean = bench.vectors.documents.mean(0)
    covariance = np.cov(bench.vectors.documents, rowvar=False)
    values, axes = np.linalg.eigh((covariance + np.eye(len(mean)) * np.trace(covariance) / len(mean)) / 2)
    matrix = (axes / np.sqrt(values)) @ axes.T
    return mixed(bench, Vectors(*(((one - mean) @ matrix).astype(np.float32) for one in bench.vectors)))


def near(bench: Bench) -> dict[str, Vectors]:
    """Move each document to the mean of its neighbours."""
    documents, count = bench.vectors.documents, bench.form["neighbours"]
    neighbours = np.concatenate(
        [around(documents, start, count) for start in range(0, len(documents), AT_ONCE)]
    )
    return mixed(bench, Vectors(documents[neighbours].mean(1), bench.vectors.queries))


def around(documents: Array, start: int, count: int) -> NDArray[np.int64]:
    """Find the neighbours of some documents, `(AT_ONCE, count)`, none of its own."""
    alike = documents[start : start + AT_ONCE] @ documents.T
    places = np.arange(len(alike))
    alike[places, start + places] = -1
    found: NDArray[np.int64] = np.argpartition(-alike, count, axis=1)[:, :count]
    return found


def rare(bench: Bench) -> dict[str, Vectors]:
    """Pool the states of tokens by how rare they are in the index (Arora et al. 2017)."""
    retriever, limit = bench.retriever, bench.form["max_tokens"]
    sides = [
        [document.contents for document in bench.found.corpus],
        [one.text for one in bench.found.queries],
    ]
    rows = [list(retriever.tokenizer.ids(texts, limit)) for texts in sides]
    counts = np.bincount(np.concatenate(rows[0]), minlength=int(retriever.config.vocab_size))
    weights = 1e-3 / (1e-3 + counts / counts.sum())  # (vocabulary,)
    return mixed(bench, Vectors(*(pooled(retriever, side, weights) for side in rows)))


def pooled(retriever: Retriever, rows: Sequence[Sequence[int]], weights: NDArray[np.float64]) -> Array:
    """Encode rows of ids with weights of tokens, in batches of like lengths."""
    result = np.zeros((len(rows), retriever.dim), dtype=np.float32)
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    for start in range(0, len(order), 32):
        places = order[start : start + 32]
        ids, mask = padded([rows[place] for place in places])
        states = retriever.read(ids, mask)[0]
        result[places] = (states * (weights[ids] * mask)[..., None]).sum(1)
    return result


class PairCorpus:
    """Pairs of texts as rows of ids, in the place of spans."""

    def __init__(
        self, pairs: Sequence[tuple[str, str]], retriever: Retriever, limits: tuple[int, int]
    ) -> None:
        self.sides = [
            list(retriever.tokenizer.ids([pair[side] for pair in pairs], limit))
            for side, limit in enumerate(limits)
        ]

    def __len__(self) -> int:
        return len(self.sides[0])

    def pairs(self, positions: Sequence[int], longest: int, random: np.random.Generator) -> list[list[int]]:
        """Give a1 b1 a2 b2 … of the pairs."""
        return [list(side[position]) for position in positions for side in self.sides]


def heading_and_text(document: Document) -> tuple[str, str]:
    """Part a document into title and text, or first sentence and rest, or first words and rest."""
    if document.title.strip() and document.text.strip():
        return document.title, document.text
    first, *rest = SENTENCE_END.split(document.contents, maxsplit=1)
    if rest and len(first.split()) >= LEAST:
        return first, rest[0]
    words = document.contents.split()
    return " ".join(words[:HEADING]), " ".join(words[HEADING:])


def parted(bench: Bench) -> list[tuple[str, str]]:
    """Give the pairs that the documents hold."""
    found = map(heading_and_text, bench.found.corpus)
    return [pair for pair in found if min(len(side.split()) for side in pair) >= LEAST]


def made_pairs(bench: Bench) -> list[tuple[str, str]]:
    """Give queries that are made from documents, and these."""
    corpus = bench.found.corpus
    probes = draw_probes(corpus, PROBES, bench.form["seed"])
    return [(probe.text, corpus[probe.position].contents) for probe in probes]


class Kept(SpanContrast):
    """Contrast of pairs, and the scores that a teacher gives them (Li and Hoiem 2017)."""

    weight = 0.0
    teacher: Retriever | None = None

    def loss(self, part: list[list[int]]) -> torch.Tensor:
        """Add to the contrast how far the batch's scores are from the teacher's."""
        vectors = self._encoded(part).float()
        contrast = span_loss(vectors, self.settings.temperature)
        if self.teacher is None:
            return contrast
        with torch.no_grad():
            ids, mask = (torch.from_numpy(array) for array in padded(part))
            known = self.teacher(ids, mask)[1]
        now, then = (self.scores(one) for one in (vectors, known))
        apart = sum(divergence(*pair) for pair in ((now, then), (now.T, then.T)))
        return contrast + self.weight * apart / 2

    def scores(self, vectors: torch.Tensor) -> torch.Tensor:
        """Score a batch's pairs, `(n, n)`."""
        scaled = torch.nn.functional.normalize(vectors, dim=-1)
        return scaled[0::2] @ scaled[1::2].T / self.settings.temperature


def divergence(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Give the mean KL of rows of scores from those that are wanted."""
    return torch.nn.functional.kl_div(
        scores.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean"
    )


def low_rank(
    pairs: Callable[[Bench], list[tuple[str, str]]] | None,
    weight: float = 0.0,
) -> Way:
    """Give a way by a low-rank change; `weight` is that of the retriever's own scores."""

    def way(bench: Bench) -> dict[str, Vectors]:
        settings = SpanSettings(**bench.form["low_rank"] | {"seed": bench.form["seed"]})
        old, corpus = bench.retriever, bench.found.corpus
        objective = Kept(old, corpus, corpus[:20], settings, Processes("cpu"))
        objective.weight, objective.teacher = weight, old if weight else None
        if pairs is not None:
            objective.corpus = PairCorpus(pairs(bench), old, (16, bench.form["pair_tokens"]))
        return fitted(bench, objective)

    return way


def fitted(bench: Bench, objective: SpanContrast) -> dict[str, Vectors]:
    """Train, and encode by what was learnt."""
    trained(bench, objective)
    return mixed(bench, bench.encoded(objective.candidate(1.0)))


def trained(bench: Bench, objective: SpanContrast) -> None:
    """Train, from the checkpoint where there is one."""
    key = fingerprint([bench.way, bench.form, [document.contents for document in bench.found.corpus]])
    bench.work.mkdir(parents=True, exist_ok=True)
    train(objective, bench.work / f"{bench.way}.pt", key, progress=reporter(f"{bench.work.name} {bench.way}"))


class QuerySide(SpanContrast):
    """Queries move, documents stay: a wanted distribution over the index for each query."""

    documents: torch.Tensor  # (n, dim)
    rows: list[list[int]]
    wanted: torch.Tensor  # (queries, n)

    def parts(self, step: int) -> Sequence[Any]:
        """Draw the queries of a step."""
        random = default_rng([self.settings.seed, step])
        return [random.choice(len(self.rows), self.settings.batch_size, replace=False)]

    def loss(self, part: Any) -> torch.Tensor:
        """Give the cross-entropy of what is found and what is wanted."""
        vectors = self._encoded([self.rows[place] for place in part])
        found = (vectors @ self.documents.T / self.settings.temperature).log_softmax(-1)
        return -(self.wanted[part] * found).sum(-1).mean()


def query_side(by_hybrid: bool) -> Way:
    """Give a way that fits the queries' side: to own documents and the old scores, or to the hybrid's."""

    def way(bench: Bench) -> dict[str, Vectors]:
        settings = SpanSettings(**bench.form["low_rank"] | {"seed": bench.form["seed"]})
        corpus, old = bench.found.corpus, bench.retriever
        objective = QuerySide(old, corpus, corpus[:20], settings, Processes("cpu"))
        probes = draw_probes(corpus, PROBES, settings.seed)
        asked = [probe.text for probe in probes]
        dense = old.encode_queries(asked) @ bench.vectors.documents.T
        own = np.eye(len(corpus), dtype=np.float32)[[probe.position for probe in probes]]
        usual = softmax(dense / settings.temperature)
        wanted = hybrid_wanted(corpus, asked, dense) if by_hybrid else (own + usual) / 2
        objective.rows = [list(row) for row in old.tokenizer.ids(asked, 32)]
        objective.documents, objective.wanted = (
            torch.from_numpy(np.asarray(one, dtype=np.float32)) for one in (bench.vectors.documents, wanted)
        )
        trained(bench, objective)
        texts = [query.text for query in bench.found.queries]
        return mixed(bench, Vectors(bench.vectors.documents, objective.candidate(1.0).encode_queries(texts)))

    return way


def hybrid_wanted(corpus: Sequence[Document], asked: Sequence[str], dense: Array) -> Array:
    """Give what the hybrid wants for each query, `(queries, documents)`."""
    index = Bm25([document.contents for document in corpus])
    result = np.full(dense.shape, -np.inf, dtype=np.float32)
    for row, (text, scores) in enumerate(zip(asked, dense, strict=True)):
        lexical = index.scores(text)
        places = list({*nearest(scores), *nearest(lexical)})[: 2 * DEPTH]
        sides = ({place: float(one[int(place)]) for place in places} for one in (lexical, scores))
        for place, value in completed(*sides).items():
            result[row, int(place)] = SHARPNESS * value
    return softmax(result)


def softmax(scores: Array) -> Array:
    """Give the distribution of rows of scores."""
    raised = np.exp(scores - scores.max(1, keepdims=True))
    result: Array = raised / raised.sum(1, keepdims=True)
    return result


WAYS: dict[str, Way] = {
    "centre": centre,
    "top": top,
    "whiten": whiten,
    "near": near,
    "rare": rare,
    "asked": query_side(by_hybrid=False),
    "taught": query_side(by_hybrid=True),
    "kept": low_rank(parted, weight=3.0),
    "pairs": low_rank(parted),
    "span": low_rank(None),
    "made": low_rank(made_pairs, weight=3.0),
}


def render(record: Record) -> str:
    """Render the changes: a table a way of ranking, ways and doses by collections."""
    said = (
        f"Change of {LEAD} against the packaged retriever; a star marks p < .05 (paired t, not corrected). "
        f"Processor seconds: fitting and encoding anew, of all that ran. {machine_of(record['machine'])}."
    )
    return "\n\n".join([said, *(one_table(record["sets"], way) for way in ("dense", "hybrid"))])


def one_table(sets: Record, ranking: str) -> str:
    """Render the changes of one ranking; of some collections there is no mean."""
    rows = []
    for way in WAYS:
        found = [one[way] for one in sets.values() if way in one]
        for dose in list(found[0][ranking])[1:] if found else []:
            cells = [change(one[way][ranking], dose) if way in one else "not run" for one in sets.values()]
            mean = fmean(one[ranking][dose][0] - one[ranking]["0"][0] for one in found)
            seconds = sum(one["cpu_s"] for one in found)
            told = f"{mean:+.4f}" if len(found) == len(sets) else ""
            rows.append([way, dose, *cells, told, f"{seconds:.0f}"])
    return table([f"{ranking}, way", "dose", *sets, "mean", "processor s"], rows)


def change(values: Record, dose: str) -> str:
    """Render how far a dose is from none, and whether that is shown."""
    value, p = values[dose]
    return f"{value - values['0'][0]:+.4f}{'*' if p is not None and p < 0.05 else ''}"


SECTIONS = [
    Section(
        93,
        "Ways to fit a retriever to documents",
        "fitting-reduced",
        "python benchmarks/run.py fitting FOLDER",
        render,
    ),
    Section(
        96,
        "Neighbours of documents, whole collections",
        "fitting-whole",
        "python benchmarks/run.py fitting FOLDER --form whole --ways near --sets …",
        render,
    ),
]
