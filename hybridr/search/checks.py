"""Checks of a search request before anything is sent: its retrievers, fusion and encoder, against the index.

The encoder of an index is the one that wrote its vectors, the promoted one, or the packaged MiniLM.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias, get_args

from ..cluster.aliases import way_to_vectors
from ..cluster.connection import Cluster
from ..cluster.destinations import check_fingerprint, is_destination, reindex_command
from ..cluster.record import IndexInfo, Record
from ..cluster.retrievers import FAMILY as RETRIEVERS
from ..cluster.retrievers import Retriever
from ..cluster.retrievers.dense import MAX_NEIGHBOURS
from ..cluster.retrievers.lexical import LexicalRetriever
from ..encoders.contract import Arithmetic, Backend, Encoder, offers_of
from ..encoders.opening import is_encoder, load_encoder
from ..encoders.registry import encoder_by_fingerprint, knows_language
from ..errors import DataError, DownloadError, ModelError, SettingsError
from ..families import OneOf, load_member, member_names
from ..files.remembered import ENCODERS, read_state_file, remember_encoder
from ..languages import UNKNOWN, WIDE, has_visible_text, language_of
from ..records import Progress, silent
from .boosts import check_boost, read_boosts
from .fusions import FAMILY, Fusion, Weighted
from .scripts import scripts_refused
from .settings import SearchSettings


def promote(cluster: Cluster, index: str, folder: Path) -> None:
    """Remember the encoder that `adapt` made for an index, so that `reindex` uses it by default."""
    info = cluster.index_info(index)
    remember_encoder(info.record.source_uuid or info.uuid, folder)


def encoder_for(
    info: IndexInfo,
    encoder: Encoder | Path | str | None,
    *,
    precision: Arithmetic | None = None,
    backend: Backend | None = None,
    progress: Progress = silent,
) -> Encoder:
    """Return the encoder of an index: the given one, the one that wrote its vectors, the promoted one, or the
    packaged MiniLM.

    An opened `encoder` is returned unchanged; else it is a folder, also of sentence-transformers, or a name
    (`encoder_folder`). A packaged encoder is recognised by its fingerprint, even if this machine did not
    write the vectors. `precision` and `backend` are for documents, as in `load_encoder`. Raises
    FingerprintMismatch for a folder that did not write the vectors, ModelError if the folder is gone.
    """
    if encoder is not None and not isinstance(encoder, Path | str):
        return encoder
    fingerprint = info.record.encoder
    packaged, folder = encoder_by_fingerprint(fingerprint), encoder
    if encoder is None:
        remembered = read_state_file(ENCODERS).get(fingerprint or info.record.source_uuid or info.uuid)
        folder = Path(remembered) if isinstance(remembered, str) else None
        if folder is not None and not folder.is_dir():
            if packaged is None:
                raise ModelError(
                    f"the encoder of '{info.name}' was in {folder}, which is gone", hint="--encoder FOLDER"
                )
            folder = None
    name = packaged.name if packaged is not None and folder is None else None
    path = find_encoder_folder(folder or name, progress, fingerprint=fingerprint)
    opened = load_encoder(path, precision=precision, backend=backend)
    if fingerprint:
        check_fingerprint(opened.fingerprint, info)
    if name is not None:
        with suppress(DownloadError):  # the next command opens the folder at once
            remember_encoder(fingerprint, path)
    return opened


def find_encoder_folder(source: Path | str | None, progress: Progress, *, fingerprint: str = "") -> Path:
    """Return the encoder folder for a path or name, else that of the packaged MiniLM.

    `fingerprint` is that of the encoder that wrote an index, if there is one.
    """
    folder = None if source is None else Path(source).expanduser()
    if folder is not None and is_encoder(folder):
        return folder
    # Imported here because importing onnx is slow.
    from ..encoders.export.exporting import encoder_folder, minilm_encoder

    if source is None:
        return minilm_encoder(progress=progress)
    return encoder_folder(source, fingerprint=fingerprint, progress=progress)


HYBRID = "hybrid"
Mode: TypeAlias = Annotated[str, OneOf("cluster.retrievers", "hybrid")]
"""`hybrid`, or the name of one retriever."""
Feedback = Literal["rm3"]
"""Expansion of a lexical search by words of its best documents."""
WIDE_CODES = ("zh", "ja", "ko")
"""Languages recognised by their script alone, which is faster than the language model."""


def modes() -> tuple[str, ...]:
    """Return the modes of a search: hybrid, or any single retriever."""
    return (HYBRID, *member_names(RETRIEVERS))


def retrievers_of(mode: str, settings: SearchSettings) -> list[type[Retriever]]:
    """Return the retrievers that a mode uses."""
    return [load_member(RETRIEVERS, name) for name in (settings.shares if mode == HYBRID else (mode,))]


def encodes(mode: str, settings: SearchSettings) -> bool:
    """Return whether a search in this mode needs the encoder of the vectors."""
    return any(retriever.reads == "vector" for retriever in retrievers_of(mode, settings))


def checked_encoder(
    cluster: Cluster, info: IndexInfo, name: str, mode: Mode, candidate: Encoder | None
) -> Encoder:
    """Return the encoder of an index: `candidate` if given, else the one known on this machine.

    `name` is what the user calls the index. Raises DataError for an index without complete vectors,
    FingerprintMismatch for another encoder.
    """
    if not is_destination(info):
        raise DataError(
            f"'{name}' has no vectors for {mode} search",
            hint=f"{way_to_vectors(cluster, info, name)}   writes them, or use --mode lexical",
        )
    if info.record.state != "complete":
        raise DataError(
            f"the vectors of '{name}' are not complete", hint=f"{reindex_command(info)}   continues"
        )
    encoder = encoder_for(info, candidate, precision="fp32")  # that of queries, whatever wrote the documents
    check_fingerprint(encoder.fingerprint, info)
    return encoder


def language_remark(text: str, encoder: Encoder | None) -> str:
    """Return a warning if the encoder does not know the query's language; else an empty text.

    There is none for queries of a few words, for encoders that list no languages, and for Chinese, Japanese
    or Korean script if the encoder knows one of these languages.
    """
    languages = offers_of(encoder).languages if encoder is not None else ()
    knows_all = knows_language(languages, UNKNOWN)
    knows_wide = any(knows_language(languages, code) for code in WIDE_CODES)
    if knows_all or (knows_wide and WIDE.search(text)):
        return ""
    code = language_of(text)
    if code == UNKNOWN or knows_language(languages, code):
        return ""
    return (
        f"the query seems to be in language '{code}', the encoder knows {', '.join(languages)}: "
        "its vectors say little about it"
    )


def check_feedback(feedback: str | None, mode: Mode, settings: SearchSettings) -> None:
    """Raise SettingsError for an unknown feedback, or one that this mode or these settings cannot use."""
    if feedback not in (None, *get_args(Feedback)):
        raise SettingsError(f"unknown feedback '{feedback}': {', '.join(get_args(Feedback))}")
    if feedback and mode != LexicalRetriever.name:
        raise SettingsError(
            f"feedback '{feedback}' expands the words of mode lexical, not mode {mode}", hint="--mode lexical"
        )
    if feedback and settings.query_template:
        raise SettingsError(
            f"feedback '{feedback}' makes its own lexical query", hint="leave --query-template out"
        )


def fusions() -> list[type[Fusion]]:
    """Return all fusions, in the order in which `auto` tries them."""
    members: list[type[Fusion]] = [load_member(FAMILY, name) for name in member_names(FAMILY)]
    return sorted(members, key=lambda fusion: fusion.turn)


def default_fusion(settings: SearchSettings, record: Record) -> type[Fusion]:
    """Return the first fusion that can rank an index with this record by all retrievers of the settings."""
    return next(fusion for fusion in fusions() if not fusion_obstacle(fusion, settings, record))


def fusion_obstacle(fusion: type[Fusion], settings: SearchSettings, record: Record) -> str | None:
    """Return why a fusion cannot rank an index with these retrievers; None if it can."""
    kinds = (load_member(RETRIEVERS, name) for name in settings.retrievers if fusion.needs_scales)
    return next(filter(None, (kind.unscaled(record) for kind in kinds)), None)


def chosen_fusion(settings: SearchSettings, info: IndexInfo) -> str:
    """Return the name of the fusion that the settings choose.

    For `auto`, that is the fusion one of whose own settings is given, else the default one. Raises
    SettingsError for a fusion that cannot rank this index, cannot find by words alone (`recall`), or cannot
    add the boosts of the settings.
    """
    if settings.fusion == "auto":
        named = (fusion for fusion in fusions() if settings.model_fields_set & fusion.own_settings)
        fusion = next(named, None) or default_fusion(settings, info.record)
    else:
        fusion = load_member(FAMILY, settings.fusion)
    name = f"the fusion '{fusion.name}'"
    if obstacle := fusion_obstacle(fusion, settings, info.record):
        raise SettingsError(f"{name} cannot rank here: {obstacle}")
    if settings.recall == "lexical" and not fusion.scoring_clause:
        raise SettingsError(
            f"{name} finds by every retriever", hint='[search] recall = "all", or --fusion absolute'
        )
    if settings.boost and not fusion.takes_boosts:
        raise SettingsError(f"{name} does not support boosts", hint="leave the boost out")
    return fusion.name


class StoredFusion(NamedTuple):
    """The fusion of a stored request; `remark` says why it differs from that of searches."""

    fusion: str
    remark: str = ""


def stored_fusion(cluster: Cluster, settings: SearchSettings, info: IndexInfo) -> StoredFusion:
    """Return the fusion for requests that the cluster ranks alone, such as those of a deployment.

    On a cluster that runs no scripts, a fusion that needs them is replaced. Raises SettingsError as
    `chosen_fusion` does, and Unreachable.
    """
    fusion = chosen_fusion(settings, info)
    if load_member(FAMILY, fusion).needs_scripts and (refused := scripts_refused(cluster, info.name)):
        alternative = next(
            fusion.name for fusion in fusions() if fusion.one_request and not fusion.needs_scripts
        )
        return StoredFusion(alternative, f"ranked by the fusion '{alternative}': {refused}")
    return StoredFusion(fusion)


def weighted_boosts(info: IndexInfo, formula: str) -> dict[str, Weighted]:
    """Return the weighted clauses of a boost formula's terms. Raises SettingsError for an unfit field."""
    boosts = read_boosts(formula)
    for boost in boosts:
        check_boost(info, boost)
    return {boost.name: Weighted(boost.weight, [boost.clause()]) for boost in boosts}


def check_request(text: str, k: int) -> None:
    """Raise DataError for a query without visible characters, SettingsError for a `k` out of range."""
    if not has_visible_text(text):
        raise DataError("the query is empty", hint="a query needs at least one visible character")
    if not 1 <= k <= MAX_NEIGHBOURS:
        raise SettingsError(f"k is 1 to {MAX_NEIGHBOURS:,}, got {k:,}")
