"""What an index holds, as far as search and adaptation care: fields, lengths, language, duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from .cluster import Cluster, IndexInfo
from .encoder import TOKENIZER_FILE, TextTokenizer, encoder_record
from .errors import DataError, ModelError
from .languages import ANALYZERS, UNKNOWN, LanguageGuess, analyzer_for, guess_language
from .manifest import FILE_NAME
from .packaged import MAX_TOKENS
from .progress import Progress, silent
from .reading import text_of
from .sampling import sample_documents
from .text_fields import (
    TEXT_TYPES,
    VECTOR_TYPES,
    Choice,
    Contents,
    MappedField,
    check_fields,
    choose,
    count_words,
    fixed_choice,
    mapped_fields,
    no_text_fields,
    read_contents,
)

CHOOSING_SAMPLE = 200
NOTABLE_CUT, NOTABLE_LOSS, NOTABLE_DUPLICATES, NOTABLE_EMPTY = 0.2, 0.1, 0.05, 0.01
REPLACEABLE = frozenset({"standard", "simple", "stop", "whitespace", *ANALYZERS.values()})
"""Built-in analysers; one that the index defines or a plugin brings is left alone."""


class TokenCounter(Protocol):
    """What lengths are measured by: an encoder, or only its tokenizer."""

    max_tokens: int

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count each text's tokens with [CLS] and [SEP], uncut."""


class FolderTokens:
    """The tokenizer of a model folder, without its weights."""

    def __init__(self, folder: Path) -> None:
        path = folder / TOKENIZER_FILE
        if not path.is_file():
            raise ModelError(f"{folder} has no {TOKENIZER_FILE}", hint="name the folder of an encoder")
        made = (folder / FILE_NAME).is_file()
        self.max_tokens: int = encoder_record(folder)["max_tokens"] if made else MAX_TOKENS
        self._tokenizer = TextTokenizer(path.read_text(encoding="utf-8"))

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count each text's tokens with [CLS] and [SEP], uncut."""
        return [len(ids) for ids in self._tokenizer.ids(texts, None)]


@dataclass(frozen=True)
class Lengths:
    """Lengths of the texts that are not empty.

    `limit`, `cut` (share of texts over it) and `lost` (share of all tokens behind it) need a model's tokens.
    """

    unit: str
    median: int
    p90: int
    limit: int | None = None
    cut: float | None = None
    lost: float | None = None


@dataclass(frozen=True)
class FieldReport:
    """One field in the sample: share of documents that have it (None: not read), values that are not text."""

    name: str
    type: str
    analyzer: str
    filled: float | None
    not_text: int
    lengths: Lengths | None
    used: bool
    why: str


@dataclass(frozen=True)
class Inspection:
    """What was found; shares are of the `sampled` documents, lengths of the joined `text_fields`."""

    index: str
    documents: int
    sampled: int
    shards: int
    fields: tuple[FieldReport, ...]
    text_fields: tuple[str, ...]
    lengths: Lengths
    language: LanguageGuess
    analyzer: str
    duplicates: float
    empty: float
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        return {**asdict(self), "language": self.language._asdict()}


def inspect_index(
    cluster: Cluster,
    index: str,
    *,
    fields: Sequence[str] = (),
    token_counter: TokenCounter | None = None,
    sample: int = 1000,
    progress: Progress = silent,
) -> Inspection:
    """Describe an index from its mapping and a random `sample` of documents (see `sample_documents`).

    Lengths are in tokens of `token_counter`, else in words. Nothing is written. Raises NotFound, DataError
    (no documents, no text fields, an unknown field, `_source` disabled).
    """
    info = cluster.index_info(index)
    documents = cluster.count(info.name)
    mapped = mapped_fields(info)
    sources = _sample(cluster, info, mapped, fields, sample, progress)
    choice, contents = _choose(info, mapped, fields, sources)
    reports = tuple(_report(one, contents.get(one.name), choice, token_counter) for one in mapped)
    texts = [text_of(source, choice.fields) for source in sources]
    present = [text for text in texts if text]
    language = guess_language(present)
    found = Inspection(
        index=info.name, documents=documents, sampled=len(sources), shards=info.shards, fields=reports,
        text_fields=choice.fields, lengths=measure(present, token_counter), language=language,
        analyzer=analyzer_for(language.code), duplicates=1 - len(set(present)) / max(len(present), 1),
        empty=1 - len(present) / len(texts), advice=(),
    )  # fmt: skip
    return Inspection(**{**vars(found), "advice": tuple(advice(found))})


