"""Trains a DAM on documents (`hybridr dam train`): token cache, training, and the written folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tokenizers import Tokenizer
from tokenizers.models import BPE

from ..encoders.export.fetched_models import minilm
from ..encoders.passages import BREAKLESS_ENDS, SENTENCE_ENDS
from ..encoders.registry import is_default
from ..errors import DataError, ModelError, extra
from ..families import load_member
from ..files.local import fingerprint, sha256_of
from ..files.staging import claimed_folder, staged_folder
from ..records import Document, Progress, silent
from ..relevance.corpus import Source, estimate_bytes, read_source, source_record
from . import runs
from .backbone import WEIGHT_FILES, Dam, read_dam, write_dam_files
from .loop import Processes, choose_precision, require_disk, require_memory, train
from .objectives import FitsDam
from .rankers import local_path
from .settings import OBJECTIVES, DamSettings
from .token_cache import SPECIAL_TOKENS, Frame, TokenCache, build_cache, open_cache

with extra("train", "training a DAM"):
    import torch

KEY_VERSION = 1  # version of the procedure; raise it when results change, so that finished runs are repeated
STAGE = "dam"
TOKENS_FOLDER = "tokens"
MIN_DOCUMENTS = 2
MAX_UNKNOWN_SHARE = 0.5  # of the tokens
NOT_RECORDED = {"out", "device", "checkpoint_every"}
NOT_COMPARED = NOT_RECORDED | {"base"}  # its weights and tokenizer are compared
PIECE, BLANK = "##", "Ġ"  # prefix of a token inside a word (BERT), and at its beginning (RoBERTa)
Through: TypeAlias = Callable[[Iterable[Document]], Iterable[Document]]


@dataclass(frozen=True, kw_only=True)
class DamFit(runs.Trained):
    """The result: the DAM folder and how it was trained.

    The `unseen_loss` pair is the loss on fixed windows of the held-out documents before and after, None
    without any.
    """

    tokens: int
    """Number of tokens of all documents."""
    precision: str
    fresh_head: bool
    """Whether the base had no masked-LM head, so that a new one tied to its embeddings was added."""
    unseen_loss_start: float | None
    unseen_loss_end: float | None


class DamRun:
    """A training run's settings, processes, base model and precision, and keys that identify results."""

    def __init__(self, settings: DamSettings, progress: Progress) -> None:
        """Open the base model and choose the precision for this machine."""
        self.settings, self.processes = settings, Processes(settings.device)
        with self.processes.main_first():
            if is_default(settings.base):
                folder = minilm(progress=progress)
            else:
                folder = local_path(settings.base, progress)
        with torch.random.fork_rng():  # a new head has random weights
            torch.manual_seed(settings.seed)
            self.dam = read_dam(folder)
        self.frame = read_frame(self.dam)
        weights = next(folder / name for name in WEIGHT_FILES if (folder / name).is_file())
        self.base = {
            "name": folder.name,
            "weights": sha256_of(weights),
            "tokenizer": fingerprint(self.dam.tokenizer),
        }
        self.precision = choose_precision(settings.precision, self.processes.device)
        self.member = load_member(OBJECTIVES, settings.objective)
        self.state = settings.out / runs.STATE_FOLDER

    def key(self, corpus: Any) -> str:
        """Return the fingerprint of all that the result depends on, `corpus` included.

        For a result `corpus` is the fingerprint of its texts; for the tokens of an unfinished run it
        describes their source.
        """
        values = runs.settings_record(self.settings, without=NOT_COMPARED | self.member.unused)
        return fingerprint(
            [KEY_VERSION, values, self.base["weights"], self.base["tokenizer"], self.precision, corpus]
        )


def fit_dam(
    documents: Source,
    settings: DamSettings,
    *,
    through: Through = iter,
    progress: Progress = silent,
) -> DamFit:
    """Train a DAM on documents by `settings.objective`, from the source DAM `settings.base`; write it to
    `settings.out`.

    documents: an iterable of Document, a CorpusFile, or (cluster, index); each is one example, repeated and
    empty texts are left out (Zhan et al. 2022)
    through: a function that the documents are read through; it yields them unchanged and may record them

    A finished run with the same texts and settings is reused. An interrupted one resumes exactly with its
    stored tokens: the source is not read again, so a plain iterable must be the same one. Under `accelerate
    launch` all processes call this together; the main one prepares and writes. Raises ModelError (base,
    vocabulary, memory, loss), DataError (no usable text), DownloadError (base, disk) and SettingsError.
    """
    with claimed_folder(settings.out):
        runs.require_own_folder(settings.out, STAGE, "DAM")
        plan = DamRun(settings, progress)
        progress = progress if plan.processes.is_main else silent
        cache = open_or_build_tokens(plan, documents, through, progress)
        key = plan.key(cache.fingerprint)
        finished = runs.read_finished(settings.out, STAGE, key)
        plan.processes.wait()
        if finished is None:
            entry = train_and_write(plan, cache, key, progress)
            return runs.make_result(DamFit, settings.out, entry, reused=False)
        if plan.processes.is_main:
            shutil.rmtree(plan.state, ignore_errors=True)
        return runs.make_result(DamFit, settings.out, finished[STAGE], reused=True)


