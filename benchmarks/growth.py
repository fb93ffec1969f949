"""The tables of the study "scale": what each case took, and what a dry run would have said of it."""

from __future__ import annotations

from collections.abc import Callable

from hybridr.cluster.settings import VectorSettings
from hybridr.cluster.vector_forms import cost_of, form_of
from hybridr.doctor.forecasting import (
    START_S,
    DataNodes,
    Quantity,
    Speed,
    estimated_duration,
    writing_processor_s,
)
from study import Record, machine_of, table

WORDS = 12
MODES = ("lexical", "dense", "hybrid")
DIM, LINKS = 384, 16  # of a vector
VERSION = (3, 6, 0)  # of the node that was measured
KINDS = {
    "vectors": ("vec", "vem", "vemf", "veq", "vemq"),
    "graph": ("vex",),
    "source": ("fdt", "fdx", "fdm"),
    "words": ("doc", "pos", "tim", "tip", "tmd", "nvd", "nvm"),
}
"""What the files of an index hold, by how their names end; all others are told as one."""


def render(record: Record) -> str:
    """Render a table for each kind of figure, a row for each case, the smaller sizes first."""
    cases = sorted(record.values(), key=lambda found: (found["settings"]["documents"], *order(found)))
    parts = [said(cases)]
    for title, header, row in TABLES:
        rows = [named(case) + row(case) for case in cases]
        parts += [title, table(["documents", "runner", "vectors", *header], rows)]
    return "\n\n".join(parts)


def order(found: Record) -> tuple[str, bool, str]:
    """Put float vectors before the others of a runner."""
    settings = found["settings"]
    return settings["runner"], settings["vectors"] != "float", settings["vectors"]


def said(cases: list[Record]) -> str:
    """Say what was encoded how, and on which machine."""
    first = cases[0]
    settings, tokens = first["settings"], first["steps"]["reindex"]["tokens"]
    load = ", ".join(f"{found['load'][1]:.1f}" for found in cases)
    return (
        f"The documents are windows of {WORDS} words of `{settings['corpus']}`, {tokens:.1f} tokens in the "
        f"mean. The packaged MiniLM in {settings['precision']} encodes at most {settings['max_tokens']}. "
        f"{NOTE} {machine_of(first['machine'])}; its load at the end of each case, in "
        f"the order of the rows: {load}."
    )


def compared(found: Record) -> list[tuple[float, float]]:
    """Pair what a dry run says with what was measured: seconds, the node's processor seconds, MB on disk.

    It knows the source, and the speed of the encoder alone.
    """
    settings, measured = found["settings"], found["steps"]["reindex"]
    documents, alone = settings["documents"], measured["alone"]
    speed = sum(sample["documents"] for sample in alone) / sum(sample["seconds"] for sample in alone)
    quantity, data_nodes = Quantity(documents, documents, DIM), DataNodes(1, found["machine"]["cores"])
    form = form_of(VectorSettings(vectors=settings["vectors"]))
    vector_bytes = cost_of(form, documents, DIM, LINKS, VERSION).disk_bytes
    source_bytes = found["steps"]["load"]["index"]["store_bytes"]
    duration = estimated_duration(quantity, data_nodes, Speed(speed, shares_processors=True), 1)
    return [
        (START_S + duration.filling + duration.verifying, measured["seconds"]),
        (writing_processor_s(quantity, 1), measured["node_cpu_s"]),
        ((source_bytes + vector_bytes) / 1e6, measured["index"]["store_bytes"] / 1e6),
    ]


def prediction_row(found: Record) -> list[str]:
    """Give prediction, measurement and difference of each."""
    return [f"{said:,.1f} / {was:,.1f} ({said / was - 1:+.0%})" for said, was in compared(found)]


def named(found: Record) -> list[str]:
    """Name a case."""
    settings = found["settings"]
    return [f"{settings['documents']:,}", settings["runner"], settings["vectors"]]


