"""Chooses the fields in which the words of a query are searched, and reads how the index scores them.

An encoded text field need not be searchable. With `index: false` an application searches its words in a
multi-field, or in the target of a `copy_to`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import DataError, SettingsError
from .fields import STRING_TYPES, FieldChoice, text_subfields
from .record import TEXT_TYPES, IndexInfo

ANALYSERS = frozenset(
    "arabic armenian basque bengali brazilian bulgarian catalan czech danish dutch english estonian finnish "
    "french galician german greek hindi hungarian indonesian irish italian latvian lithuanian norwegian "
    "persian portuguese romanian russian sorani spanish standard swedish turkish".split()
)
"""Built-in analysers that treat each word independently of its neighbours."""
FILTERS = frozenset(
    "apostrophe arabic_normalization arabic_stem asciifolding brazilian_stem cjk_width czech_stem "
    "decimal_digit dutch_stem elision french_stem german_normalization german_stem icu_folding "
    "keyword_marker kstem length lowercase persian_normalization porter_stem russian_stem "
    "scandinavian_folding scandinavian_normalization snowball stemmer stemmer_override stop trim "
    "uppercase".split()
)
"""Token filters that make at most one term of each term, independently of its neighbours."""
BM25, DEFAULT = "BM25", "default"
WITH_NORMS = {"text", "search_as_you_type"}
"""Field types whose length counts in BM25, unless the mapping switches norms off."""


class Similarity(NamedTuple):
    """The two parameters k1 and b of BM25."""

    k1: float = 1.2
    b: float = 0.75

    def gain(self, *, old: bool) -> float:
        """Return how many times larger scores are than those of the default BM25 since OpenSearch 3.

        This holds for a word that occurs once in a text of mean length; `old` means a server with the factor
        k1 + 1.
        """
        return (Similarity().k1 + 1) / (1.0 if old else self.k1 + 1)


def similarity_of(info: IndexInfo, name: str = DEFAULT) -> Similarity | None:
    """Return k1 and b of a similarity of the index, by name; None if it is not BM25."""
    prefix = f"index.similarity.{name}."
    options = {
        key.removeprefix(prefix): value for key, value in info.settings.items() if key.startswith(prefix)
    }
    if options.get("type", BM25 if name == DEFAULT else name) != BM25:
        return None
    return Similarity(**{part: float(options[part]) for part in Similarity._fields if part in options})


def shared_similarity(info: IndexInfo, fields: Iterable[str]) -> Similarity | None:
    """Return the BM25 parameters that score all these fields; None if they differ or norms are missing."""
    mappings = [info.mapping_of(field) for field in fields]
    if any(
        mapping.get("type", "text") not in WITH_NORMS or not mapping.get("norms", True)
        for mapping in mappings
    ):
        return None
    similarities = {similarity_of(info, mapping.get("similarity", DEFAULT)) for mapping in mappings}
    return similarities.pop() if len(similarities) == 1 else None


def search_analyzer_of(info: IndexInfo, field: str) -> str:
    """Return the name of the analyser of queries if it may differ from that of documents; else "".

    A query analyser of the whole index (`default_search`) takes precedence over the field's `analyzer`.
    """
    mapping = info.mapping_of(field)
    has_default = any(key.startswith("index.analysis.analyzer.default_search.") for key in info.settings)
    default = "default_search" if has_default and mapping.get("type") in TEXT_TYPES else ""
    return str(mapping.get("search_analyzer", default))


def query_analyzer_of(info: IndexInfo, field: str) -> str:
    """Return the name of the analyser of queries; "default" where the mapping names none."""
    return search_analyzer_of(info, field) or str(info.mapping_of(field).get("analyzer", "default"))


def reads_words_alone(info: IndexInfo, field: str) -> bool:
    """Return whether a field's query analyser makes the same term of a word in every context."""
    if info.mapping_of(field).get("type") != "text":
        return False
    name = query_analyzer_of(info, field)
    start = f"index.analysis.analyzer.{name}."
    parts = {key.removeprefix(start): value for key, value in info.settings.items() if key.startswith(start)}
    if not parts:
        return name in ANALYSERS or name == "default"
    if parts.get("type", "custom") != "custom":
        return parts["type"] in ANALYSERS and "max_token_length" not in parts
    filters = parts.get("filter", [])
    filters = [filters] if isinstance(filters, str) else filters
    tokenizers = f"index.analysis.tokenizer.{parts.get('tokenizer')}."
    return (
        parts.get("tokenizer") == "standard"
        and not any(key.startswith(tokenizers) for key in info.settings)
        and not parts.get("char_filter")
        and parts.keys() <= {"type", "tokenizer", "filter", "char_filter"}
        and all(info.settings.get(f"index.analysis.filter.{part}.type", part) in FILTERS for part in filters)
    )


