"""How fast is hybridr beside what one would use otherwise?

    python benchmarks/run.py speed RACE [options]

RACE is encode, encode-gpu, reindex, search or serve; `speed RACE --help` tells what one takes. They
run on Python's documentation or on BEIR folders.
"""

from __future__ import annotations

import argparse
from functools import partial

from bar import Bar
from races import RACES
from study import Record, Section, add_json, machine_of, table, write_result

RESULT_OF = {
    "encode": "encode",
    "encode-gpu": "encode-gpu",
    "reindex": "reindex-speed",
    "search": "search-speed",
    "serve": "serve-speed",
}
SEARCH_NOTES = """\
- `stock` fuses with OpenSearch's pipeline. `plain` adds true scores of both retrievers in one request.
  `hybrid` is the default, which adds the signals that the index can provide. `completed`, which is no
  longer run, fused z-scores of true scores in the client, from several requests.
- Every query is new to `Search`, so it first requests the weights of the query's terms.
- `by hand` sends bodies written beforehand. For `neural` and `transparent` it first gets the vector from
  `hybridr serve`, as a client without a deployment would. `as bytes` sends what `Search` sends.
- No figure includes encoding: query vectors come from a table, and from the cache of `hybridr serve`.
- Each search has ten hits, and 100 candidates of each retriever. `small` holds 10,000 documents of
  `scale_open_en`, spread over it."""


def options(parser: argparse.ArgumentParser) -> None:
    """Take the race; what follows is its own."""
    races = parser.add_subparsers(dest="race", required=True, metavar="RACE")
    for name, race in RACES.items():
        its_own = races.add_parser(name, help=str(race.run.__doc__).splitlines()[0])
        race.options(its_own)
        add_json(its_own, RESULT_OF[name])


def measure(given: argparse.Namespace) -> None:
    """Run the race, write its figures where the page looks for them, and show them."""
    with Bar({given.race: 1}) as bar:
        bar.begin(given.race)
        found = RACES[given.race].run(given, bar)
    write_result(given.json, found)
    print(next(one.render(found) for one in SECTIONS if one.result == RESULT_OF[given.race]))


def render_search(record: Record) -> str:
    """Render a table of latencies for each index, then the ratios."""
    parts = [f"{machine_of(record['machine'])}, node and load generator {pinned(record)}. {load_of(record)}"]
    for index in record["indices"]:
        parts.append(f"{index['documents']:,} documents, {tokens(index)}:")
        parts.append(table(["way", "clients", "p50 ms", "p95 ms", "p99 ms", "per second"], lanes(index)))
        parts.append(table(["medians of the same round", *heads(index)], compared(index)))
        if index["not_run"]:
            parts.append(f"The deployed ways were not run: {index['not_run']}.")
    return "\n\n".join([*parts, SEARCH_NOTES])


def pinned(record: Record) -> str:
    """Say whether the cores were parted."""
    return "on different cores" if record["pinned"] else "on the same cores"


def load_of(record: Record) -> str:
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


def lanes(index: Record) -> list[list[str]]:
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
            (f"{name} / plain, both by Search", [one["over_plain"][name] for one in found])
            for name in found[0].get("over_plain", ())
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


def render_serve(record: Record) -> str:
    """Render a row for passages and one for queries."""
    rows = [
        [
            one["side"],
            str(one["in_a_request"]),
            f"{one['served_per_second']:.0f}",
            f"{one['alone_per_second']:.0f}",
            f"{one['share']['median']:.2f} ({one['share']['least']:.2f} to {one['share']['most']:.2f})",
        ]
        for one in record["shares"]
    ]
    header = ["texts", "in a request", "served per second", "alone per second", "share"]
    before, after = record["load"]
    return (
        f"{machine_of(record['machine'])}; its load before {before:.1f}, at the end {after:.1f}. "
        f"{record.get('remark', '')} Server, "
        "clients and encoder share the cores. Two clients send passages and 16 send queries, none in the "
        f"cache. The encoder alone gets passages in calls of 32, queries in calls of 16."
        f"\n\n{table(header, rows)}"
    )