def choose_text_fields(cluster: Cluster, index: str, fields: Sequence[str] = ()) -> tuple[str, ...]:
    """Check the given fields, or choose those that hold running text, best first.

    `title` and `text` are taken where both exist, and what `hybridr load` recorded; else a sample of 200
    documents decides. Raises NotFound, and DataError for unknown fields or an index without text.
    """
    info = cluster.index_info(index)
    mapped = mapped_fields(info)
    known = {one.name for one in mapped}
    if fields and known.issuperset(fields):
        return check_fields(info, fields, ())
    if not fields and (fixed := fixed_choice(info)) is not None:
        return fixed[0]
    sources = _sample(cluster, info, mapped, fields, CHOOSING_SAMPLE, silent)
    return _choose(info, mapped, fields, sources)[0].fields


def _sample(
    cluster: Cluster,
    info: IndexInfo,
    mapped: Sequence[MappedField],
    given: Sequence[str],
    size: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    if cluster.count(info.name) == 0:
        raise DataError(f"index '{info.name}' is empty", hint=f"hybridr load FOLDER --index {info.name}")
    if not given and not any(one.type in TEXT_TYPES for one in mapped):
        raise no_text_fields(info)
    wanted = [one.name for one in mapped if one.type not in VECTOR_TYPES]
    documents = sample_documents(cluster, info, size, fields=[*wanted, *given], progress=progress)
    return [document.source for document in documents]


def _choose(
    info: IndexInfo, mapped: Sequence[MappedField], given: Sequence[str], sources: list[dict[str, Any]]
) -> tuple[Choice, dict[str, Contents]]:
    names = [one.name for one in mapped if one.type not in VECTOR_TYPES]
    contents = read_contents(sources, names)
    if not given:
        return choose(info, contents), contents
    fields = check_fields(info, given, sources)
    return Choice(fields, dict.fromkeys(fields, "named by --fields")), contents


def _report(
    one: MappedField, contents: Contents | None, choice: Choice, counter: TokenCounter | None
) -> FieldReport:
    used = one.name in choice.fields
    why = choice.reasons.get(one.name, "")
    if contents is None:
        return FieldReport(one.name, one.type, "", None, 0, None, used, why)
    texts = [text for text in contents.texts if text]
    lengths = measure(texts, counter) if one.type in TEXT_TYPES or used else None
    filled = contents.filled / max(len(contents.texts), 1)
    stray = contents.not_text if lengths else 0
    return FieldReport(one.name, one.type, one.analyzer, filled, stray, lengths, used, why)


def measure(texts: Sequence[str], counter: TokenCounter | None) -> Lengths:
    """Measure texts in tokens of a model, else in words; 0 without texts."""
    counts = sorted(counter.count_tokens(texts) if counter else map(count_words, texts))
    unit = "tokens" if counter else "words"
    if not counts:
        return Lengths(unit, 0, 0, *((counter.max_tokens, 0.0, 0.0) if counter else ()))
    median, p90 = counts[len(counts) // 2], counts[int(0.9 * (len(counts) - 1))]
    if counter is None:
        return Lengths(unit, median, p90)
    cut = sum(count > counter.max_tokens for count in counts) / len(counts)
    lost = sum(max(0, count - counter.max_tokens) for count in counts) / sum(counts)
    return Lengths(unit, median, p90, counter.max_tokens, cut, lost)


def advice(found: Inspection) -> list[str]:
    """Say what the findings mean for search and adaptation."""
    said = [*_language_advice(found)]
    if (found.lengths.cut or 0) >= NOTABLE_CUT or (found.lengths.lost or 0) >= NOTABLE_LOSS:
        said.append(
            f"{found.lengths.cut:.0%} of the texts are longer than the {found.lengths.limit} tokens that "
            f"the encoder reads: {found.lengths.lost or 0:.0%} of all tokens are found by words only; "
            "`hybridr reindex --passages` gives them vectors"
        )
    if found.duplicates >= NOTABLE_DUPLICATES:
        said.append(f"{found.duplicates:.0%} of the texts repeat another one: they crowd the first page")
    if found.empty >= NOTABLE_EMPTY:
        said.append(f"{found.empty:.0%} of the documents have no text: they are copied without a vector")
    stray = {field.name: field.not_text for field in found.fields if field.used and field.not_text}
    said += [f"'{name}' holds {count} values that are not text: they are not encoded"
             for name, count in stray.items()]  # fmt: skip
    return said


def _language_advice(found: Inspection) -> list[str]:
    if found.language.code == UNKNOWN:
        return ["the language could not be told: choose the analyser and the encoder yourself"]
    said = []
    wrong = [
        f"'{field.name}' ({field.analyzer})"
        for field in found.fields
        if field.used and field.analyzer != found.analyzer and field.analyzer in REPLACEABLE
    ]
    if wrong and found.analyzer != "standard":
        said.append(
            f"the analyser '{found.analyzer}' fits the language better than that of {', '.join(wrong)}"
        )
    if found.language.code != "en":
        said.append("the packaged encoder knows English only: name one for this language with --encoder")
    return said
