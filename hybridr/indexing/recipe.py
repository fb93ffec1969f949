"""The recipe of an index: how the text of a document becomes vectors and other representations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster.field_values import text_of
from ..cluster.record import Record
from ..cluster.record_parts import Cosines, WhitenedSpread
from ..cluster.retrievers.dense import engine_scores
from ..encoders.contract import Encoder, Reading, Vectors, offers_of, reads_tokens
from ..encoders.derived import Whitening, read_to_end
from ..encoders.passages import ENCODED_AT_ONCE, Split, slices_by_passages, split
from ..encoders.registry import PACKAGED_LANGUAGES
from ..errors import DownloadError, ModelError
from ..languages import UNKNOWN, guess_language, middle_words
from ..records import Progress, Windows, silent
from .representations import (
    EncodedDocument,
    Representation,
    fields_of,
    fitted_states,
    representations_in,
    settings_in,
)
from .settings import ReindexSettings

STATES = "states"  # key under which an encoded document keeps the reading of its text
MIN_TEXTS, QUERY_WORDS = 32, 12  # texts needed to measure cosines; words of a query
COMPARED = 128  # documents of an index whose cosines are measured
PACKAGED_TOKENS = 64  # of each text that the packaged encoder reads; with 256 its spread is the same
MADE_WITH = ("target", "in_place", "vector_field", "max_tokens", "vectors")


def spread_and_mean(cosines: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean over queries of the standard deviation of their cosines, and the mean of all cosines.

    `cosines` are `(queries, texts)`; NaN entries are ignored.
    """
    return float(np.nanstd(cosines, axis=1).mean()), float(np.nanmean(cosines))


def measured_cosines(
    encoder: Encoder,
    texts: Sequence[str],
    vectors: Vectors,
    firsts: NDArray[np.intp] | None = None,
    *,
    progress: Progress = silent,
) -> Cosines | None:
    """Return mean and spread of an encoder's cosines between different texts of an index; None for fewer than
    32 texts.

    The middle words of each text are a query, which is compared with all other texts. `firsts` are the places
    of each text's first passage in `vectors`; None: every text has one vector. If the encoder compares by
    cosine, the cosines of whitened queries are measured too.
    """
    if len(texts) < MIN_TEXTS:
        return None
    firsts = np.arange(len(texts)) if firsts is None else firsts
    query_texts = [middle_words(text, QUERY_WORDS) for text in texts]
    queries = encoder.encode_queries(query_texts)
    moments = spread_to_queries(cosines_of(encoder, queries, vectors, firsts))
    if moments is None:
        return None
    moments["packaged"] = packaged_spread(query_texts, texts, progress)
    whitening = Whitening.fit(vectors) if encoder.similarity == "cosine" else None
    whitened = None
    if whitening:
        spread = spread_to_queries(cosines_of(encoder, whitening.apply(queries), vectors, firsts))
        if spread:
            whitened = WhitenedSpread(directions=whitening.text, **moments | spread)
    return Cosines(**moments, whitened=whitened)


def packaged_spread(queries: Sequence[str], texts: Sequence[str], progress: Progress) -> float | None:
    """Return the spread of the packaged encoder's cosines between each text's query and the other texts.

    None for texts in another language than English, and if the encoder is not here and cannot be fetched.
    """
    if guess_language(texts).code not in (*PACKAGED_LANGUAGES, UNKNOWN):
        return None
    from ..encoders.export.exporting import minilm_encoder  # importing onnx is slow
    from ..encoders.opening import load_encoder

    try:
        packaged = load_encoder(minilm_encoder(progress=progress))
    except (DownloadError, ModelError) as error:
        progress("cosines are scaled without MiniLM", 1, 1, error.message)
        return None
    documents = packaged.encode_documents(texts, max_tokens=PACKAGED_TOKENS)
    spread = spread_to_queries(packaged.encode_queries(queries).astype(np.float64) @ documents.T)
    return spread["spread"] if spread else None


def spread_to_queries(cosines: NDArray[np.float64]) -> dict[str, Any] | None:
    """Return spread and mean of the cosines of each text's query with the other texts; None for no spread."""
    np.fill_diagonal(cosines, np.nan)
    spread, mean = (round(value, 5) for value in spread_and_mean(cosines))
    return {"spread": spread, "mean": mean} if spread else None