def render_encode(record: Record, *, by_clock: bool = False) -> str:
    """Render the race of encoding: a table for each set of texts; of a GPU the clock tells how fast."""
    header = ["encoder", "CPU s", "times", "of product", "documents/s", "tokens/s", "peak MB", "least cosine"]
    machine, parts = record["machine"], []
    for found in record["sets"]:
        ran = (row["wall_s"] for row in found["contenders"] if "not_run" not in row)
        first = next(ran, None) if by_clock else None
        rows = [encode_row(row, first) for row in found["contenders"]]
        parts.append(
            f"{found['name']}: {found['documents']:,} texts, {found['tokens']:,} tokens{bound_of(found)}\n\n"
            f"{table(header, rows)}"
        )
    said = (
        f"CPU seconds of all threads, medians of {record['settings']['rounds']} rounds in turns. The "
        f"column `times` is the first row that ran over this one{', by wall clock' if by_clock else ''}. "
        "Documents and tokens a second are in wall-clock time. The cosine is to hybridr fp32. "
        f"{machine_of(machine)}, {', '.join(machine['features'])}."
    )
    return "\n\n".join([said, *parts])


def bound_of(found: Record) -> str:
    """Say what one product of matrices reaches, where that was measured."""
    speed = found.get("product")
    return (
        f"; {found['gflop']:,} GFLOP. numpy's matrix product does {speed} GFLOP a processor second"
        if speed
        else ""
    )


def encode_row(row: Record, first_s: float | None) -> list[str]:
    """Render one contender, beside the seconds of the first by the clock where these are compared."""
    if "not_run" in row:
        return [row["name"], f"not run: {row['not_run']}", *[""] * 6]
    return [
        row["name"],
        f"{row['cpu_s']:.2f}",
        f"{row['ratio'] if first_s is None else first_s / row['wall_s']:.2f}",
        f"{row['of_product']:.0%}" if "of_product" in row else "",
        f"{row['documents_per_s']:,.0f}",
        f"{row['tokens_per_s']:,.0f}",
        f"{row['peak_mb']:,}",
        f"{row['cosine']['least']:.4f}" if row["cosine"] else "",
    ]


def render_reindex(record: Record) -> str:
    """Render the race of reindexing: a row for each way through the documents."""
    header = ["way", "documents", "documents per second", "of encoding alone", "encoder busy"]
    alone = record["lanes"][0]["documents_per_second"]
    rows = [
        [
            lane["name"],
            f"{lane['documents']:,}",
            f"failed: {lane['failure']}" if lane["failure"] else f"{lane['documents_per_second']:.1f}",
            "" if lane["failure"] else f"{lane['documents_per_second'] / alone:.1%}",
            "" if lane["busy"] is None else f"{lane['busy']:.1%}",
        ]
        for lane in record["lanes"]
    ]
    said = (
        f"Documents of `{record['corpus']}`, spread and shuffled. The packaged MiniLM in fp32 ran in "
        "ONNX Runtime with batches of 1,024 tokens, the node on the same cores. hybridr's time "
        "is that of the whole command: checks, filling, catch-up, verification, switch. "
        "`_reindex` calls `hybridr serve` with the same "
        f"encoder, which batches across requests. {machine_of(record['machine'])}."
    )
    if record["not_run"]:
        said += f" The server's own way was not run: {record['not_run']}."
    return f"{said}\n\n{table(header, rows)}"


def command(race: str, *lines: str) -> str:
    """Write how a race is run: what is to be done before it, and its options."""
    *before, options = lines
    return "\n    ".join([*before, f"python benchmarks/run.py speed {race} {options}".rstrip()])


NODE = "hybridr node start --with-ml --heap 2g"
SECTIONS = [
    Section(
        50,
        "Searching, by mode and by way of asking",
        RESULT_OF["search"],
        command(
            "search",
            NODE,
            "hybridr load FOLDER/scale_open_en --index scale && hybridr reindex scale --max-tokens 16",
            "--index small --index scale --beir FOLDER/scale_open_en --queries 100 --requests 100",
        ),
        render_search,
    ),
    Section(
        60,
        "The server against the encoder alone",
        RESULT_OF["serve"],
        command("serve", "--beir FOLDER/scale_open_en --passages 320 --queries 400 --rounds 3"),
        render_serve,
    ),
    Section(
        110,
        "Encoding against other libraries",
        RESULT_OF["encode"],
        command("encode", "--beir FOLDER/scifact --beir FOLDER/npl --peers PYTHON"),
        render_encode,
    ),
    Section(
        112,
        "Encoding on a GPU",
        RESULT_OF["encode-gpu"],
        command("encode-gpu", "--beir FOLDER/scifact --beir FOLDER/npl --documents 2000 --rounds 2"),
        partial(render_encode, by_clock=True),
    ),
    Section(
        130,
        "Reindexing",
        RESULT_OF["reindex"],
        command("reindex", NODE, "--beir FOLDER/scale_open_en --server-batches 1,32,128"),
        render_reindex,
    ),
]
