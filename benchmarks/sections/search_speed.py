"""The figures of `hybridr bench search`."""

from __future__ import annotations

from .markdown import Record, machine_of, table

TITLE = "Searching, by mode and by way of asking"
RESULT = "search-speed"
COMMAND = (
    "hybridr node start --with-ml --heap 2g\n"
    "    hybridr load FOLDER/scale_open_en --index scale && hybridr reindex scale --max-tokens 16\n"
    "    hybridr bench search benchmarks/results/search-speed.json --index small --index scale "
    "--beir FOLDER/scale_open_en --queries 100 --requests 100"
)
NOTES = """`stock` fuses by OpenSearch's pipeline; `hybrid` is the default, true scores of both legs in one
request; `completed` fuses z-scores of true scores here, from several. Every query is new to
`Search`: it asks for the weight of its terms first. `by hand` sends bodies written beforehand:
for `neural` and `transparent` it asks `hybridr serve` for the vector first, as a client without
a deployment would. `as bytes` sends what `Search` sends. No figure holds an encoding: vectors
of queries come from a table and from the cache of `hybridr serve`. Ten hits, 100 candidates of
each leg. `small` holds 10,000 documents of `scale_open_en`, spread over it."""


def render(record: Record) -> str:
    """Render a table of latencies for each index, then the ratios."""
    parts = [f"{machine_of(record['machine'])}, node and load generator {pinned(record)}. {load(record)}"]
    for index in record["indices"]:
        parts.append(f"{index['documents']:,} documents, {tokens(index)}:")
        parts.append(table(["way", "clients", "p50 ms", "p95 ms", "p99 ms", "per second"], rows(index)))
        parts.append(table(["medians of the same round", *heads(index)], compared(index)))
    return "\n\n".join([*parts, NOTES])


def pinned(record: Record) -> str:
    """Say whether the cores were parted."""
    return "on different cores" if record["pinned"] else "on the same cores"


def load(record: Record) -> str:
    """Say what the machine did besides."""
    before, after = record["load"]
    said = f"Load of the machine before {before:.1f}, at the end {after:.1f}."
    return f"{said} {record.get('remark', '')}".rstrip()


def tokens(index: Record) -> str:
    """Say how much of a document is encoded."""
    most = index["max_tokens"]
    return (
        f"the first {most} tokens of each encoded" if most else "as many tokens of each as the encoder takes"
    )


def rows(index: Record) -> list[list[str]]:
    """Give a row for each way and number of clients."""
    return [
        [
            lane["name"],
            str(lane["clients"]),
            *(f"{lane[f'p{p}_ms']:.1f}" for p in (50, 95, 99)),
            f"{lane['per_second']:.1f}",
        ]
        for lane in index["lanes"]
    ]


def heads(index: Record) -> list[str]:
    """Name the columns of the ratios."""
    return [f"{one['clients']} clients" if one["clients"] > 1 else "1 client" for one in index["ratios"]]


def compared(index: Record) -> list[list[str]]:
    """Give a row for each comparison."""
    found = index["ratios"]
    spread = [
        *(
            (f"{name} / (lexical + dense)", [one["over_legs"][name] for one in found])
            for name in found[0]["over_legs"]
        ),
        *(
            (f"{name} / stock, both by Search", [one["over_stock"][name] for one in found])
            for name in found[0]["over_stock"]
        ),
        *(
            (f"{way} / by hand", [one["deployed_over_hand"][way] for one in found])
            for way in found[0]["deployed_over_hand"]
        ),
    ]
    lines = [[name, *map(cell, values)] for name, values in spread]
    for name in found[0]["more_than_stock_ms"]:
        more = (f"{one['more_than_stock_ms'][name]:+.1f}" for one in found)
        lines.append([f"{name} - stock, ms", *more])
    for mode in found[0]["client_overhead_ms"]:
        overheads = (f"{one['client_overhead_ms'][mode]:+.1f}" for one in found)
        lines.append([f"{mode}: Search - as bytes, ms", *overheads])
    return lines


def cell(value: Record) -> str:
    """Render a ratio with its least and its most."""
    return f"{value['median']:.2f} ({value['least']:.2f} to {value['most']:.2f})"