def cosines_of(
    encoder: Encoder, queries: Vectors, vectors: Vectors, firsts: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Return the cosines `(queries, texts)` of query vectors; the best passage of a text counts.

    For an encoder that compares by inner product, engine scores are taken as (1 + cosine) / 2.
    """
    products = np.maximum.reduceat(queries @ vectors.T, firsts, axis=1)
    return 2 * engine_scores(encoder.similarity, products.astype(np.float64)) - 1


@dataclass(frozen=True)
class TextRecipe:
    """How texts become representations: encoder, settings, and the text fields to join.

    `states` are the fitted states of representations, by name; empty before anything was fitted.
    """

    encoder: Encoder
    settings: ReindexSettings
    text_fields: tuple[str, ...]
    states: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record, encoder: Encoder, settings: ReindexSettings | None = None) -> TextRecipe:
        """Return the recipe in a record; `settings` add only what does not change the vectors."""
        record_settings = {name: getattr(record, name) for name in MADE_WITH} | settings_in(record)
        options = (settings or ReindexSettings()).model_copy(update=record_settings)
        return cls(encoder, options, tuple(record.fields), fitted_states(record))

    @cached_property
    def representations(self) -> list[Representation]:
        """Return the representations that the encoder stores in a document."""
        kinds = representations_in(self.settings)
        return [kind(self.settings, self.encoder, self.states.get(kind.name)) for kind in kinds]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Return the names of the fields that `values` fills."""
        return fields_of(self.settings)

    @cached_property
    def windows(self) -> Windows | None:
        """Return how documents are split into passages; None for one vector a document."""
        return next((kind.windows for kind in self.representations if kind.windows), None)

    @cached_property
    def token_representations(self) -> list[Representation]:
        """Return the representations that are made from the states of tokens."""
        return [kind for kind in self.representations if kind.reads_tokens]

    def text_of(self, source: Mapping[str, Any]) -> str:
        """Return the joined text of a document's text fields."""
        return text_of(dict(source), self.text_fields)

    def spans(self, text: str) -> Split:
        """Return the passages of a text that get a vector each."""
        return split(text, self.encoder, self.windows)

    @property
    def shows_states(self) -> bool:
        """Return whether the pass that makes vectors also returns the states of tokens, for the term table.

        False if a representation keeps the states, and for a GPU, which reads so many documents at once that
        their states would fill the memory.
        """
        return not (self.token_representations or offers_of(self.encoder).takes_many)

    def read(self, texts: Sequence[str], *, states: bool = False) -> list[EncodedDocument | None]:
        """Encode texts once for all representations; None for texts without content.

        With `states`, each result keeps the `Reading` of its first window, unless a representation reads
        tokens.
        """
        splits, per_call = [self.spans(text) for text in texts], offers_of(self.encoder).documents_at_once
        batch = per_call if self.token_representations else max(ENCODED_AT_ONCE, per_call)
        documents: list[EncodedDocument | None] = []
        for part in slices_by_passages(splits, batch):
            pairs = list(zip(texts[part], splits[part], strict=True))
            passages = [text[start:end] for text, (spans, _) in pairs for start, end in spans]
            vectors, windows = self.encode(passages, states=states)
            non_empty = [text for text, (spans, _) in pairs if spans]
            outputs = [(kind.name, kind.encode(non_empty)) for kind in self.representations]
            own_outputs = [(name, iter(values)) for name, values in outputs if values is not None]
            first = 0
            for _, pieces in pairs:
                if not pieces.spans:
                    documents.append(None)
                    continue
                window_values = windows[first] if windows else [{}]
                by_name = {name: [values[name] for values in window_values] for name in window_values[0]}
                by_name |= {name: [next(values)] for name, values in own_outputs}
                end = first + len(pieces.spans)
                documents.append(EncodedDocument(vectors[first:end], pieces, by_name))
                first = end
        return documents

    def encode(
        self, parts: Sequence[str], *, states: bool = False
    ) -> tuple[Vectors, list[list[dict[str, Any]]]]:
        """Return the vectors `(n, dim)` of texts, and by name what representations keep of each window."""
        encoder, limit = self.encoder, self.settings.max_tokens
        if not (reads_tokens(encoder) and parts and (self.token_representations or states)):
            return encoder.encode_documents(parts, max_tokens=limit), []
        if not self.token_representations:
            readings = encoder.read_documents(parts, max_tokens=limit)
            return np.stack([item.vector for item in readings]), [[{STATES: item}] for item in readings]

        def keep(text: str, reading: Reading) -> dict[str, Any]:
            """Return what each representation keeps of a text's token states."""
            return {kind.name: kind.keep(text, reading) for kind in self.token_representations}

        return read_to_end(encoder, parts, keep, max_tokens=limit)

    def cosines(self, texts: Sequence[str], progress: Progress = silent) -> Cosines | None:
        """Return mean and spread of the encoder's cosines between these texts of an index; None for too
        few texts.

        Repeated texts count once.
        """
        texts = list(dict.fromkeys(text for text in texts if text.strip()))
        return measured_cosines(self.encoder, texts, *self.passages_of(texts), progress=progress)

    def compared(self, queries: Sequence[str], texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the cosines of queries with texts, `(queries, texts)`; the best passage of a text counts."""
        return cosines_of(self.encoder, self.encoder.encode_queries(queries), *self.passages_of(texts))

    def passages_of(self, texts: Sequence[str]) -> tuple[Vectors, NDArray[np.intp]]:
        """Return the vectors of the passages of texts, and the place of each text's first."""
        spans = [self.spans(text).spans for text in texts]
        parts = [text[start:end] for text, ends in zip(texts, spans, strict=True) for start, end in ends]
        vectors = self.encoder.encode_documents(parts, max_tokens=self.settings.max_tokens)
        return vectors, np.cumsum([0, *map(len, spans)])[:-1]

    def values(self, encoded: EncodedDocument | None) -> dict[str, Any]:
        """Return the fields that the encoder adds to a document; empty for a document without text."""
        if encoded is None:
            return {}
        values: dict[str, Any] = {}
        for representation in self.representations:
            values |= representation.values(encoded)
        return values
