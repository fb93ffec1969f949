"""Ways through the documents, as `hybridr bench reindex` measures them."""

from __future__ import annotations

from .markdown import Record, machine_of, table

TITLE = "Reindexing"
RESULT = "reindex-speed"
COMMAND = (
    "hybridr node start --with-ml --heap 2g\n"
    "    hybridr bench reindex benchmarks/results/reindex-speed.json --beir FOLDER/scale_open_en "
    "--server-batches 1,32,128"
)


def render(record: Record) -> str:
    """Render `hybridr bench reindex`: a row for each way through the documents."""
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
        f"Documents of `{record['corpus']}`, spread and shuffled; packaged MiniLM in fp32, ONNX Runtime, "
        "batches of 1,024 tokens, the node on the same cores. hybridr's time is that of the whole command: "
        "checks, fill, catch-up, verification, switch. `_reindex` asks `hybridr serve`, which batches across "
        f"requests, with the same encoder. {machine_of(record['machine'])}."
    )
    return f"{said}\n\n{table(header, rows)}"
