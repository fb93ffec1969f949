"""`hybridr inspect`: describes the contents of an index: fields, lengths, language, duplicates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ..cluster.connection import Cluster
from ..cluster.field_values import leaf_values, text_of
from ..cluster.fields import (
    CHOOSING_SAMPLE,
    VECTOR_TYPES,
    Contents,
    FieldChoice,
    count_words,
    field_choice,
    read_contents,
    sample_sources,
    text_subfields,
)
from ..cluster.known_problems import problems_of_index
from ..cluster.reading import random_order_query
from ..cluster.record import TEXT_TYPES, IndexInfo, MappedField
from ..cluster.word_fields import chosen_word_fields
from ..encoders.registry import PACKAGED_LANGUAGES, knows_language, suggested_encoders
from ..errors import DataError
from ..languages import ANALYZERS, TAG, UNKNOWN, LanguageGuess, analyzer_for, guess_language
from ..records import Progress, silent

if TYPE_CHECKING:
    from ..encoders.opening import FolderTokens

NOTABLE_CUT, NOTABLE_LOSS, NOTABLE_DUPLICATES, NOTABLE_EMPTY = 0.2, 0.1, 0.05, 0.01
NOTABLE_MARKUP = 0.1
SEED = 13  # of a sample
REPLACEABLE = frozenset({"standard", "simple", "stop", "whitespace", *ANALYZERS.values()})
"""Built-in analysers, which `advice` may replace; it leaves those of the index or a plugin alone."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of the texts that are not empty.

    `limit`, `cut` (share of texts over the limit) and `lost` (share of all tokens beyond it) need a model's
    tokens.
    """

    unit: str
    median: int
    p90: int
    limit: int | None = None
    cut: float | None = None
    lost: float | None = None


@dataclass(frozen=True)
class FieldReport:
    """A field in the sample: `filled`, the share of documents that have it (None: not read), and `not_text`,
    the number of values that are not text.

    `used` fields are encoded, for the reason `why`; `searched` ones are used in lexical search. `semantic`
    names type and model of a field that the cluster itself embeds, and is empty for others.
    """

    name: str
    type: str
    analyzer: str
    filled: float | None
    not_text: int
    lengths: Lengths | None
    used: bool
    why: str
    searched: bool = False
    semantic: str = ""


@dataclass(frozen=True)
class Markup:
    """HTML in the texts: the share of texts with tags, and the lengths without tags."""

    share: float
    without: Lengths | None = None


@dataclass(frozen=True)
class Inspection:
    """The description of an index; shares are of the `sampled` documents, lengths of the joined
    `text_fields`.

    Lexical search uses the `lexical_fields`.
    """

    index: str
    documents: int
    sampled: int
    shards: int
    fields: tuple[FieldReport, ...]
    text_fields: tuple[str, ...]
    lexical_fields: tuple[str, ...]
    lengths: Lengths
    language: LanguageGuess
    analyzer: str
    duplicates: float
    empty: float
    markup: Markup
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "language": self.language._asdict()}


def inspect_index(
    cluster: Cluster,
    index: str,
    *,
    fields: Sequence[str] = (),
    token_counter: FolderTokens | None = None,
    languages: tuple[str, ...] = PACKAGED_LANGUAGES,
    progress: Progress = silent,
) -> Inspection:
    """Describe an index from its mapping and a random sample of documents (see `sample_sources`).

    Lengths are in tokens of `token_counter`, else in words; `languages` are those of the encoder, by default
    the packaged one. Nothing is written. Raises NotFound, DataError (no documents, no text fields, an unknown
    field, `_source` disabled).
    """
    info = cluster.index_info(index)
    documents = cluster.count(info)
    mapped = info.mapped_fields
    sources = sample_sources(cluster, info, fields, progress)
    choice = field_choice(cluster, info, fields, sources)
    try:
        searched = chosen_word_fields(info, choice)
    except DataError:  # no field is searched; `advice` says so
        searched = ()
    contents = read_contents(sources, [field.name for field in mapped if field.type not in VECTOR_TYPES])
    reports = []
    for field in mapped:
        report = _field_report(field, contents.get(field.name), choice, searched, token_counter)
        reports.append(replace(report, semantic=str(info.semantic.get(field.name, ""))))
        for name in text_subfields(info, field.name):  # not in the source of documents, so never read
            mapping, why = info.mapping_of(name), f"indexed from '{field.name}'"
            kind, analyzer = mapping["type"], mapping.get("analyzer", "standard")
            semantic, is_searched = str(info.semantic.get(name, "")), name in searched
            reports.append(
                FieldReport(name, kind, analyzer, None, 0, None, False, why, is_searched, semantic)
            )
    texts = [text_of(source, choice.fields) for source in sources]
    present = [text for text in texts if text]
    language = guess_language(present)
    inspection = Inspection(
        index=info.name,
        documents=documents,
        sampled=len(sources),
        shards=info.shards,
        fields=tuple(reports),
        text_fields=choice.fields,
        lexical_fields=searched,
        lengths=text_lengths(present, token_counter),
        language=language,
        analyzer=analyzer_for(language.code),
        duplicates=1 - len(set(present)) / max(len(present), 1),
        empty=1 - len(present) / len(texts),
        markup=html_markup(present, token_counter),
        advice=(),
    )
    problems = [f"{problem.line}: {problem.remedy}" for problem in problems_of_index(cluster, info)]
    mixed = mixed_models(cluster, info) if info.semantic else []
    return replace(inspection, advice=(*advice(inspection, languages), *mixed, *problems))


def mixed_models(cluster: Cluster, info: IndexInfo) -> list[str]:
    """Return a line for each semantic field with embeddings by another model than its own, in a sample.

    Documents written by Elasticsearch 8.18 and later do not say which model embedded them.
    """
    paths = [semantic.written_by for semantic in info.semantic.values()]
    query, size = random_order_query({"match_all": {}}, SEED), min(CHOOSING_SAMPLE, info.result_window)
    models: dict[str, Counter[str]] = defaultdict(Counter)
    for hit in cluster.search(info, {"size": size, "query": query, "_source": paths})["hits"]["hits"]:
        for path, model in leaf_values(hit.get("_source", {})):
            models[path][model] += 1
    lines = []
    for name, semantic in info.semantic.items():
        counts = models[semantic.written_by]
        if others := counts.total() - counts[semantic.model]:
            lines.append(
                f"{others:,} of the {counts.total():,} embeddings of '{name}' that were read are not by its "
                f"model {semantic.model}: searches compare vectors of several models; index these texts again"
            )
    return lines


def _field_report(
    field: MappedField,
    contents: Contents | None,
    choice: FieldChoice,
    searched: Sequence[str],
    counter: FolderTokens | None,
) -> FieldReport:
    """Return the report about one field: type, filling, lengths, and whether and why the field is used."""
    used = field.name in choice.fields
    why = choice.reasons.get(field.name, "")
    is_searched = field.name in searched
    if contents is None:
        return FieldReport(field.name, field.type, "", None, 0, None, used, why, is_searched)
    texts = [text for text in contents.texts if text]
    lengths = text_lengths(texts, counter) if field.type in TEXT_TYPES or used else None
    filled = contents.filled / max(len(contents.texts), 1)
    stray = contents.not_text if lengths else 0
    return FieldReport(field.name, field.type, field.analyzer, filled, stray, lengths, used, why, is_searched)


def text_lengths(texts: Sequence[str], counter: FolderTokens | None) -> Lengths:
    """Return the lengths of texts: in tokens of the counter's model, or in words without a counter. All
    lengths are 0 without texts.
    """
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


def html_markup(texts: Sequence[str], counter: FolderTokens | None) -> Markup:
    """Return the share of texts with HTML tags, and lengths without tags if there are any."""
    share = sum(bool(TAG.search(text)) for text in texts) / max(len(texts), 1)
    return Markup(share, text_lengths([TAG.sub(" ", text) for text in texts], counter) if share else None)


def advice(report: Inspection, languages: tuple[str, ...] = PACKAGED_LANGUAGES) -> list[str]:
    """Return advice on search and adaptation with an encoder of these languages, one finding a line."""
    lines = _language_advice(report, languages)
    share, without_tags = report.markup.share, report.markup.without
    if without_tags is not None and share >= NOTABLE_MARKUP:
        over = "" if without_tags.cut is None else f", {without_tags.cut:.1%} over the limit"
        lines.append(
            f"{share:.0%} of the texts contain HTML, whose tags the encoder reads as words: without tags the "
            f"median is {without_tags.median} {without_tags.unit}{over}; let the ingest processor html_strip "
            "write a field without tags, and name that field with --fields"
        )
    if semantic := [f"{field.name} ({field.semantic})" for field in report.fields if field.semantic]:
        lines.append(
            f"the cluster runs a model for {', '.join(semantic)}, also for every copy by hybridr: "
            "`hybridr reindex --replace-semantic` copies only the text of these fields"
        )
    if not report.lexical_fields:
        lines.append(
            "no query finds the words of the encoded fields, which are not indexed: "
            "name the field to search in [search] lexical_fields"
        )
    if (report.lengths.cut or 0) >= NOTABLE_CUT or (report.lengths.lost or 0) >= NOTABLE_LOSS:
        lines.append(
            f"{report.lengths.cut:.0%} of the texts are longer than the {report.lengths.limit} tokens that "
            f"the encoder reads: {report.lengths.lost or 0:.0%} of all tokens are found by words only; "
            "`hybridr reindex --passages` gives them vectors"
        )
    if report.duplicates >= NOTABLE_DUPLICATES:
        lines.append(f"{report.duplicates:.0%} of the texts repeat another one: they crowd the first page")
    if report.empty >= NOTABLE_EMPTY:
        lines.append(f"{report.empty:.0%} of the documents have no text: they are copied without a vector")
    lines += [
        f"'{field.name}' holds {field.not_text} values that are not text: they are not encoded"
        for field in report.fields
        if field.used and field.not_text
    ]
    return lines


def _language_advice(report: Inspection, languages: tuple[str, ...]) -> list[str]:
    """Return advice on an analyser or encoder that does not fit the language of the texts."""
    if report.language.code == UNKNOWN:
        return ["the language could not be detected: choose the analyser and the encoder yourself"]
    lines = []
    improvable = [
        f"'{field.name}' ({field.analyzer})"
        for field in report.fields
        if field.used and field.analyzer != report.analyzer and field.analyzer in REPLACEABLE
    ]
    if improvable and report.analyzer != "standard":
        lines.append(
            f"the analyser '{report.analyzer}' fits the language better than that of {', '.join(improvable)}"
        )
    if not knows_language(languages, report.language.code):
        lines.append(
            f"the encoder knows {', '.join(languages)} only: {suggested_encoders(report.language.code)}"
        )
    return lines
