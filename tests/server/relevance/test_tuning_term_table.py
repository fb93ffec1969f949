"""`hybridr tune` gives a term table to an index that was made before there were tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import hybridr_cli
from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.indexing.reindexing import reindex
from hybridr.relevance.settings import TuneSettings
from hybridr.relevance.tuning import tune
from support.corpus import fill_index

pytestmark = pytest.mark.node


@pytest.mark.usefixtures("few_terms")
def test_tune_fits_what_a_reindex_did_not(
    cluster: Cluster, index_name: str, minilm_encoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_index(cluster, index_name, 60)
    index = reindex(cluster, index_name, minilm_encoder_folder, ReindexSettings(term_table=False)).destination
    shown = tune(cluster, index_name, settings=TuneSettings(dry_run=True))
    assert shown.to_json()["term_table"] is None
    assert cluster.index_info(index).record.term_table is None
    found = tune(cluster, index_name)
    assert found.term_table is not None
    assert found.term_table.fitted
    named = cluster.index_info(index).record.term_table
    assert found.to_json()["term_table"]["table"] == named.model_dump()  # type: ignore[union-attr]
    assert hybridr_cli.main(["tune", index_name, "--url", cluster.url]) == 0
    line = f"{named.terms:,} terms of 60 documents"  # type: ignore[union-attr]
    assert f"term table: {line}\n" in capsys.readouterr().out
    assert hybridr_cli.main(["status", index_name, "--url", cluster.url]) == 0
    assert f"term table: {line}, in this cluster and this machine\n" in capsys.readouterr().out
    assert hybridr_cli.main(["remove", index_name, "--yes", "--url", cluster.url]) == 0
    assert f"term table {named.fingerprint[:12]}: deleted" in capsys.readouterr().out  # type: ignore[union-attr]
