"""The model card of an encoder folder, rendered from its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CARD_FILE = "README.md"

TEMPLATE = """\
---
library_name: {library}
pipeline_tag: sentence-similarity
tags: [{library}, opensearch, hybridr]
---

# {title}

{origin}

| | |
|---|---|
{modules}| vector | {dim} dimensions, {similarity}, {pooling} pooling |
| input | {max_tokens} tokens with [CLS] and [SEP]; prefixes: query "{query}", document "{document}" |
| graph | {precision}, pooling and normalisation inside; inputs `input_ids`, `attention_mask` and, for BERT, \
`token_type_ids`; outputs `sentence_embedding` and, of every token, `last_hidden_state` |
| ONNX against {reference} | largest difference {gap:.1e} over {texts} texts{int8}; of tokens' states, \
at length 1, {states:.1e} |
| nDCG@10 | {ndcg} |
| fingerprint | `{fingerprint}` |
| made by | hybridr {hybridr}, {created} |
{adaptation}
## Use

```python
from hybridr import load_encoder
vectors = load_encoder("{folder}").encode_documents(["a text"])
{elsewhere}```

Everything above is in `manifest.json`, with the versions and checksums it was made with.
"""

ELSEWHERE = """
from sentence_transformers import SentenceTransformer
vectors = SentenceTransformer("FOLDER").encode(["a text"])
"""
GRAPH_ONLY = """
# It has a parallel adapter, or is two retrievers in one: ONNX Runtime opens it,
# transformers and sentence-transformers do not.
"""

TRAINED = """Trained without labels on {documents:,} documents: {steps} steps of `{objective}`{method}, \
loss {loss_start:.3f} to {loss_end:.3f}, strength {strength:g}, seed {seed}."""
JOINED = """Fitted without labels to {documents:,} documents: `{objective}`{method}, whose share is \
{strength:g}; {dim} components lose {loss_end:.1%} of their vectors, seed {seed}."""
ADAPTATION = """
## Adaptation

{work}

{gate}

| on {queries} | before | after | p |
|---|---|---|---|
{rows}
"""


def render_card(manifest: Mapping[str, Any]) -> str:
    """Render the README.md of an encoder folder from its manifest."""
    encoder, parity = manifest["encoder"], manifest["parity"]
    adaptation = manifest.get("adaptation")
    adapted = bool(adaptation and adaptation["promoted"])
    floor = parity.get("int8_cosine")
    return TEMPLATE.format(
        **{
            key: encoder[key]
            for key in ("dim", "similarity", "pooling", "max_tokens", "precision", "fingerprint")
        },
        title="An encoder adapted to one collection" if adapted else "A sentence encoder",
        origin=origin_of(manifest, adapted),
        library="onnx" if encoder.get("graph_only") else "sentence-transformers",
        reference=parity.get("reference", "torch"),
        query=encoder["prefixes"]["query"],
        document=encoder["prefixes"]["document"],
        gap=parity["max_abs_difference"],
        states=parity["states"]["max_abs_difference"],
        texts=parity["texts"],
        ndcg=render_ndcg(parity),
        modules=render_modules(manifest.get("assembly")),
        int8=f"; int8 against fp32: mean cosine {floor['mean']:.4f}, least {floor['least']:.4f}"
        if floor
        else "",
        hybridr=manifest["hybridr"],
        created=manifest["created"],
        adaptation=render_adaptation(adaptation) if adaptation else "",
        folder="FOLDER",
        elsewhere=GRAPH_ONLY if encoder.get("graph_only") else ELSEWHERE,
    )


def origin_of(manifest: Mapping[str, Any], adapted: bool) -> str:
    """Say what the encoder was made from."""
    parts = manifest.get("assembly")
    if parts:
        rem = f" and the relevance module `{parts['rem']}`" if parts["rem"] else ""
        return f"Assembled from the masked-LM backbone `{parts['dam']}`{rem}."
    trained = adapted and manifest["adaptation"]["training"]["steps"]
    return f"Made from `{manifest['encoder']['base']}`{' by LoRA, merged' if trained else ''}."


def render_modules(assembly: Mapping[str, Any] | None) -> str:
    """Render a row each for DAM, REM and method; nothing for encoders that were not assembled."""
    if not assembly:
        return ""
    rem = f"`{assembly['rem']}`" if assembly["rem"] else "none"
    method = f"| trained by | {assembly['method']} |\n" if assembly.get("method") else ""
    return f"| domain module (DAM) | `{assembly['dam']}` |\n| relevance module (REM) | {rem} |\n{method}"


def render_ndcg(parity: Mapping[str, Any]) -> str:
    """Say how well each form of the encoder finds documents by queries made from them."""
    ndcg = parity["ndcg"]
    if ndcg is None:
        return f"not measured: {parity['ndcg_reason']}"
    values = ", ".join(
        f"{name} {ndcg[name]:.4f}" for name in ("torch", "numpy", "fp32", "int8") if name in ndcg
    )
    return f"{values} on {ndcg['probes']:,} queries made from {ndcg['documents']:,} documents"


def render_adaptation(record: Mapping[str, Any]) -> str:
    """Render the section about training and gate."""
    gate, training, settings = record["gate"], record["training"], record["settings"]
    rows = [
        f"| {row['name']} | {row['old']:.4f} | {row['new']:.4f} | {row['p']:.3f} |" for row in gate["rows"]
    ]
    method = f" ({record['method']})" if "method" in record else ""
    verb = TRAINED if training["steps"] else JOINED
    return ADAPTATION.format(
        work=verb.format(**settings | dict(training), method=method),
        gate=verdict(record),
        queries=queries_of(gate),
        rows="\n".join(rows),
    )


def queries_of(gate: Mapping[str, Any]) -> str:
    """Say what the encoders were compared on."""
    judged_queries, held_out = gate.get("judged", 0), gate["held_out"]
    return (
        f"{judged_queries} judged queries"
        if judged_queries
        else f"queries made from {held_out} held-out documents"
    )


def verdict(record: Mapping[str, Any]) -> str:
    """Say what the gate decided and which encoder the folder holds."""
    reasons = "; ".join(record["gate"]["reasons"])
    if not record["promoted"]:
        return f"The gate said no ({reasons}): these are the weights of the UNADAPTED encoder."
    if record["forced"]:
        return f"The gate said no ({reasons}); the adapted encoder was exported by force."
    seen = "a gain" if record["gate"].get("judged") else "no harm"
    return f"The gate saw {seen}: these are the adapted weights."
