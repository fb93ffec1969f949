"""What a search is asked for, checked against its index before anything is sent."""

from __future__ import annotations

from typing import Literal, get_args

from ..cluster.connection import Cluster
from ..cluster.destinations import check_fingerprint, command_for, is_destination
from ..cluster.legs.dense import MAX_NEIGHBOURS
from ..cluster.record import IndexInfo
from ..encoding.contract import Encoder
from ..errors import DataError, SettingsError
from ..files.family import member_of
from ..languages import says_something
from .encoders import encoder_for
from .fusions import FAMILY
from .fusions.absolute import Absolute
from .settings import NAMES_A_PIPELINE, SearchSettings

Mode = Literal["hybrid", "lexical", "dense"]
Feedback = Literal["rm3", "rocchio"]


def checked_encoder(
    cluster: Cluster, info: IndexInfo, name: str, mode: Mode, given: Encoder | None
) -> Encoder:
    """Give the encoder of an index that is called `name`: the given one, else the one that is known here.

    Raises DataError for an index without complete vectors, FingerprintMismatch for another encoder.
    """
    if not is_destination(info):
        raise DataError(
            f"'{name}' has no vectors for {mode} search",
            hint=f"hybridr reindex {name}   writes them, or use --mode lexical",
        )
    if info.record.state != "complete":
        raise DataError(f"the vectors of '{name}' are not complete", hint=f"{command_for(info)}   goes on")
    encoder = given or encoder_for(cluster, info, None)
    check_fingerprint(encoder.fingerprint, info)
    return encoder


def check_feedback(feedback: str | None, mode: Mode, info: IndexInfo, settings: SearchSettings) -> None:
    """Raise SettingsError for a feedback that is unknown, or that this mode or index cannot give."""
    if feedback not in (None, *get_args(Feedback)):
        raise SettingsError(f"unknown feedback '{feedback}': {', '.join(get_args(Feedback))}")
    if feedback == "rocchio" and mode == "lexical":
        raise SettingsError("rocchio moves a query vector, lexical search has none", hint="--feedback rm3")
    if info.record.passages is not None and (feedback == "rocchio" or settings.exact):
        raise SettingsError("rocchio and exact need one vector a document: this index has passages")


def chosen_fusion(settings: SearchSettings, info: IndexInfo, feedback: Feedback | None) -> str:
    """Name the fusion that is set, else absolute where the index and the other settings allow it.

    Raises SettingsError for one that cannot rank this index.
    """
    if settings.fusion == "auto":
        given = settings.model_fields_set & NAMES_A_PIPELINE
        return "pipeline" if given or Absolute.obstacle(info.record, feedback) else "absolute"
    if obstacle := member_of(FAMILY, settings.fusion).obstacle(info.record, feedback):
        raise SettingsError(f"the fusion '{settings.fusion}' cannot rank here: {obstacle}")
    return settings.fusion


def check_request(text: str, k: int) -> None:
    """Raise DataError for a query without a visible character, SettingsError for a `k` out of range."""
    if not says_something(text):
        raise DataError("the query is empty", hint="a query needs at least one visible character")
    if not 1 <= k <= MAX_NEIGHBOURS:
        raise SettingsError(f"k is 1 to {MAX_NEIGHBOURS:,}, got {k:,}")
