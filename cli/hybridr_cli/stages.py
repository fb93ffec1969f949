"""Every stage that has settings, in the order of `hybridr settings`."""

from __future__ import annotations

from hybridr.cluster.settings import ClusterSettings, LoadSettings, NodeSettings
from hybridr.indexing.settings import ReindexSettings
from hybridr.relevance.settings import TuneSettings
from hybridr.search.settings import SearchSettings
from hybridr.serving.settings import AssessorSettings, DeploySettings, McpSettings, ServeSettings
from hybridr.settings import Stage
from hybridr.training.settings import AdaptSettings, DamSettings, RemSettings

STAGES: tuple[type[Stage], ...] = (
    ClusterSettings,
    NodeSettings,
    LoadSettings,
    AdaptSettings,
    DamSettings,
    RemSettings,
    ReindexSettings,
    SearchSettings,
    DeploySettings,
    TuneSettings,
    ServeSettings,
    AssessorSettings,
    McpSettings,
)
