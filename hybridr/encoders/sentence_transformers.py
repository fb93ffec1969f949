"""A sentence-transformers folder: what is read of it, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import Tokenizer

from ..errors import ModelError, extra
from ..files.folders import is_file_name
from ..files.foreign import read_within
from ..files.manifest import read_manifest, sha256_of
from .contract import WEIGHTS_FILE, longest_input, require_no_links
from .model_json import FETCH_AGAIN, backbone_folder, explaining, read_object
from .model_usage import configured_tokenizer, read_usage
from .tokens import TOKENIZER_FILE, canonical_tokenizer

if TYPE_CHECKING:
    import torch

    from ..training.retriever import Retriever

CLASSIFIER = "ForSequenceClassification"
BRACKETS = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
ANGLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
PREPARED = {kind: ANGLES for kind in ("roberta", "xlm-roberta", "camembert")}
PREPARED["mpnet"] = ANGLES | {"unk_token": "[UNK]"}
"""By `model_type`; all others write brackets, as BERT and DistilBERT do."""
FILES = ("special_tokens_map.json", "tokenizer_config.json")
STEMS = {
    "albert": "Albert",
    "bert": "Bert",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "modernbert": "ModernBert",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}
"""The kinds of backbone that are opened, and how their classes in transformers begin."""
OLDER_KEYS = {"global_rope_theta", "local_rope_theta", "layer_norm_epsilon"}
"""What older configurations say in other words, and transformers still reads."""
NOT_HANDED_ON = {"transformers_version", "dtype", "architectures", "model_type", "_name_or_path"}
OLD_WEIGHTS, OLD_SHARDS = "pytorch_model.bin", "pytorch_model.bin.index.json"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
"""Names the file of each weight, where they lie in several."""
MOST_SHARDS = 1_000
MOST_LAYERS = 1_000


def read_retriever(folder: Path | str, *, max_tokens: int | None = None) -> Retriever:
    """Open a sentence-transformers bi-encoder in fp32 on the CPU.

    The input limit is the model's own, or `max_tokens` if that is lower. Raises ModelError when the folder
    is missing, damaged, or holds another kind of model, MissingExtra without torch.
    """
    folder = Path(folder)
    require_intact(folder)
    from ..training.retriever import Retriever

    with explaining(folder):
        usage = read_usage(folder, max_tokens)
    backbone, tokenizer, missing = read_model(backbone_folder(folder))
    drop_missing(backbone, missing, folder)
    limit = min(usage.max_tokens, longest_input(backbone.config))
    return Retriever(backbone, tokenizer, replace(usage, max_tokens=limit), folder)


class OpenedModel(NamedTuple):
    """A model of transformers in fp32, its tokenizer as JSON, and the names of weights that it lacks."""

    model: Any
    tokenizer: str
    missing: set[str]


def read_model(folder: Path, head: str = "Model") -> OpenedModel:
    """Open a model of transformers, named by its `head`, and the tokenizer beside it. Raises ModelError."""
    with explaining(folder):
        config = read_configuration(folder)
        tokenizer = canonical_tokenizer(
            configured_tokenizer(folder, read_tokenizer(folder, config.model_type))
        )
        with quiet():
            model, info = read_backbone(folder, config, head)
        require_same_model(folder, model, tokenizer, info)
    return OpenedModel(model.float().eval(), tokenizer, set(info["missing_keys"]))


def read_configuration(folder: Path) -> Any:
    """Make the configuration of a backbone in transformers. Raises ModelError.

    Only what the kind's own configuration knows is handed on, so that nothing in the file can name code,
    kernels or another place.
    """
    record = known_configuration(folder)
    make = getattr(imported_transformers(), f"{STEMS[record['model_type']]}Config")
    known = (make().to_dict().keys() | OLDER_KEYS) - NOT_HANDED_ON
    with explaining(folder):
        return make(**{name: value for name, value in record.items() if name in known})


def known_configuration(folder: Path) -> dict[str, Any]:
    """Read `config.json` of one of the known kinds of backbone, without torch. Raises ModelError."""
    record = read_object(folder, "config.json", needed=True)
    kind = record.get("model_type")
    if not isinstance(kind, str) or kind not in STEMS:
        raise ModelError(
            f"the model {folder} is of the kind {kind!r}; one of {', '.join(STEMS)} is needed",
            hint="no other kind is opened, above all none that brings code of its own",
        )
    if record.get("position_embedding_type") not in (None, "absolute"):
        found = record["position_embedding_type"]
        raise ModelError(f"the model {folder} has {found!r} positions, not absolute ones")
    layers = record.get("num_hidden_layers", record.get("n_layers", 1))
    if not isinstance(layers, int) or not 0 < layers <= MOST_LAYERS:
        raise ModelError(f"the model {folder} has {str(layers)[:20]} layers, 1..{MOST_LAYERS} are read")
    return record


def imported_transformers() -> Any:
    """Import transformers. Raises MissingExtra: what encodes and searches does without."""
    with extra("train", "adapting or exporting a model"):
        import transformers
    return transformers


def read_backbone(folder: Path, config: Any, head: str = "Model") -> tuple[Any, Mapping[str, Any]]:
    """Build the backbone around the folder's weights; `missing_keys` and `unexpected_keys` tell what differs.

    Raises ModelError, and what torch, safetensors and transformers raise.
    """
    from ..training.retriever import stored_tensors

    weights: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        weights |= stored_tensors(path)
    kind = getattr(imported_transformers(), f"{STEMS[config.model_type]}{head}")
    require_plausible(folder, kind, config, weights)
    backbone, info = kind.from_pretrained(
        None,
        config=config,
        state_dict=weights,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
    )
    return backbone, info


def require_plausible(folder: Path, kind: Any, config: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError when the configuration is that of a far larger model, before memory is taken."""
    import torch

    with torch.device("meta"):
        needed = sum(weight.numel() for weight in kind(config).parameters())
    there = sum(weight.numel() for weight in weights.values())
    if needed > 8 * max(there, 1_000):
        raise ModelError(
            f"config.json of {folder} speaks of {needed:,} weights, {there:,} are there", hint=FETCH_AGAIN
        )


