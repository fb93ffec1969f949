"""DR versus DDR on two CPU cores."""

from __future__ import annotations

from pathlib import Path

from .markdown import LEAD, Record, machine_of, table

TITLE = "DR versus DDR, reduced form"
RESULT = "ddr-reduced"
COMMAND = "python benchmarks/ddr.py FOLDER --form reduced"
ROWS = {
    "bm25": "BM25",
    "as-is": "the backbone as it comes (a retriever)",
    "source": "source DAM + REM, nothing fitted to the target",
    "dr": "DR: all weights trained on the source's labels",
    "ddr": "DDR: target DAM + REM",
    "ddr-si": "DDR without sequential initialisation",
    "ddr-df": "DDR without disentangled finetuning",
    "lora": "DDR, REM of LoRA",
    "parallel": "DDR, REM of a parallel adapter",
    "both": "DDR, REM of both",
}
NOTE = """How to read it: every row but BM25 starts from MiniLM, and all trained ones lose against
MiniLM as it comes: so few labels and steps, by inner product, cost more than they
bring. A few hundred steps of masked-LM with a head that starts from nothing undo most
of what a retriever has learnt. Sequential initialisation helps (DDR above DDR without
it, on both); fitting the DAM to the target does not at this scale. The paper's regime,
100,000 steps on a masked-LM checkpoint, is another one: this table says nothing about
it."""


def render(record: Record) -> str:
    """Render DR versus DDR: rows by targets."""
    targets: dict[str, Record] = record["targets"]
    names = list(dict.fromkeys(row for found in targets.values() for row in found["systems"]))
    header = [LEAD, *(f"{name} ({found['queries']:,} queries)" for name, found in targets.items())]
    rows = [[ROWS[name], *(ddr_cell(found, name) for found in targets.values())] for name in names]
    form = record["settings"]
    said = (
        f"Source `{form['source']}`, backbone {backbone_of(form)}. A star marks p < .05 against DR (paired "
        f"t, Holm over the rows). {machine_of(record['machine'])}."
    )
    note = [NOTE] if record["form"] == "reduced" else []
    return "\n\n".join([said, table(header, rows), time_of(record), *note])


def ddr_cell(found: Record, name: str) -> str:
    """Render one value."""
    star = "*" if found["against_dr"].get(name, {"p_holm": 1.0})["p_holm"] < 0.05 else ""
    return f"{found['systems'][name][LEAD]:.4f}{star}"


def backbone_of(form: Record) -> str:
    """Say what the backbone was."""
    if form["backbone"] != "minilm":
        return f"`{Path(form['backbone']).name}`"
    return "the packaged MiniLM with a masked-LM head tied to its embeddings"


def time_of(record: Record) -> str:
    """Say how long the trainings took."""
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in record["training_s"].items())
    return f"Training, by the clock: {seconds}."
