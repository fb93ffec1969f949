"""The table of artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from hybridr.cluster.embedded import layout
from hybridr.cluster.settings import NodeSettings
from hybridr.files import fetching

VERSIONS = get_args(NodeSettings.model_fields["version"].annotation)
SYSTEM = layout.Java(Path("/nowhere"), 21, packaged=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_pinned_in_whole(version: str) -> None:
    settings = [NodeSettings(version=version)]
    settings.append(NodeSettings(version=version, **{"with_ml" if version == "3.6.0" else "secure": True}))
    for each in settings:
        parts = layout.choose_parts(each, SYSTEM)
        pinned = [*parts.artifacts(), *fetching.WORD_BREAKING]
        assert parts.distribution.version == version
        assert all(plugin.version == f"{version}.0" for plugin in parts.plugins)
        assert all(len(one.sha256) == 64 and int(one.sha256, 16) and one.size > 1000 for one in pinned)
        assert len({one.file_name for one in pinned}) == len(pinned)
        assert len({one.sha256 for one in pinned}) == len(pinned)


def test_modules_extend_only_modules_that_are_laid_out() -> None:
    for modules in fetching.MODULES.values():
        for module in modules.values():
            assert set(module.extends) <= set(modules)