def can_be_combined(info: IndexInfo, fields: Sequence[str]) -> bool:
    """Return whether `combined_fields` accepts these fields and scores as the index scores each field."""
    mappings = {field: info.mapping_of(field) for field in fields}
    analyses = {
        (query_analyzer_of(info, field), mapping.get("norms", True)) for field, mapping in mappings.items()
    }
    return len(analyses) == 1 and all(
        mapping.get("type") == "text" and "similarity" not in mapping for mapping in mappings.values()
    )


KINDS = ("text", "annotated_text", "match_only_text", "search_as_you_type")
PARTS_OF_WORDS = ("gram", "shingle", "suggest", "autocomplete", "phonetic")
COMPUTED = ("derived", "runtime")
"""Keys of a mapping that hold fields computed at search time, in OpenSearch and Elasticsearch."""


class SearchedField(NamedTuple):
    """A field whose words are searched, and its boost."""

    name: str
    boost: float = 1.0


def word_fields(info: IndexInfo, fields: Sequence[str]) -> tuple[str, ...]:
    """Return the fields in which the words of these text fields can be searched.

    An indexed text field is searched itself. Another one is searched in a text multi-field, else in the
    target of its `copy_to` that holds most of `fields`, else in itself if it is an indexed keyword. A field
    without any of these is left out. Raises DataError if no field remains.
    """
    places: dict[str, str] = {}
    copies: dict[str, list[str]] = {}
    for name in fields:
        if place := searchable_field(info, name):
            places[name] = place
        else:
            targets = info.mapping_of(name).get("copy_to", [])
            targets = [targets] if isinstance(targets, str) else targets
            copies[name] = [place for target in targets if (place := searchable_field(info, target))]
    while any(copies.values()):
        counts = Counter(target for targets in copies.values() for target in targets)
        best_target = min(counts, key=lambda target: (-counts[target], *preference_key(info, target)))
        places |= {name: best_target for name, targets in copies.items() if best_target in targets}
        copies = {name: targets for name, targets in copies.items() if name not in places}
    for name in copies:
        if info.mapping_of(name).get("type") in STRING_TYPES - TEXT_TYPES and is_indexed(info, name):
            places[name] = name
    searched = tuple(dict.fromkeys(places[name] for name in fields if name in places))
    if searched:
        return searched
    names, nested = ", ".join(fields), {field.name for field in info.mapped_fields if field.nested}
    if nested.issuperset(fields):
        raise DataError(
            f"'{names}' lies inside nested objects, which a plain query does not see",
            hint="--fields NAME,NAME names a field outside of them too",
        )
    raise DataError(
        f"words cannot be searched in '{names}' of index '{info.name}': no such field is indexed, nor a "
        "multi-field of it, nor one that it is copied to",
        hint=f'[search] lexical_fields = ["NAME"] names another; indexed texts there: {indexed_texts(info)}',
    )


def chosen_word_fields(info: IndexInfo, choice: FieldChoice) -> tuple[str, ...]:
    """Return the fields in which words are searched, for a choice of text fields.

    These are the fields that `hybridr load` made, else those recorded with vectors of the same fields, else
    `word_fields`.
    """
    if info.record.load and info.record.lexical_fields:
        return info.record.lexical_fields
    recorded = choice.searched if choice.fields == choice.in_use else ()
    if recorded and not any(unsearchable_reason(info, name) for name in recorded):
        return recorded
    return word_fields(info, choice.fields)


