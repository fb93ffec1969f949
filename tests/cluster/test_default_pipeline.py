"""The names of search pipelines, and the request cache: off where one fuses, and as before afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.default_pipeline import (
    CACHE,
    DEFAULT,
    default_pipeline_settings,
    earlier_cache_setting,
    pipeline_path,
    restored_cache_setting,
)
from hybridr.cluster.record import IndexInfo, Record
from hybridr.cluster.record_parts import Deployment
from hybridr.errors import SettingsError

PIPELINE = "hybridr-docs"


def described(cache: str | None, default: str | None = None, **deployed: Any) -> IndexInfo:
    deployment = Deployment(pipeline=PIPELINE, **deployed) if deployed else None
    settings = {name: value for name, value in ((CACHE, cache), (DEFAULT, default)) if value}
    return IndexInfo("docs", settings, {"_meta": {"hybridr": Record(deployment=deployment).to_json()}}, {})


@pytest.mark.parametrize("name", ["*", "a,b", "mine*", ""])
def test_a_name_stands_for_one_pipeline(name: str) -> None:
    with pytest.raises(SettingsError, match="not the name of one pipeline"):
        pipeline_path(name)


def test_only_a_pipeline_that_fuses_changes_the_cache() -> None:
    assert default_pipeline_settings(PIPELINE) == {DEFAULT: PIPELINE, CACHE: "false"}
    assert default_pipeline_settings(PIPELINE, fusing=False) == {DEFAULT: PIPELINE}


@pytest.mark.parametrize("own", [None, "true", "false"])
def test_the_setting_from_before_is_kept_and_put_back(own: str | None) -> None:
    assert earlier_cache_setting(described(own)) == own
    deployed = described("false", PIPELINE, way="client", cache_before=own)
    assert earlier_cache_setting(deployed) == own, "deployed again"
    assert restored_cache_setting(deployed) == {CACHE: own}


def test_what_a_deployment_left_alone_or_somebody_changed_stays() -> None:
    alone = described("false", PIPELINE, way="transparent", cache_before="true")
    assert (earlier_cache_setting(alone), restored_cache_setting(alone)) == ("false", {})
    assert restored_cache_setting(described("true", PIPELINE, way="client", cache_before="false")) == {}
