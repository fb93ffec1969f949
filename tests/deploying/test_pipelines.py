"""Stored pipelines without a cluster: the options, what is refused."""

from __future__ import annotations

import json

import pytest

import hybridr_cli
from hybridr.cluster.default_pipeline import pipeline_path
from hybridr.deploying.pipelines import NEWEST, technique_of
from hybridr.errors import SettingsError
from hybridr.search.fusions.pipeline import LowerBound, Technique, fusion_pipeline
from hybridr.search.settings import SearchSettings

BOUNDS = (LowerBound("apply", 0.0), LowerBound("clip", 0.5))


def test_options_become_a_technique() -> None:
    assert technique_of(SearchSettings(dense_weight=0.25)).weights == (0.75, 0.25)
    found = technique_of(
        SearchSettings(combination="harmonic_mean"), "0.2,0.3,0.5", "apply:0,clip:0.5,ignore:-1"
    )
    assert found.weights == (0.2, 0.3, 0.5)
    assert found.lower_bounds == (*BOUNDS, LowerBound("ignore", -1.0))


@pytest.mark.parametrize(
    ("settings", "weights", "bounds", "message"),
    [
        ({}, "-0.5,1.5", None, "at least 0 and sum to 1"),
        ({}, "0.5,0.6", None, "sum to 1"),
        ({}, "nan,1", None, "sum to 1"),
        ({}, "a,b", None, "'a' is no number"),
        ({}, "0.1,0.1,0.2,0.2,0.2,0.2", None, "1 to 5 lists, got 6"),
        ({"normalization": "z_score", "combination": "geometric_mean"}, None, None, "only be combined by"),
        ({"normalization": "l2"}, None, "apply:0,apply:0", "for min_max, not l2"),
        ({}, None, "apply:0", "1 lower bounds for 2 lists"),
        ({}, None, "cut:0,apply:0", "unknown mode of a lower bound 'cut'"),
        ({}, None, "apply:0,apply:10001", "got 10001"),
        ({}, None, "apply:0,apply:nan", "got nan"),
        ({}, None, "apply,clip", "'' is no number"),
    ],
)
def test_what_a_server_refuses_or_misreads_is_refused(settings, weights, bounds, message) -> None:
    with pytest.raises(SettingsError, match=message):
        technique_of(SearchSettings(**settings), weights, bounds)


def test_what_an_older_version_leaves_out_is_refused() -> None:
    for technique in (
        Technique("z_score"),
        Technique(lower_bounds=BOUNDS),
        Technique("rrf", weights=(0.4, 0.6)),
    ):
        with pytest.raises(SettingsError, match=r"this is 2\.19\.1"):
            fusion_pipeline(technique, (2, 19, 1))
    [processor] = fusion_pipeline(Technique("rrf"), (2, 19, 1))["phase_results_processors"]
    combination = processor["score-ranker-processor"]["combination"]
    assert combination == {"technique": "rrf", "parameters": {"rank_constant": 60}}


@pytest.mark.parametrize("name", ["*", "a,b", "mine*", ""])
def test_a_name_stands_for_one_pipeline(name: str) -> None:
    with pytest.raises(SettingsError, match="no name of one pipeline"):
        pipeline_path(name)


def test_show_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = ["--url", "http://127.0.0.1:1"]
    command = ["pipeline", "show", "--normalization", "rrf", "--rank-constant", "20", "--weights", "0.3,0.7"]
    assert hybridr_cli.main([*command, *nowhere]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown) == fusion_pipeline(
        Technique("rrf", weights=(0.3, 0.7), rank_constant=20), NEWEST
    )
    assert hybridr_cli.main([*command, *nowhere, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(shown)
    assert hybridr_cli.main(["pipeline", "show", "--weights", "-1,2", *nowhere]) == 2
    assert "sum to 1" in capsys.readouterr().err
