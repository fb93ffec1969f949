"""Seconds of vectors: the arithmetic by hand, what waits for what, and what must grow with what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridr.doctor.forecasting import (
    INDEX_S,
    READ_S,
    STEP_S,
    STREAMS,
    VERIFY_S,
    DataNodes,
    Quantity,
    Speed,
    estimated_duration,
    writing_processor_s,
)

QUANTITY = Quantity(1024, 1024, 384)
MANY = DataNodes(10, 160)


def test_a_thousand_documents_by_hand() -> None:
    found = estimated_duration(QUANTITY, MANY, Speed(64.0), 1)
    assert found.encoding == 16, "1,024 documents, 64 a second"
    assert found.reading == 1024 * READ_S
    work = 1024 * (INDEX_S + 10 * STEP_S)  # log2(1024) steps
    assert writing_processor_s(QUANTITY, 1) == pytest.approx(work)
    assert found.writing == pytest.approx(work / STREAMS)
    assert found.verifying == pytest.approx(1024 * VERIFY_S + 1), "64 documents are encoded again"
    assert found.filling == pytest.approx(16), "encoding takes longest, reading and writing beside it"


def test_what_takes_longest_decides() -> None:
    fast = estimated_duration(QUANTITY, MANY, Speed(1e9), 1)
    assert fast.filling == max(fast.reading, fast.writing)
    assert fast.writing > fast.encoding


def test_on_one_machine_the_node_takes_from_the_encoder() -> None:
    data_nodes = DataNodes(1, 4)
    apart = estimated_duration(QUANTITY, data_nodes, Speed(64.0), 1)
    beside = estimated_duration(QUANTITY, data_nodes, Speed(64.0, shares_processors=True), 1)
    assert beside.filling - apart.filling == pytest.approx(writing_processor_s(QUANTITY, 1) / 4)


def test_nodes_write_no_faster_than_they_have_processors() -> None:
    small = estimated_duration(QUANTITY, DataNodes(1, 1), Speed(64.0), 8)
    assert small.writing == pytest.approx(writing_processor_s(QUANTITY, 8))
    idle = estimated_duration(QUANTITY, DataNodes(8, 8), Speed(64.0), 1)
    assert idle.writing == pytest.approx(writing_processor_s(QUANTITY, 1)), "one shard keeps one node busy"
    large = estimated_duration(QUANTITY, DataNodes(8, 128), Speed(64.0), 8)
    assert large.writing == pytest.approx(writing_processor_s(QUANTITY, 8) / STREAMS), (
        "one reindex keeps two threads busy"
    )


def test_small_graphs_and_short_vectors_are_built_sooner() -> None:
    million = replace(QUANTITY, documents=10**6, vectors=10**6)
    assert writing_processor_s(million, 10) < writing_processor_s(million, 1)
    assert writing_processor_s(replace(million, dim=768), 1) > writing_processor_s(million, 1)


def test_more_documents_take_longer_and_a_faster_encoder_less_long() -> None:
    sizes = [replace(QUANTITY, documents=count, vectors=count) for count in (1, 10**3, 10**6, 10**9)]
    found = [estimated_duration(size, MANY, Speed(400.0), 1) for size in sizes]
    assert [duration.filling for duration in found] == sorted({duration.filling for duration in found})
    found = [estimated_duration(sizes[2], MANY, Speed(speed), 1) for speed in (100.0, 200.0, 800.0, 6400.0)]
    totals = [duration.filling + duration.verifying for duration in found]
    assert totals == sorted(totals, reverse=True)
