"""Fusion by a pipeline: the arithmetic in the assertions, and the files that ask a server for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr.cluster.remote_models import MARK
from hybridr.errors import SettingsError
from hybridr.files.local import asset_path, load_asset
from hybridr.search.fusions.pipeline import fuse, l2, min_max, ranking, search_pipeline, z_score
from hybridr.search.settings import SearchSettings

NEWEST = (3, 6, 0)


def test_min_max_scales_and_floors() -> None:
    assert min_max({"a": 4.0, "b": 3.0, "c": 2.0}) == {"a": 1.0, "b": 0.5, "c": 0.001}
    assert min_max({"a": 4.0}) == {"a": 1.0}
    assert min_max({"a": 4.0, "b": 4.0}) == {"a": 1.0, "b": 1.0}
    assert min_max({}) == {}


def test_l2_divides_by_length() -> None:
    assert l2({"a": 3.0, "b": 4.0}) == {"a": 3 / 5, "b": 4 / 5}


def test_z_score_standardises_and_floors() -> None:
    # mean 2, sample deviation 1
    found = z_score({"a": 3.0, "b": 2.0, "c": 1.0})
    assert (found["a"], found["c"]) == (pytest.approx((3 - 2) / 1), 0.001)
    assert found["b"] == 3.0  # a score equal to the mean gets the raw maximum, as on the server
    assert z_score({"a": 12.3})["a"] == pytest.approx(12.3, abs=1e-5)
    # the mean of three times 0.7 is another number in double precision
    assert z_score({"a": 0.7, "b": 0.7, "c": 0.7})["a"] == pytest.approx(0.7)


def test_a_missing_document_counts_as_0() -> None:
    fused = fuse([{"a": 2.0, "b": 1.0}, {"a": 0.9}], weights=[0.4, 0.6])
    assert fused == {"a": pytest.approx(0.4 + 0.6), "b": pytest.approx(0.4 * 0.001)}


def test_rrf_sums_reciprocal_ranks() -> None:
    fused = fuse([{"a": 9.0, "b": 8.0}, {"b": 0.5}], normalization="rrf", weights=[0.5, 0.5])
    assert fused["b"] == pytest.approx(0.5 / (60 + 2) + 0.5 / (60 + 1))
    assert fused["a"] == pytest.approx(0.5 / (60 + 1))
    assert ranking(fused) == ["b", "a"]


def pipeline_of(normalization: str, dense_weight: float = 0.5, version: Any = NEWEST) -> dict[str, Any]:
    settings = SearchSettings(normalization=normalization, dense_weight=dense_weight)  # type: ignore[arg-type]
    return search_pipeline(settings, version)


@pytest.mark.parametrize(
    ("technique", "file"), [("min_max", "hybrid-min-max"), ("rrf", "hybrid-rrf")], ids=str
)
def test_a_file_can_be_put_as_it_is(technique: str, file: str) -> None:
    body = load_asset("pipelines", f"{file}.json")
    assert pipeline_of(technique) == body
    assert body["description"].startswith(MARK)


def test_every_technique_has_a_file() -> None:
    files = {path.stem for path in asset_path("pipelines").glob("*.json")}
    used = {"hybrid-min-max", "hybrid-rrf"}
    assert files - used == {"hybrid-min-max-lower-bounds"}, "for curl alone"


def test_weights_are_sent_as_floats() -> None:
    assert '"weights": [0.0, 1.0]' in json.dumps(pipeline_of("min_max", 1))


def test_what_an_older_version_leaves_out_is_refused() -> None:
    for technique, dense_weight in (("z_score", 0.5), ("rrf", 0.6)):
        with pytest.raises(SettingsError, match=r"this is 2\.19\.1"):
            pipeline_of(technique, dense_weight, (2, 19, 1))
    [processor] = pipeline_of("rrf", version=(2, 19, 1))["phase_results_processors"]
    combination = processor["score-ranker-processor"]["combination"]
    assert combination == {"technique": "rrf", "parameters": {"rank_constant": 60}}
