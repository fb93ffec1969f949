"""The names of search pipelines."""

from __future__ import annotations

import pytest

from hybridr.cluster.default_pipeline import pipeline_path
from hybridr.errors import SettingsError


@pytest.mark.parametrize("name", ["*", "a,b", "mine*", ""])
def test_a_name_stands_for_one_pipeline(name: str) -> None:
    with pytest.raises(SettingsError, match="no name of one pipeline"):
        pipeline_path(name)
