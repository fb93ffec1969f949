"""Tokenizers that others made: none may blow a text up before it is cut, or take minutes for one."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..files.foreign import parsed_json

MOST_GROWTH = 64  # of a text by a tokenizer's own replacements
MOST_FRAME = 64  # special tokens around a text; two or three are usual
MOST_LETTERS = 1000  # of a word that WordPiece takes apart: its time grows with their cube
MOST_REPEATS, MOST_REPEATED = 4, 1000  # in all regular expressions of a tokenizer; how often a number asks
INNER = ("normalizers", "pretokenizers", "processors", "decoders")
PATTERN = re.compile(r"\\p\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|[*+?][?+]?|\{(\d*)(?:,(\d*))?\}|.", re.DOTALL)
TAILS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
USUAL_PATTERNS = frozenset(
    (
        rf"{ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
        rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{TAILS}",
        rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{TAILS}",
    )
)
"""The regular expressions of GPT-2, Qwen and Llama 3, which others took over."""


def checked_tokenizer(definition: str) -> dict[str, Any]:
    """Parse the JSON of a tokenizer.

    Raises ValueError when it would blow texts up before it cuts them, or take minutes for one.
    """
    record = parsed_json(definition)
    kinds = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    steps = [step for kind in kinds for step in steps_of(record.get(kind))]
    growth = 1
    for step in steps_of(record.get("normalizer")):
        growth *= growth_of(step)
    if growth > MOST_GROWTH:
        raise ValueError(
            f"the tokenizer makes texts up to {growth:,} times longer, {MOST_GROWTH} is the most"
        )
    if (frame := sum(map(tokens_around, steps))) > MOST_FRAME:
        raise ValueError(f"the tokenizer adds {frame:,} tokens to each text, {MOST_FRAME} is the most")
    model = record.get("model")
    letters = model.get("max_input_chars_per_word") if isinstance(model, dict) else None
    if isinstance(letters, int) and letters > MOST_LETTERS:
        raise ValueError(
            f"the tokenizer takes words of {letters:,} letters apart, {MOST_LETTERS} are the most"
        )
    require_quick([pattern for step in steps if isinstance(pattern := regex_of(step), str)])
    return dict(record)


def steps_of(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part of a tokenizer, those inside of sequences too."""
    if isinstance(part, dict):
        yield part
        for name in INNER:
            for inner in steps if isinstance(steps := part.get(name), list) else ():
                yield from steps_of(inner)


def growth_of(step: dict[str, Any]) -> int:
    """Tell how many times longer a step of a normaliser makes a text, at most."""
    if step.get("type") == "Precompiled":
        return longest_put(str(step.get("precompiled_charsmap") or "")) // 4 or 1  # bytes of a character
    put = step.get("content") if step.get("type") == "Replace" else step.get("prepend")
    return max(1, len(put)) if isinstance(put, str) else 1


def longest_put(charsmap: str) -> int:
    """Measure the longest text, in bytes, that SentencePiece's table of characters puts in place of one.

    It is a trie, with its size before it, and the texts, each ended by a zero.
    """
    table = base64.b64decode(charsmap)
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(map(len, texts.split(b"\0")))


def tokens_around(step: dict[str, Any]) -> int:
    """Count the tokens that a step puts around a text. Raises ValueError for what is no template."""
    if step.get("type") != "TemplateProcessing":
        return 0
    try:
        sizes = {name: len(token["ids"]) for name, token in step["special_tokens"].items()}
        pieces = [piece["SpecialToken"]["id"] for piece in step["single"] if "SpecialToken" in piece]
        return sum(sizes.get(piece, 0) for piece in pieces)
    except (KeyError, TypeError, AttributeError):
        raise ValueError("the tokenizer has a broken template") from None


def regex_of(step: dict[str, Any]) -> Any:
    """Give the regular expression of a step, if it has one."""
    pattern = step.get("pattern")
    return pattern.get("Regex") if isinstance(pattern, dict) else None


def require_quick(patterns: Sequence[str]) -> None:
    """Raise ValueError for regular expressions that can take minutes for a page of text.

    Known ones are taken. Of the others each alternative repeats one thing at most, none has groups, and all
    together repeat few: then the time grows with the square of the text at worst. Twelve characters that
    repeat twice were seen to take three minutes for 3,200 letters.
    """
    repeats = 0
    for pattern in patterns:
        if pattern not in USUAL_PATTERNS:
            counts = repeats_of(pattern)
            repeats += sum(counts)
            if max(counts) > 1 or repeats > MOST_REPEATS:
                raise ValueError(
                    f"the tokenizer's pattern {pattern[:100]!r} may take minutes for a text: "
                    f"groups, or more than one repetition an alternative, or over {MOST_REPEATS} in all"
                )


def repeats_of(pattern: str) -> list[int]:
    """Count the repetitions in each alternative; a group, and a call of one, counts as two of them."""
    counts = [0]
    for part in PATTERN.finditer(pattern):
        matched, numbers = part[0], [int(number) for number in part.groups() if number]
        if matched == "|":
            counts.append(0)
        elif matched in ("(", ")", r"\g", r"\k") or max(numbers, default=0) > MOST_REPEATED:
            counts[-1] += 2
        elif numbers or matched[0] in "*+?{":
            counts[-1] += 1
    return counts