def times_row(found: Record) -> list[str]:
    """Give the seconds of each step, and the documents a second of the encoder and of the reindex."""
    steps = found["steps"]
    reindexed, alone = steps["reindex"], steps["reindex"]["alone"]
    speed = sum(one["documents"] for one in alone) / sum(one["seconds"] for one in alone)
    seconds = [f"{steps[name]['seconds']:,.1f}" for name in ("load", "reindex", "sync", "verify")]
    return [*seconds, f"{speed:,.0f}", f"{reindexed['encoded'] / reindexed['seconds']:,.0f}"]


def split_row(found: Record) -> list[str]:
    """Give what a document of the reindex takes of the processors, and by the clock of its three parts."""
    one = found["steps"]["reindex"]
    requests, documents = one["requests"], one["encoded"]
    clock = [
        sum(requests.get(kind, {"seconds": 0})["seconds"] for kind in ("_search", "_mget")),
        one["encoder_s"],
        requests.get("_bulk", {"seconds": 0})["seconds"],
    ]
    own = [one["client_cpu_s"], *clock]
    if one["encoder_s"] is None:  # other processes read, encode and write
        own = [None] * len(own)
    taken = [own[0], one["node_cpu_s"], *own[1:], one["index"]["merge_s"]]
    return ["" if seconds is None else f"{1000 * seconds / documents:.2f}" for seconds in taken]


def disk_row(found: Record) -> list[str]:
    """Give megabytes by what they hold, segments, and the source."""
    index, source = found["steps"]["reindex"]["index"], found["steps"]["load"]["index"]
    held = [*index["bytes"].values(), index["store_bytes"], source["store_bytes"]]
    return [*(f"{count / 1e6:,.1f}" for count in held), str(index["segments"])]


def memory_row(found: Record) -> list[str]:
    """Give the peaks of the client, and the node's memory when it had reindexed."""
    steps = found["steps"]
    peaks = [f"{steps[name]['peak_mb']:,.0f}" for name in ("load", "reindex", "sync", "verify", "search")]
    node = steps["search"]["node"]
    return [*peaks, *(f"{node[name]:,}" for name in ("old_peak_mb", "own_mb", "mapped_mb"))]


def search_row(found: Record) -> list[str]:
    """Give p50 and p95 of each lane."""
    return [f"{lane['p50_ms']:.1f} / {lane['p95_ms']:.1f}" for lane in found["steps"]["search"]["lanes"]]


NOTE = (
    "`load`, `reindex` with its verification, `sync` of 1 % changes and `verify` are separate processes; the "
    "term table is fitted apart. `stock` is what a client of `deploy --way client` sends, with query vectors "
    "computed beforehand. Source: documents as they are stored, with the vectors as JSON text until merges "
    "drop them. On Ray the client's peak is that of the command, without its worker. Some figures of `sync` "
    "and `verify` predate finding deletions by sums and verifying four shares at once. They are those of "
    "`byte`, of `on_disk`, and of threads from 300,000 on."
)
TABLES: list[tuple[str, list[str], Callable[[Record], list[str]]]] = [
    (
        "Wall-clock seconds, and documents a second:",
        ["load", "reindex", "sync", "verify", "encoder alone", "reindex, documents/s"],
        times_row,
    ),
    (
        "Milliseconds for one document of the reindex: processor time, then wall-clock times, which overlap:",
        ["client", "node", "read", "encode", "write", "merge"],
        split_row,
    ),
    (
        "MB of the new index on disk, right after the reindex:",
        [*KINDS, "rest", "all", "the index before", "segments"],
        disk_row,
    ),
    (
        "Peak resident MB of the client; of the node the peak of its old heap, its own memory, mapped files:",
        ["load", "reindex", "sync", "verify", "search", "old heap", "own", "mapped"],
        memory_row,
    ),
    (
        "Predicted / measured, the former from the speed of the encoder alone and the size of the source:",
        ["seconds", "node's processor seconds", "MB on disk"],
        prediction_row,
    ),
    (
        "p50 / p95 of searches in milliseconds, one client, ten hits:",
        [*MODES, "stock", *(f"{mode} by `Search`" for mode in MODES)],
        search_row,
    ),
]
