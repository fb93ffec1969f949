"""Chooses the text fields of an index that are encoded, by its mapping and a sample of its documents."""

from __future__ import annotations

import difflib
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import DataError
from ..records import Progress, silent
from .connection import Cluster, IndexLookup
from .destinations import destinations, indices_in_use, is_destination
from .field_values import leaf_values, text_of
from .reading import sample_documents
from .record import TEXT_TYPES, IndexInfo

STRING_TYPES = TEXT_TYPES | {"keyword", "wildcard"}
VECTOR_TYPES = frozenset({"knn_vector", "dense_vector", "sparse_vector", "rank_features"})
TEXT_NAMES = ("title", "text")
MAX_FIELDS = 5
MIN_WORDS = 3.0
"""A field whose mean number of words is lower counts as a label, unless it is named like a title."""
MIN_WORTH = 0.05
"""A field with a lower share of the best field's words per document adds nothing."""
FEW_VALUES = 0.1
"""A field with a lower share of different texts counts as a category."""
ONE_WORD, ADDRESSES = 0.8, 0.5
"""Shares of a field's texts from which on it counts as single words, and as addresses."""
COPIED, FOREIGN = 0.5, 0.1
"""A field is a copy if less than FOREIGN of its words are its own. It copies each field that is found in at
least COPIED of its texts."""
IDENTIFIER = re.compile(
    r"^(.+_)?(id|ids|uuid|guid|hash|sha\d*|md5|url|urls|uri|link|href|email|slug|isbn|doi|sku)$"
)
TITLE = re.compile(r"^(.+_)?(title|headline|subject|heading|question|summary|abstract)$|^name$")
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|\w+")
ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.-]*://|www\.|mailto:)\S+\s*$", re.IGNORECASE)
CHOOSING_SAMPLE = 1000
"""Number of documents from which fields are chosen; the same in every command."""


@dataclass
class Contents:
    """Values of one field in a sample of documents; `texts` has one entry per document, "" if missing."""

    filled: int = 0
    not_text: int = 0
    texts: list[str] = field(default_factory=list)

    @property
    def present(self) -> list[str]:
        """Return the texts that are not empty."""
        return [text for text in self.texts if text]

    @property
    def words(self) -> float:
        """Return the mean number of words of the nonempty texts; each CJK character counts as a word."""
        lengths = [count_words(text) for text in self.present]
        return sum(lengths) / len(lengths) if lengths else 0.0


class FieldChoice(NamedTuple):
    """The chosen text fields, and for every text field the reason why it is used or not.

    `named` says whether the user named the fields, now or in the reindex that recorded them. `in_use` holds
    the fields of the vectors in use, `searched` the fields whose words are searched with them. Both are empty
    without vectors.
    """

    fields: tuple[str, ...]
    reasons: dict[str, str]
    named: bool = False
    in_use: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()

    @property
    def change(self) -> str:
        """Return a message if the fields differ from those of the vectors in use; else ""."""
        if not self.in_use or self.fields == self.in_use:
            return ""
        return f"other fields than now: {', '.join(self.fields)} (now {', '.join(self.in_use)})"


