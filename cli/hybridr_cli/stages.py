"""Every stage that has settings, in the order of `hybridr settings`."""

from __future__ import annotations

from hybridr.settings import (
    AdaptSettings,
    ClusterSettings,
    DamSettings,
    DeploySettings,
    EvaluateSettings,
    LoadSettings,
    MapSettings,
    NodeSettings,
    ReindexSettings,
    RemSettings,
    SearchSettings,
    ServeSettings,
    Stage,
    TuneSettings,
)

STAGES: tuple[type[Stage], ...] = (
    ClusterSettings, NodeSettings, LoadSettings, AdaptSettings, DamSettings, RemSettings, ReindexSettings,
    SearchSettings, DeploySettings, TuneSettings, MapSettings, EvaluateSettings, ServeSettings,
)
