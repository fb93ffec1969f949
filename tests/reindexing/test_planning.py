from __future__ import annotations

from hybridr import ReindexSettings
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