def require_same_model(folder: Path, backbone: Any, tokenizer: str, info: Mapping[str, Any]) -> None:
    """Raise ModelError when configuration or tokenizer belong to another model than the weights."""
    beyond = sorted(key for key in info["unexpected_keys"] if ".layer." in key)
    if beyond:
        raise ModelError(
            f"the model {folder} has more layers than config.json says, such as {beyond[0]}", hint=FETCH_AGAIN
        )
    require_embeddings(folder, tokenizer, int(backbone.get_input_embeddings().weight.shape[0]))


def require_embeddings(folder: Path, tokenizer: str, rows: int) -> None:
    """Raise ModelError when a tokenizer gives ids that have none of the model's `rows` of embeddings."""
    highest = max(Tokenizer.from_str(tokenizer).get_vocab().values(), default=0)
    if highest >= rows:
        raise ModelError(
            f"the tokenizer of {folder} has ids up to {highest:,}, the model {rows:,} embeddings",
            hint="the tokenizer belongs to another model: fetch the folder again",
        )


def weight_files(folder: Path) -> list[Path]:
    """List the files of a folder's weights: one, or the shards that `model.safetensors.index.json` names.

    Raises ModelError where there are none, or a shard is missing.
    """
    for name in (WEIGHTS_FILE, OLD_WEIGHTS):
        if (folder / name).is_file():
            return [folder / name]
    if not (folder / INDEX_FILE).is_file():
        sharded = (folder / OLD_SHARDS).is_file()
        hint = (
            "its weights are shards of torch: save_pretrained of transformers writes safetensors"
            if sharded
            else FETCH_AGAIN
        )
        raise ModelError(f"the model {folder} has no {WEIGHTS_FILE}", hint=hint)
    places = read_object(folder, INDEX_FILE).get("weight_map")
    names = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
    if not 0 < len(names) <= MOST_SHARDS:
        raise ModelError(f"{INDEX_FILE} of {folder} names {len(names):,} files of weights", hint=FETCH_AGAIN)
    for name in names:
        if not is_file_name(name) or not name.endswith(".safetensors") or not (folder / name).is_file():
            raise ModelError(
                f"{INDEX_FILE} of {folder} names {name[:80]!r}, which is not there", hint=FETCH_AGAIN
            )
    return [folder / name for name in names]


def require_intact(folder: Path) -> None:
    """Raise ModelError when the folder is no bi-encoder, or its files are not its own, or were changed."""
    if not (folder / "modules.json").is_file():
        found = "has no modules.json" if folder.is_dir() else "does not exist"
        raise ModelError(f"{folder} {found}: a sentence-transformers bi-encoder is needed", hint=FETCH_AGAIN)
    require_no_links(folder)
    expected = (read_manifest(folder) or {}).get("outputs", {}).get(WEIGHTS_FILE)
    weights = folder / WEIGHTS_FILE
    if expected and (not weights.is_file() or sha256_of(weights) != expected):
        raise ModelError(
            f"the model {folder} is damaged: {WEIGHTS_FILE} is not what was exported", hint=FETCH_AGAIN
        )


def is_place(key: str) -> bool:
    """Tell whether a key of a tokenizer's configuration names a file, wherever it may lie."""
    return key.endswith("_file") and key != "special_tokens_map_file"


def read_tokenizer(folder: Path, kind: str) -> str:
    """Read the tokenizer as JSON of the `tokenizers` package; that of older folders by the kind's class."""
    path = folder / TOKENIZER_FILE
    if path.is_file():
        return read_within(path).decode()
    if named := [name for name, value in read_object(folder, FILES[1]).items() if value and is_place(name)]:
        raise ModelError(f"the model {folder} takes its {named[0]} from elsewhere", hint=FETCH_AGAIN)
    make = getattr(imported_transformers(), f"{STEMS[kind]}TokenizerFast")
    fast = make.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return str(fast.backend_tokenizer.to_str())


def drop_missing(backbone: Any, missing: set[str], folder: Path) -> None:
    """Remove an untrained pooler, which the vectors do not use; any other missing weight is an error."""
    lost = sorted(name for name in missing if not name.startswith("pooler."))
    if lost:
        raise ModelError(f"the model {folder} lacks {len(lost)} weights, such as {lost[0]}", hint=FETCH_AGAIN)
    if missing:
        backbone.pooler = None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and from remarks on what it loads: it is checked here."""
    logging: Any = imported_transformers().utils.logging
    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def read_special_tokens(folder: Path | None, kind: str) -> dict[str, str]:
    """Name the special tokens by role, as "pad_token". Raises ModelError when a file is damaged."""
    named = dict(PREPARED.get(kind, BRACKETS))
    for file in FILES if folder else ():
        record = read_object(Path(str(folder)), file)
        for role in named:
            token = record.get(role)
            content = token.get("content") if isinstance(token, dict) else token
            named[role] = content if isinstance(content, str) and content else named[role]
    return named
