"""Every stage that has settings, in the order of `hybridr settings`."""

from __future__ import annotations

from hybridr.adaptation.settings import AdaptSettings, DamSettings, RemSettings
from hybridr.agents.settings import McpSettings
from hybridr.cluster.settings import ClusterSettings, LoadSettings
from hybridr.deploying.settings import DeploySettings
from hybridr.node.settings import NodeSettings
from hybridr.reindexing.settings import ReindexSettings
from hybridr.search.settings import SearchSettings
from hybridr.serving.settings import ServeSettings
from hybridr.settings import Stage
from hybridr.tuning.settings import TuneSettings
from hybridr.workbench.settings import AssessorSettings

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
