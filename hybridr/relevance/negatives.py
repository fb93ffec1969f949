"""Hard negatives: what BM25 ranks high and nobody judged relevant; mined, written and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..errors import DataError
from ..lexical import Bm25
from ..manifest import fingerprint, read_manifest, sha256_of, write_manifest
from ..progress import Progress, silent
from ..records import Query, Run
from ..staging import storing
from .judged import Judged, read_lines

Ranking: TypeAlias = Callable[[list[Query], int], Run]
"""Ranks the best k documents for each query, as `Search(...).run` does on a cluster."""

FILE = "negatives.tsv"
PART_FILE = ".negatives.part"
VERSION = 1  # of the procedure; a change of its results makes finished files be mined anew
BATCH = 256  # queries between two writes


@dataclass(frozen=True)
class Mined:
    """A file of negatives and what is in it."""

    file: Path
    queries: int
    documents: int
    """Negatives in all."""
    shortest: int
    """Fewest negatives of a query; training fills up with random documents."""
    reused: bool = False


def mine(
    judged: Judged,
    out: Path,
    count: int,
    *,
    rank: Ranking | None = None,
    source: str = "bm25",
    progress: Progress = silent,
) -> Mined:
    """Mine `count` negatives for every query into `out`/negatives.tsv, best first.

    BM25 over the corpus in this process ranks, or `rank` on a cluster (`source` names it, for the
    fingerprint): the index must hold the same corpus. A killed run goes on, a finished one returns at once.
    Raises DataError for document ids that a file cannot hold or the corpus does not.
    """
    key = fingerprint({"version": VERSION, "judged": judged.fingerprint, "count": count, "source": source})
    if (found := read_finished(out, key)) is not None:
        return found
    part = out / f"{PART_FILE}.{key[:16]}"
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
        fill(part, judged, count, rank, progress)
        part.replace(out / FILE)
    values = totals(out / FILE)
    write_manifest(
        out, stage="negatives", settings={"count": count, "source": source},
        inputs={"judged": judged.fingerprint}, outputs=[FILE], extra={"key": key, "negatives": values},
    )  # fmt: skip
    return Mined(out / FILE, values["queries"], values["documents"], values["shortest"])


def read_finished(out: Path, key: str) -> Mined | None:
    """Give the file that was mined with this key, if it is intact."""
    manifest = read_manifest(out) or {}
    file = out / FILE
    if manifest.get("key") != key or not file.is_file() or sha256_of(file) != manifest["outputs"][FILE]:
        return None
    values = manifest["negatives"]
    return Mined(file, values["queries"], values["documents"], values["shortest"], reused=True)


def fill(part: Path, judged: Judged, count: int, rank: Ranking | None, progress: Progress) -> None:
    """Append the lines of the queries that `part` has not yet."""
    queries = judged.records()
    done = whole_lines(part)
    rank = rank or rank_here(judged, progress)
    progress("mine negatives", done, len(queries))
    with part.open("a", encoding="utf-8") as file:
        for start in range(done, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            deepest = count + max(len(judged.positives[query.query_id]) for query in batch)
            run = rank(batch, deepest)
            for query in batch:
                relevant = set(judged.positives[query.query_id])
                ranked = [doc_id for doc_id in run[query.query_id] if doc_id not in relevant]
                file.write(line_of(query.query_id, ranked[:count]))
            file.flush()
            progress("mine negatives", start + len(batch), len(queries))


def whole_lines(part: Path) -> int:
    """Count the finished lines of a broken-off file and cut it behind them."""
    if not part.is_file():
        return 0
    content = part.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    part.write_bytes(whole)
    return whole.count(b"\n")


def line_of(query_id: str, doc_ids: list[str]) -> str:
    """Write one query's negatives. Raises DataError when a blank in an id would split it."""
    for name in (query_id, *doc_ids):
        if name.split() != [name]:
            raise DataError(f"the id '{name}' has a blank in it, which a file of negatives cannot hold")
    return f"{query_id}\t{' '.join(doc_ids)}\n"


def rank_here(judged: Judged, progress: Progress) -> Ranking:
    """Build BM25 over the corpus in this process. Raises DataError when a relevant document is not in it."""
    progress("index for BM25", 0, 1)
    ids, texts = [], []
    for document in judged.documents():
        ids.append(document.doc_id)
        texts.append(document.contents)
    judged.require_documents({doc_id: position for position, doc_id in enumerate(ids)})
    index = Bm25(texts)
    progress("index for BM25", 1, 1)

    def rank(queries: list[Query], k: int) -> Run:
        return {
            query.query_id: {ids[int(place)]: score for place, score in index.search(query.text, k).items()}
            for query in queries
        }

    return rank


def totals(file: Path) -> dict[str, int]:
    """Count queries, negatives and the fewest of a query."""
    counts = [len(line.partition("\t")[2].split()) for _, line in read_lines(file)]
    return {"queries": len(counts), "documents": sum(counts), "shortest": min(counts, default=0)}


def read_negatives(file: Path, judged: Judged, known: Mapping[str, int]) -> Iterator[tuple[str, list[int]]]:
    """Yield (query id, numbers of its negatives) for each query of `judged`, in the order of the file.

    Lines are `qid<TAB>d1 d2 d3 ...`. The file must cover exactly the judged queries: none may be missing
    (of a sample, the sampled ones), none unknown, none twice; no negative may be relevant or outside the
    corpus. Raises DataError that names the query.
    """
    seen: set[str] = set()
    for number, line in read_lines(file):
        query_id, _, listed = line.partition("\t")
        if query_id in seen or query_id not in judged.judged:
            what = "comes for the second time" if query_id in seen else "is not in the qrels"
            raise DataError(f"{file}:{number}: query '{query_id}' {what}", hint=MINE_AGAIN)
        seen.add(query_id)
        if query_id in judged.queries:
            yield query_id, checked(listed.split(), query_id, judged, known, f"{file}:{number}")
    if missing := judged.queries.keys() - seen:
        raise DataError(
            f"{file} lacks {len(missing)} queries that the qrels have, such as '{min(missing)}'",
            hint=MINE_AGAIN,
        )


MINE_AGAIN = "the file must cover exactly the queries of the qrels: hybridr rem negatives   mines it anew"


def checked(
    doc_ids: list[str], query_id: str, judged: Judged, known: Mapping[str, int], place: str
) -> list[int]:
    """Give the documents' numbers. Raises DataError for a relevant or unknown one."""
    if wrong := set(doc_ids) & set(judged.positives[query_id]):
        raise DataError(
            f"{place}: document '{min(wrong)}' is a negative of query '{query_id}' and relevant to it",
            hint=MINE_AGAIN,
        )
    if unknown := [doc_id for doc_id in doc_ids if doc_id not in known]:
        raise DataError(
            f"{place}: document '{unknown[0]}', a negative of query '{query_id}', is not in the corpus",
            hint="negatives, qrels and corpus must be of the same collection",
        )
    return [known[doc_id] for doc_id in doc_ids]
