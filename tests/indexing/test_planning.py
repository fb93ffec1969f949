from __future__ import annotations

from typing import Any

from hybridr import ReindexSettings
from hybridr.indexing.planning import Proposal
from support.hashing import HashingEncoder


def job_of(**form: Any) -> dict[str, Any]:
    nobody: Any = None
    return Proposal(nobody, nobody, HashingEncoder(), ReindexSettings(**form), 0, ("text",)).job_settings


def test_the_form_is_part_of_what_a_job_is() -> None:
    forms: list[dict[str, str]] = [
        {},
        {"vectors": "byte"},
        {"vectors": "sq"},
        {"vectors": "on_disk"},
        {"engine": "faiss"},
        {"engine": "faiss", "vectors": "on_disk"},
        {"engine": "faiss", "vectors": "on_disk", "compression": "8x"},
    ]
    jobs = [job_of(**form) for form in forms]
    assert all(jobs.count(job) == 1 for job in jobs)
    assert job_of(vectors="on_disk", compression="4x") == jobs[3], "naming the default level is no other job"
