"""The demo, small: every step is real, and a second run does nothing again."""

from __future__ import annotations

import pytest

from hybridr.adaptation.settings import AdaptSettings
from hybridr.cluster.connection import Cluster
from hybridr.demo.demo import demonstrate
from hybridr_cli.commands.demo import summary, tell
from hybridr_cli.session import Session

pytestmark = [pytest.mark.node, pytest.mark.model]


@pytest.mark.timeout(900)
def test_demo_end_to_end(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    adapting = AdaptSettings(steps=4, batch_size=8, objective_settings={"held_out": 40})
    first = demonstrate(documents=250, adapt_settings=adapting)
    assert first.node.url == cluster.url
    assert first.reindexing.switched
    assert first.loading.documents == first.reindexing.encoded == 250
    means = {system: values["nDCG@10"] for system, values in first.evaluation.systems.items()}
    assert means["hybrid"] > means["bm25"] > 0.2
    again = demonstrate(documents=250, adapt_settings=adapting)
    assert not again.loading.loaded
    assert again.adaptation.reused
    assert (again.reindexing.encoded, again.reindexing.skipped) == (0, 250)
    assert again.evaluation.systems == first.evaluation.systems
    tell(Session({"json": False, "quiet": False, "config": None}), again)
    shown = capsys.readouterr().out
    assert "Try next:" in shown
    assert len(shown.splitlines()) <= 40, "one screen"
    assert summary(again)["documents"] == 250
    for info in cluster.indices("pydocs*"):
        cluster.request("DELETE", f"/{info.name}")
