"""Reads and writes the usual files of search evaluation: BEIR folders, JSONL, TREC runs and qrels.

Errors name file and line.
"""

from __future__ import annotations

import json
import re
import shlex
from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, quantity
from ..records import Document, Qrels, Query, Run
from .document_forms import (
    OTHER_QUERY_IDS,
    documents_in,
    hint_for_id,
    line_items,
    plain_value,
    valid_id,
)
from .local import child_path, numbered_lines, replacing, require_regular

GRADE_COLUMNS = frozenset(("score", "relevance", "rel", "grade", "label", "rating", "judgment"))
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
UNPACKED_BY = {
    b"PK": "unzip {file}",
    b"BZh": "bunzip2 {file}",
    b"\xfd7zXZ": "unxz {file}",
    b"\x28\xb5\x2f\xfd": "unzstd {file}",
    b"\x1f\x8b": "the name of a gzip file must end in .gz: mv {file} {file}.gz",
    b"\xff\xfe": "iconv -f UTF-16 -t UTF-8 -o documents.jsonl {file}",
    b"\xfe\xff": "iconv -f UTF-16 -t UTF-8 -o documents.jsonl {file}",
    b"PAR1": "Parquet is not read: write JSON lines",
}
"""First bytes of a file that is not UTF-8 text -> the command that turns it into text."""
MIN_SORTED = 50_000  # ids that are sorted together
SURROGATE = "contains a lone surrogate, which is not valid Unicode"
LINE_ENDS = frozenset("\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
"""Characters at which some readers of qrels end a column or line."""


def read_beir(folder: Path | str, split: str = "test") -> tuple[list[Document], list[Query], Qrels]:
    """Read corpus, queries and qrels of one split of a BEIR folder, without queries that lack qrels.

    Raises DataError with file and line for missing or malformed data.

    >>> corpus, queries, qrels = hybridr.read_beir("docs-beir")
    """
    folder = Path(folder)
    corpus = [document_of(record, folder) for record in read_corpus(folder)]
    queries, qrels = read_topics(folder, split)
    return corpus, queries, qrels


def read_corpus(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of `corpus.jsonl` in a BEIR folder, or of a file in a format of document_forms.py.

    Raises DataError for an unreadable file, a repeated id or a lone surrogate.
    """
    file = path / "corpus.jsonl" if path.is_dir() else path
    ids = SeenIds()
    for line, record in read_document_file(file):
        doc_id = record["_id"]
        if not is_encodable(record):
            raise DataError(f"{file}:{line}: document {doc_id!a} {SURROGATE}")
        ids.add(doc_id)
        require_unique_ids(file, ids)
        yield record
    ids.merge_new()
    require_unique_ids(file, ids)


def read_document_file(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, document whose `_id` is a string) of a file; ids may repeat. Raises DataError."""
    require_file(file)
    return documents_in(file, read_lines(file))


class SeenIds:
    """A set of ids stored as 8-byte digests, to find repeated ids with little memory.

    `repeated` holds the digests of repeated ids; `add` finds some of them, `merge_new` the rest.
    """

    def __init__(self) -> None:
        self.repeated: set[int] = set()
        self._new: set[int] = set()
        self._sorted = array("Q")

    def add(self, doc_id: str) -> None:
        """Add an id; note its digest in `repeated` if it was added recently."""
        if (digest := short_digest(doc_id)) in self._new:
            self.repeated.add(digest)
        self._new.add(digest)
        if len(self._new) >= max(MIN_SORTED, len(self._sorted) // 16):
            self.merge_new()

    def merge_new(self) -> None:
        """Merge the recently added digests into the sorted ones, and note repeated ones in `repeated`."""
        self._sorted.extend(self._new)
        self._new.clear()
        ids = np.frombuffer(self._sorted, dtype=np.uint64)  # shares the memory, which is sorted in place
        ids.sort()
        is_repeated = ids[1:] == ids[:-1]
        if is_repeated.any():
            self.repeated.update(ids[1:][is_repeated].tolist())
            self._sorted = array("Q", np.unique(ids).tobytes())


def short_digest(text: str) -> int:
    """Return a 64-bit digest of a text."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def require_unique_ids(file: Path, ids: SeenIds) -> None:
    """Raise DataError for the first line of a corpus with a repeated id.

    Only ids whose digest is in `ids.repeated` are compared.
    """
    if not ids.repeated:
        return
    names: set[str] = set()
    for line, record in read_document_file(file):
        doc_id = record["_id"]
        if short_digest(doc_id) in ids.repeated:
            if doc_id in names:
                raise DataError(f"{file}:{line}: document id '{doc_id}' is repeated")
            names.add(doc_id)
    ids.repeated.clear()


def is_encodable(record: Mapping[str, Any]) -> bool:
    """Return whether a record can be written as UTF-8, so has no lone surrogate."""
    try:
        return bool(json.dumps(record, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


def document_of(record: Mapping[str, Any], origin: Path | str) -> Document:
    """Return the Document of a BEIR record. Raises DataError if title or text is not a string."""
    title, text = record.get("title") or "", record.get("text") or ""
    if not isinstance(title, str) or not isinstance(text, str):
        raise DataError(f"{origin}: document '{record['_id']}' has a title or text that is not a string")
    return Document(str(record["_id"]), text, title)


def read_topics(folder: Path, split: str) -> tuple[list[Query], Qrels]:
    """Read the queries and the qrels of a split of a BEIR folder. Raises DataError."""
    qrels = read_qrels(qrels_file(folder, split))
    return read_queries(folder, qrels), qrels


def read_queries(folder: Path, qrels: Qrels) -> list[Query]:
    """Read the judged queries of a BEIR folder. Raises DataError if one is missing, repeated or empty."""
    file = folder / "queries.jsonl"
    queries: dict[str, Query] = {}
    for line, record in read_jsonl(file):
        where = f"{file}:{line}"
        if "_id" not in record:
            hint = hint_for_id(record, ("id", *OTHER_QUERY_IDS), file)
            raise DataError(f"{where}: the query has no '_id'", hint=hint)
        query_id, text = valid_id(plain_value(record["_id"]), where), record.get("text")
        if query_id not in qrels:
            continue
        if query_id in queries:
            raise DataError(f"{where}: query id '{query_id}' is repeated")
        if not isinstance(text, str) or not text.strip():
            hint = f"the text of a query is its field 'text'; the fields are {', '.join(record)}"
            raise DataError(f"{where}: query '{query_id}' has no text", hint=hint)
        if not is_encodable({"text": text}):
            raise DataError(f"{where}: query {query_id!a} {SURROGATE}")
        queries[query_id] = Query(query_id, text)
    if missing := qrels.keys() - queries.keys():
        raise DataError(f"{file} lacks {quantity(len(missing), 'judged query')}, such as '{min(missing)}'")
    return list(queries.values())


def read_query_log(path: Path | None) -> list[str]:
    """Read a query log, one query per line; blank and repeated lines are left out. Raises DataError."""
    if path is None:
        return []
    try:
        lines = [line.strip() for _, line in numbered_lines(path, "utf-8-sig")]
    except (OSError, ValueError) as error:
        raise DataError(
            f"the query log {path} cannot be read: {error}", hint="one query per line, UTF-8"
        ) from error
    queries = list(dict.fromkeys(filter(None, lines)))
    if queries and queries[0].startswith("{") and queries[0].endswith("}"):
        raise DataError(
            f"the query log {path} holds JSON; one query per line is needed",
            hint=f"jq -r .query {shlex.quote(str(path))} > queries.txt   or another field than query",
        )
    if not queries:
        raise DataError(f"the query log {path} holds no queries", hint="one query per line, UTF-8")
    return queries


def qrels_file(folder: Path, split: str) -> Path:
    """Return the qrels file of a split. Raises DataError that lists the existing splits if there is none."""
    file = child_path(folder / "qrels", f"{split}.tsv")
    if not file.is_file():
        splits = ", ".join(sorted(path.stem for path in folder.glob("qrels/*.tsv")))
        hint = (
            f"splits there: {splits}" if splits else f"a BEIR folder has queries.jsonl and qrels/{split}.tsv"
        )
        raise DataError(f"no qrels for split '{split}' in {folder}", hint=hint)
    return file


def read_qrels(file: Path) -> Qrels:
    """Read qrels: BEIR's `query-id<TAB>corpus-id<TAB>score` and header, or TREC's `query 0 document grade`.

    Raises DataError for a grade that is not a whole number, a document judged twice, and an empty file.
    """
    qrels: Qrels = {}
    for number, line in read_lines(file):
        fields = line.split("\t") if line.count("\t") == 2 else line.split()
        has_header = len(fields) == 4 and fields[3].lower() in GRADE_COLUMNS
        if number == 1 and (has_header or len(fields) == 3 and not _is_number(fields[2])):
            continue  # BEIR's header
        if len(fields) not in (3, 4) or not WHOLE_NUMBER.fullmatch(fields[-1].strip()):
            hint = "or TREC's 'query 0 document grade'"
            if len(fields) in (3, 4) and _is_number(fields[-1]):
                hint = "grades are whole numbers, such as 0, 1, 2: decide which each of yours is"
            elif len(fields) == 6 and not fields[0].startswith("{"):
                hint = "this looks like a run; judgements are needed"
            elif len(fields) == 1 and fields[0].count(",") in (2, 3):
                hint = f"tr ',' '\\t' < {shlex.quote(str(file))} > qrels.tsv"
            needed = "'query-id<TAB>corpus-id<TAB>whole number'"
            raise DataError(f"{file}:{number}: needed {needed}, found {fields}", hint=hint)
        query_id, *_, doc_id, grade = fields
        if doc_id in qrels.setdefault(query_id, {}):
            raise DataError(f"{file}:{number}: query '{query_id}' judges '{doc_id}' twice")
        qrels[query_id][doc_id] = int(grade)
    if not qrels:
        raise DataError(f"{file} holds no judgements")
    return qrels


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def read_table(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, id, text) of `id<TAB>text` lines. Raises DataError."""
    for number, line in read_lines(file):
        columns = line.split("\t")
        if len(columns) != 2 or not columns[0]:
            raise DataError(
                f"{file}:{number}: needed 'id<TAB>text', found {line[:80]!r}",
                hint="tabs inside a text must become blanks",
            )
        yield number, columns[0], columns[1]


def read_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, line) of the non-blank lines of a plain or gzip file. Raises DataError."""
    try:
        for number, line in numbered_lines(file, "utf-8-sig", newline="\n"):
            if line.strip():
                yield number, line.rstrip("\r\n")
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        with require_regular(file).open("rb") as content:
            start = content.read(8)
        hints = [hint for magic, hint in UNPACKED_BY.items() if start.startswith(magic)]
        hint = (hints or ["write it as UTF-8: iconv -t UTF-8 -o documents.jsonl {file}"])[0]
        hint = hint.format(file=shlex.quote(str(file)))
        raise DataError(f"{file} is not UTF-8: {error.reason} at byte {error.start}", hint=hint) from None
    except ValueError as error:
        raise DataError(f"{file} cannot be read: {error}") from None


def require_file(file: Path) -> None:
    """Raise DataError if a file is missing or is a folder."""
    if file.is_dir() or not file.exists():
        raise DataError(
            f"no file {file}", hint="give a BEIR folder (corpus.jsonl, queries.jsonl, qrels/) or a JSONL file"
        )


def read_jsonl(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of the non-blank lines of a JSONL file. Raises DataError."""
    require_file(file)
    for number, record in line_items(file, read_lines(file)):
        if not isinstance(record, dict):
            raise DataError(f"{file}:{number}: needed a JSON object, found {type(record).__name__}")
        yield number, record


def fits_column(name: str) -> bool:
    """Return whether an id can be written to a tab-separated file: no tab, no line end, not blank."""
    return bool(name.strip()) and not LINE_ENDS.intersection(name) and is_encodable({"id": name})


def fits_word(name: str) -> bool:
    """Return whether an id can be written to a file with columns separated by blanks, such as a TREC run."""
    return name.split() == [name] and is_encodable({"id": name})


def trec_order(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return (document id, score) in trec_eval's order: descending score in single precision, descending id.

    Raises DataError for a score that is not a finite number in single precision.
    """
    with np.errstate(over="ignore"):
        singles = np.array(list(scores.values()), dtype=np.float64).astype(np.float32)
    if not np.isfinite(singles).all():
        doc_id = list(scores)[int(np.argmin(np.isfinite(singles)))]
        raise DataError(f"the score of document '{doc_id}' is {scores[doc_id]}, which cannot be ranked")
    return sorted(
        zip(scores, singles.tolist(), strict=True), key=lambda item: (item[1], item[0]), reverse=True
    )


def write_run(file: Path, run: Run, tag: str) -> None:
    """Write a TREC run: `query Q0 document rank score tag`, in trec_eval's order, ranks from 1.

    Nine digits keep a score exact in single precision, so trec_eval ranks the same, ties included. Documents
    whose ids contain blanks are left out (`fits_word`); such a query id raises DataError.
    """
    label = "-".join(tag.split()) or "hybridr"
    with replacing(file) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for query_id, scores in run.items():
            writable = {doc_id: score for doc_id, score in scores.items() if fits_word(doc_id)}
            for rank, (doc_id, score) in enumerate(trec_order(writable), 1):
                lines.write(f"{_trec_id(query_id)} Q0 {doc_id} {rank} {score:.9g} {label}\n")


def _trec_id(value: str) -> str:
    """Return an id unchanged. Raises DataError if a TREC file cannot hold it."""
    if not fits_word(value):
        raise DataError(f"the id {value!a} is empty or holds a blank: a TREC file cannot hold it")
    return value


def read_run(file: Path) -> Run:
    """Read a TREC run; its ranks are ignored, as by trec_eval.

    Raises DataError with file and line for malformed data, and for a document listed twice for a query.
    """
    run: Run = {}
    for number, line in read_lines(file):
        columns = line.split()
        try:
            query_id, _, doc_id, _, score, _ = columns
            value = float(score)
        except ValueError:
            hint = {
                3: 'if these are MS MARCO\'s columns: awk \'{print $1, "Q0", $2, $3, 1/$3, "run"}\' '
                f"{shlex.quote(str(file))} > run.trec",
                4: "this looks like judgements; a run is needed",
            }.get(len(columns))
            needed = "'query Q0 document rank score tag'"
            raise DataError(f"{file}:{number}: needed {needed}, found '{line[:80]}'", hint=hint) from None
        if doc_id in run.setdefault(query_id, {}):
            raise DataError(f"{file}:{number}: query '{query_id}' lists '{doc_id}' twice")
        run[query_id][doc_id] = value
    if not run:
        raise DataError(f"{file} holds no results")
    return run


def write_qrels(file: Path, qrels: Qrels) -> None:
    """Write qrels in TREC format, `query 0 document grade`. Raises DataError for ids with blanks."""
    with replacing(file) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for query_id, grades in qrels.items():
            for doc_id, grade in grades.items():
                lines.write(f"{_trec_id(query_id)} 0 {_trec_id(doc_id)} {grade}\n")


def write_beir(folder: Path, corpus: list[Document], queries: list[Query], qrels: Qrels) -> None:
    """Write a BEIR folder with the split `test`."""
    documents = [{"_id": d.doc_id, "title": d.title, "text": d.text} for d in corpus]
    topics = [{"_id": q.query_id, "text": q.text} for q in queries]
    for name, records in (("corpus.jsonl", documents), ("queries.jsonl", topics)):
        with replacing(folder / name) as temporary:
            lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
            temporary.write_text("".join(lines), encoding="utf-8")
    with replacing(folder / "qrels" / "test.tsv") as temporary:
        temporary.write_text(qrels_table(qrels), encoding="utf-8")


def qrels_table(values: Mapping[str, Mapping[str, float]], column: str = "score") -> str:
    """Return qrels (or other numbers) as text in BEIR's tab-separated form; `column` heads the numbers.

    Raises DataError for an id with a tab or a line end, which would read as another judgement.
    """
    for name in chain(values, *values.values()):
        if not fits_column(name):
            raise DataError(f"the id {name!a} is blank or has a tab or a line end: qrels cannot hold it")
    rows = [f"{query}\t{doc}\t{value}\n" for query, grades in values.items() for doc, value in grades.items()]
    return f"query-id\tcorpus-id\t{column}\n" + "".join(rows)
