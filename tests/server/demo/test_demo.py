"""The demo, small: every step is real, and a second run does nothing again."""

from __future__ import annotations

import pytest

from hybridr.demo.demo import demonstrate
from hybridr.encoders.opening import load_encoder
from hybridr_cli.commands.demo import show_demo
from hybridr_cli.session import Session
from support.corpus import drop_indices

pytestmark = pytest.mark.model
DOCUMENTS = 60


@pytest.mark.timeout(900)
def test_demo_end_to_end(cluster, capsys):
    first = demonstrate(documents=DOCUMENTS)
    assert first.node.url == cluster.url
    assert first.reindexing.switched
    assert first.loading.documents == first.reindexing.encoded == DOCUMENTS
    means = {system: values["nDCG@10"] for system, values in first.evaluation.systems.items()}
    assert means["hybrid"] > means["bm25"] > 0.2
    adapted = first.adaptation
    assert (adapted.promoted, adapted.language) == (True, "en")
    assert adapted.gate.rows[0].old > 0.3
    assert len(load_encoder(adapted.folder).encode_queries(["sort a list"])) == 1
    again = demonstrate(documents=DOCUMENTS)
    assert not again.loading.loaded
    assert again.adaptation.reused
    assert (again.reindexing.encoded, again.reindexing.skipped) == (0, DOCUMENTS)
    assert again.evaluation.systems == first.evaluation.systems
    show_demo(Session({"json": False, "quiet": False, "config": None}), again)
    shown = capsys.readouterr().out
    assert "adapt     fitted to 48 documents" in shown
    assert "Try next:" in shown
    assert len(shown.splitlines()) <= 40, "one screen"
    assert again.loading.documents == DOCUMENTS
    drop_indices(cluster, "pydocs*")