def read_frame(dam: Dam) -> Frame:
    """Return the special tokens of a DAM's tokenizer. Raises ModelError if a needed one is missing."""
    if dam.tokenizer is None:
        raise ModelError(
            f"the DAM {dam.folder} has no tokenizer, so texts cannot be read",
            hint="put its tokenizer.json or vocab.txt into the folder",
        )
    tokenizer = Tokenizer.from_str(dam.tokenizer)
    special_ids = tokenizer.encode("").ids
    mask = tokenizer.token_to_id(dam.special_tokens["mask_token"])
    if len(special_ids) != SPECIAL_TOKENS or mask is None:
        problem = (
            f"adds {len(special_ids)} special tokens to a text" if mask is not None else "has no mask token"
        )
        raise ModelError(
            f"the tokenizer of {dam.folder} {problem}; one before, one after and a mask token are needed",
            hint="give a masked-LM checkpoint of BERT, RoBERTa or DistilBERT with its own tokenizer",
        )
    role_ids = (tokenizer.token_to_id(token) for token in dam.special_tokens.values())
    special = tuple(sorted({*special_ids, *(token for token in role_ids if token is not None)}))
    words, is_rest = tokenizer.get_vocab(), continues_word(tokenizer)
    return Frame(
        special_ids[0],
        special_ids[1],
        mask,
        special,
        int(dam.model.config.vocab_size),
        stops=tuple(sorted(number for token, number in words.items() if is_full_stop(token))),
        rests=tuple(sorted(number for token, number in words.items() if is_rest(token))),
    )


def is_full_stop(token: str) -> bool:
    """Return whether a token consists of full stops and similar signs only."""
    marks = token.removeprefix(PIECE).removeprefix(BLANK)
    return bool(marks) and set(marks) <= SENTENCE_ENDS | BREAKLESS_ENDS


def continues_word(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Return a function that tells whether a token continues the word before it.

    BERT marks such a token; RoBERTa marks the others by a blank, which punctuation may lack.
    """
    if isinstance(tokenizer.model, BPE):
        return lambda token: token[:1].isalnum() and not token.startswith(BLANK)
    return lambda token: token.startswith(PIECE)


def open_or_build_tokens(plan: DamRun, documents: Source, through: Through, progress: Progress) -> TokenCache:
    """Return the token cache of an unfinished run, or a new one, which the main process builds.

    Texts are read through the function `through`. Raise DataError for too few different texts, and for a
    tokenizer without the words of the language.
    """
    folder, key = plan.state / TOKENS_FOLDER, plan.key(source_record(documents))
    with plan.processes.main_first():
        cache = open_cache(folder, key)
        if cache is None:
            require_disk(plan.settings.out, plan.dam.model, estimate_bytes(documents))
            texts = read_source(documents, plan.settings.fields, progress)
            cache = build_cache(
                through(texts), str(plan.dam.tokenizer), folder, seed=plan.settings.seed, key=key
            )
    cache = replace(cache, order=cache.order[: plan.settings.max_documents])  # which is random
    if len(cache) < MIN_DOCUMENTS:
        raise DataError(
            f"{cache.read:,} documents hold {len(cache)} different texts; {MIN_DOCUMENTS} are needed"
        )
    if cache.unknown > MAX_UNKNOWN_SHARE * cache.tokens:
        raise DataError(
            f"the tokenizer of {plan.base['name']} does not know {cache.unknown / cache.tokens:.0%} "
            "of the tokens",
            hint="give a --base of the language and script of the documents",
        )
    return cache


def train_and_write(plan: DamRun, cache: TokenCache, key: str, progress: Progress) -> dict[str, Any]:
    """Train the model and write the DAM folder; return its manifest entry, with the loss on unseen texts."""
    settings, processes = plan.settings, plan.processes
    objective: FitsDam = plan.member(plan.dam, plan.frame, cache, settings, plan.precision, processes)
    require_memory(plan.dam.model, objective.budget, processes.device)
    initial_loss = objective.unseen_loss()
    state = plan.state / runs.STATE_FILE
    run = train(objective, state, key, progress=progress)
    unseen = {"unseen_loss": [initial_loss, objective.unseen_loss()]}
    entry = {
        "key": key,
        "documents": objective.documents,
        "objective": plan.member.title.lower(),
        "precision": plan.precision,
        "processes": processes.count,
        "fresh_head": not plan.dam.has_language_head,
        "read": cache.read,
        "tokens": cache.tokens,
        **run.record(),
        **unseen,
    }
    if processes.is_main:
        with staged_folder(settings.out) as folder:  # replaces the unfinished run
            outputs = write_dam_files(plan.dam, folder) + objective.write_extra_weights(folder)
            runs.write_result(
                folder,
                outputs,
                run,
                stage=STAGE,
                settings=runs.settings_record(settings, without=NOT_RECORDED),
                inputs={"base": plan.base, "documents": cache.fingerprint},
                parents=[plan.base["weights"]],
                extra={STAGE: dict(entry)},
            )
    processes.wait()
    return entry