def choose_text_fields(cluster: Cluster, info: IndexInfo, fields: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the text fields that `field_choice` chooses."""
    return field_choice(cluster, info, fields).fields


def field_choice(
    cluster: Cluster,
    info: IndexInfo,
    named: Sequence[str] = (),
    sources: Sequence[dict[str, Any]] | None = None,
    view: IndexLookup | None = None,
) -> FieldChoice:
    """Choose the text fields of an index, the same way for every command that reads texts.

    Fields that the user `named` are checked and used. Otherwise the first of these that exists: the fields
    of the index's vectors, those that `hybridr load` recorded, `title` and `text`. Otherwise the choice is by
    `sources`, a sample of `CHOOSING_SAMPLE` documents (read here if None). `view`, a description of the index
    and its vectors, saves requests. Raises DataError for unknown fields, and for an index without text or
    documents.
    """
    # Of several indices with vectors: the one in use, else the newest.
    infos = [info] if is_destination(info) else destinations(view or cluster, info)
    vectors = next(reversed(indices_in_use(infos) or infos), None)
    in_use, searched = (vectors.record.fields, vectors.record.lexical_fields) if vectors else ((), ())
    if named:
        if sources is None:
            is_mapped = {field.name for field in info.mapped_fields}.issuperset(named)
            sources = [] if is_mapped else sample_sources(cluster, info, named)
        fields = check_fields(info, named, sources)
        return FieldChoice(fields, dict.fromkeys(fields, "named by --fields"), True, in_use, searched)
    named_before = vectors is not None and vectors.record.fields_named
    if (choice_unread := choose_without_reading(info, vectors)) is not None:
        fields, reason = choice_unread
        reasons = dict.fromkeys(text_field_candidates(info), "not needed beside them") | dict.fromkeys(
            fields, reason
        )
        return FieldChoice(fields, reasons, named_before, in_use, searched)
    if sources is None:
        sources = sample_sources(cluster, info)
    choice = choose_by_contents(read_contents(sources, text_field_candidates(info)), info)
    return choice._replace(named=named_before, in_use=in_use, searched=searched)


def sample_sources(
    cluster: Cluster, info: IndexInfo, fields: Sequence[str] = (), progress: Progress = silent
) -> list[dict[str, Any]]:
    """Return the sources of `CHOOSING_SAMPLE` random documents, without vectors.

    Raises DataError for an index without documents, or without text fields if none are named.
    """
    if (total := cluster.count(info)) == 0:
        raise empty_index(info)
    if not fields and not text_field_candidates(info):
        raise no_text_fields(info)
    fields = [*(field.name for field in info.mapped_fields if field.type not in VECTOR_TYPES), *fields]
    options: dict[str, Any] = {"fields": fields, "total": total, "progress": progress}
    documents = sample_documents(cluster, info, CHOOSING_SAMPLE, **options)
    return [document.source for document in documents]


def empty_index(info: IndexInfo) -> DataError:
    """Return the error for an index without documents."""
    hint = f"hybridr load FOLDER --index {shlex.quote(info.name)}"
    return DataError(f"index '{info.name}' is empty", hint=hint)


def source_field(info: IndexInfo, field: str) -> str:
    """Return the field of `_source` from which a field is indexed: for a multi-field its parent."""
    parts = field.split(".")
    names = (".".join(parts[:length]) for length in range(1, len(parts)))
    return next((name for name in names if "type" in info.mapping_of(name)), field)


def text_field_candidates(info: IndexInfo) -> list[str]:
    """Return the names of fields that may hold running text: text, or keyword with a text multi-field."""
    return [
        field.name
        for field in info.mapped_fields
        if field.type in TEXT_TYPES or (field.type in STRING_TYPES and text_subfields(info, field.name))
    ]


def text_subfields(info: IndexInfo, name: str) -> list[str]:
    """Return the dotted names of the text multi-fields of a field."""
    subfields = info.mapping_of(name).get("fields", {})
    return [f"{name}.{part}" for part, mapping in subfields.items() if mapping.get("type") in TEXT_TYPES]


def read_contents(sources: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Contents]:
    """Return field name -> its values in the sampled documents."""
    by_name = {name: Contents() for name in names}
    for source in sources:
        values = defaultdict(list)
        for name, value in leaf_values(source):
            values[name].append(value)
        for name, contents in by_name.items():
            present = [value for value in values[name] if value != ""]
            contents.filled += bool(present)
            contents.not_text += sum(not isinstance(value, str) for value in present)
            contents.texts.append(text_of(source, (name,)))
    return by_name


def check_fields(info: IndexInfo, names: Sequence[str], sources: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the named fields; raise DataError for a field that does not exist or holds no text.

    A field that is not mapped is accepted if a sampled document holds text in it.
    """
    fields = {field.name: field for field in info.mapped_fields}
    for name in names:
        if name in fields and fields[name].type == "alias":
            path = info.mapping_of(name).get("path", "")
            raise DataError(
                f"field '{name}' of '{info.name}' is an alias of '{path}'",
                hint=f"--fields {shlex.quote(path)}",
            )
        if name in fields and fields[name].type not in STRING_TYPES:
            raise DataError(f"field '{name}' of index '{info.name}' is of type {fields[name].type}, not text")
        if name not in fields and not any(text_of(source, (name,)) for source in sources):
            parent, _, leaf = name.rpartition(".")
            if parent in fields and leaf in fields[parent].subfields:
                searched = name in text_subfields(info, parent)
                words = f'; [search] lexical_fields = ["{name}"] searches words there' if searched else ""
                raise DataError(
                    f"'{name}' of index '{info.name}' is indexed from '{parent}' and not stored",
                    hint=f"--fields {shlex.quote(parent)}{words}",
                )
            texts = [field.name for field in fields.values() if field.type in TEXT_TYPES]
            inner = [text for text in texts if text.startswith(f"{name}.")]
            near = inner or difflib.get_close_matches(name, texts, n=3) or texts
            verb = "holds an object in" if inner else "has no field"
            raise DataError(
                f"index '{info.name}' {verb} '{name}'", hint=f"text fields there: {', '.join(near) or 'none'}"
            )
    return tuple(dict.fromkeys(names))


def choose_without_reading(
    info: IndexInfo, vectors: IndexInfo | None = None
) -> tuple[tuple[str, ...], str] | None:
    """Return the fields that are chosen without reading documents, with the reason; None if there are none.

    `vectors` is the index that holds the vectors of `info`.
    """
    types = {field.name: field.type for field in info.mapped_fields}
    if vectors and (fields := vectors.record.fields):
        # A field that is not mapped was checked by a sample when it was named.
        if all(types.get(name, "text") in STRING_TYPES for name in fields):
            named = ", named then" if vectors.record.fields_named else ""
            return tuple(fields), f"as in the vectors of '{vectors.name}'{named}"
    loaded = info.record.text_fields
    if loaded and all(types.get(name) in STRING_TYPES for name in loaded):
        return tuple(loaded), "recorded in the index by hybridr load"
    if all(types.get(name) in TEXT_TYPES for name in TEXT_NAMES):
        return TEXT_NAMES, "the usual names"
    return None


def no_text_fields(info: IndexInfo) -> DataError:
    """Return the error for an index without text fields."""
    fields = info.mapped_fields
    strings = [field.name for field in fields if field.type in STRING_TYPES]
    field_list = ", ".join(f"{field.name} ({field.type})" for field in fields[:8]) or "none"
    hint = "name an index that holds text"
    if strings:
        hint = f"if '{strings[0]}' holds text: --fields {shlex.quote(strings[0])}"
    return DataError(f"index '{info.name}' has no text fields; its fields: {field_list}", hint=hint)


def choose_by_contents(contents: Mapping[str, Contents], info: IndexInfo) -> FieldChoice:
    """Choose the fields with most words per document, without labels, addresses, copies and short fields."""
    if not contents:
        raise no_text_fields(info)
    reasons = {name: reason for name, content in contents.items() if (reason := unfit_reason(name, content))}
    useful = {name: content for name, content in contents.items() if name not in reasons}
    for name in sorted(useful, key=lambda name: -useful[name].words):
        other_fields = {twin: content for twin, content in useful.items() if twin != name}
        if copied := copied_from(useful[name], other_fields):
            reasons[name] = f"repeats {', '.join(copied)}"
            del useful[name]
    worth = {  # words per document
        name: content.words * content.filled / max(len(content.texts), 1) for name, content in useful.items()
    }
    order = sorted(worth, key=lambda name: (not is_title(name), -worth[name], name))
    best = max(worth.values(), default=0.0)
    fields = tuple(name for name in order if is_title(name) or worth[name] >= MIN_WORTH * best)[:MAX_FIELDS]
    for name in worth:
        amount = f"{worth[name]:.1f} words per document"
        reasons[name] = amount if name in fields else f"{amount}: little beside the others"
    if not fields:
        reasons_text = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
        raise DataError(
            f"no field of index '{info.name}' holds running text ({reasons_text})", hint="--fields NAME"
        )
    return FieldChoice(fields, reasons)


def unfit_reason(name: str, contents: Contents) -> str:
    """Return the reason why a field holds no running text, judged by name and contents; "" if it may."""
    present = contents.present
    if not present:
        return "empty in every sampled document"
    if IDENTIFIER.match(snake_case(name)):
        return "named like an identifier or address"
    if sum(ADDRESS.match(text) is not None for text in present) >= ADDRESSES * len(present):
        return "addresses"
    if len(present) >= 2 / FEW_VALUES and len(set(present)) < FEW_VALUES * len(present):
        return f"only {len(set(present))} different values: categories"
    if sum(count_words(text) == 1 for text in present) >= ONE_WORD * len(present):
        return "single words: codes, names or labels"
    if contents.words < MIN_WORDS and not is_title(name):
        return f"{contents.words:.1f} words on average: labels"
    return ""


def copied_from(contents: Contents, other_fields: Mapping[str, Contents]) -> list[str]:
    """Return the names of the other fields from which most of a field's text is copied.

    Empty if a share of at least FOREIGN of its words is its own.
    """
    total = own_words = 0
    copies: dict[str, int] = defaultdict(int)
    for position, text in enumerate(contents.texts):
        total += count_words(text)
        for name, candidate in other_fields.items():
            part = candidate.texts[position]
            if part and part in text:
                text = text.replace(part, " ", 1)
                copies[name] += 1
        own_words += count_words(text)
    if own_words >= FOREIGN * total:
        return []
    return [name for name, count in copies.items() if count >= COPIED * len(contents.present)]


def is_title(name: str) -> bool:
    """Return whether a field is named like a title or summary, which is useful although short.

    `name` counts only at the top of the document: inside an object it is mostly a person's name.
    """
    return TITLE.match(snake_case(name)) is not None and (name == "name" or snake_case(name) != "name")


def snake_case(name: str) -> str:
    """Return the last part of a dotted name in snake_case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name.rsplit(".", 1)[-1]).lower()


def count_words(text: str) -> int:
    """Return the number of words of a text; each Chinese, Japanese or Korean character counts as one."""
    return len(WORD.findall(text))
