from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.reindexing.beside_index import GRAPH_THRESHOLD, filling_settings
from hybridr.reindexing.planning import job_settings


def test_the_form_is_part_of_what_a_job_is() -> None:
    forms = [
        {},
        {"vectors": "byte"},
        {"vectors": "sq"},
        {"vectors": "on_disk"},
        {"engine": "faiss"},
        {"engine": "faiss", "vectors": "on_disk"},
        {"engine": "faiss", "vectors": "on_disk", "compression": "8x"},
    ]
    jobs = [job_settings(ReindexSettings(**form), ("text",)) for form in forms]  # type: ignore[arg-type]
    assert all(jobs.count(job) == 1 for job in jobs)
    named = ReindexSettings(vectors="on_disk", compression="4x")
    assert job_settings(named, ("text",)) == jobs[3], "naming the default level is no other job"


@pytest.mark.parametrize(
    ("form", "version", "late"),
    [
        ({"engine": "faiss"}, (3, 6, 0), True),
        ({"engine": "faiss", "vectors": "sq"}, (3, 6, 0), True),
        ({"engine": "faiss", "vectors": "on_disk", "compression": "2x"}, (3, 6, 0), True),
        ({"engine": "faiss"}, (2, 17, 0), False),
        ({"engine": "faiss", "vectors": "on_disk"}, (3, 6, 0), False),
        ({"engine": "faiss", "vectors": "on_disk", "compression": "8x"}, (3, 6, 0), False),
        ({}, (3, 6, 0), False),
    ],
)
def test_graphs_are_late_only_where_the_engine_waits(form: Any, version: Any, late: bool) -> None:
    """On 3.6.0 faiss built the graph of `on_disk` 16x at once all the same, which a merge would do again."""
    wanted: Any = SimpleNamespace(
        settings=ReindexSettings(late_graph=True, **form), cluster=SimpleNamespace(version=version)
    )
    assert (GRAPH_THRESHOLD in filling_settings(wanted)) is late