def indexed_texts(info: IndexInfo) -> str:
    """Return the names of all fields whose words can be searched, as a list for a message."""
    names = [field.name for field in info.mapped_fields]
    subfields = [part for name in names for part in text_subfields(info, name)]
    return ", ".join(name for name in [*names, *subfields] if is_indexed_text(info, name)) or "none"


def searchable_field(info: IndexInfo, name: str) -> str:
    """Return the field itself if its words are indexed, else its best text multi-field, else ""."""
    if is_indexed_text(info, name):
        return name
    subfields = [part for part in text_subfields(info, name) if is_indexed_text(info, part)]
    return min(subfields, key=lambda part: preference_key(info, part), default="")


def preference_key(info: IndexInfo, name: str) -> tuple[bool, int, str]:
    """Return a sort key that puts fields of whole words before fields of word parts."""
    mapping = info.mapping_of(name)
    analyzer = str(mapping.get("analyzer", ""))
    prefix = f"index.analysis.analyzer.{analyzer}."
    parts = [str(value) for key, value in info.settings.items() if key.startswith(prefix)]
    description = " ".join([name.rsplit(".", 1)[-1], analyzer, *parts]).lower()
    has_whole_words = not any(part in description for part in PARTS_OF_WORDS)
    return not has_whole_words, KINDS.index(mapping["type"]), name


def is_indexed_text(info: IndexInfo, name: str) -> bool:
    """Return whether a field is text whose words a query finds."""
    return info.mapping_of(name).get("type") in TEXT_TYPES and is_indexed(info, name)


def is_indexed(info: IndexInfo, name: str) -> bool:
    """Return whether queries see a field: it is indexed, and no object above it is nested or disabled."""
    if (semantic := info.semantic.get(name)) and not semantic.has_words:
        return False
    parts = name.split(".")
    parents = [info.mappings, *(info.mapping_of(".".join(parts[:length])) for length in range(1, len(parts)))]
    switches = [str(mapping.get("enabled", True)) for mapping in parents]
    switches.append(str(info.mapping_of(name).get("index", True)))
    is_nested = any(mapping.get("type") == "nested" for mapping in parents)
    return not is_nested and "false" not in map(str.lower, switches)


def searched_fields(info: IndexInfo, names: Sequence[str]) -> list[SearchedField]:
    """Return the fields and boosts of a setting such as `title^3` or `body`; an alias becomes its target.

    Raises SettingsError for a field that is not text, not indexed or inside nested objects, and for a boost
    that is not positive.
    """
    searched = []
    for text in names:
        name, hat, number = text.partition("^")
        if problem := unsearchable_reason(info, name):
            raise SettingsError(
                f"[search] lexical_fields: {problem}",
                hint=f'lexical_fields = ["title^3", "body"]; text fields there: {indexed_texts(info)}',
            )
        try:
            boost = float(number) if hat else 1.0
        except ValueError:
            boost = 0.0
        if not 0 < boost < math.inf:
            raise SettingsError(f"[search] lexical_fields: '{text}' has no boost above 0", hint=f"{name}^2")
        searched.append(SearchedField(info.mapping_of(name).get("path", name), boost))
    return list({field.name: field for field in searched}.values())


def unsearchable_reason(info: IndexInfo, name: str) -> str:
    """Return why words cannot be searched in a field; "" if they can."""
    if any(name in info.mappings.get(part, {}) for part in COMPUTED):
        return f"'{name}' is computed by each search, and its words have no statistics to rank by"
    field = info.mapping_of(name).get("path", name)  # of an alias
    if field in {leaf.name for leaf in info.mapped_fields if leaf.nested}:
        return f"'{name}' is in nested objects"
    kind = info.types.get(field)
    if kind not in STRING_TYPES:
        return f"'{name}' is {kind}" if kind else f"index '{info.name}' has no field '{name}'"
    return "" if is_indexed(info, field) else f"'{name}' is not indexed"
