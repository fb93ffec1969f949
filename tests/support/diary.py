"""A diary: commands that were run for real, what they said, and what of it is the same on every machine."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterable
from typing import Any

import hybridr_cli

MASKS = {
    r"\b20\d\d-\d\d-\d\d(T[\d:]+\+00:00)?": "DATE",
    r"\b[\d.,]+ s\b": "… s",
    r"(time: about) .*": r"\1 …",
    r"[\d.,]+ (GB|MB) (usable|\(\d+%\) free).*": "…",
    r"(term table|model) [\w-]{12,}": r"\1 ID",
    r"\S*/(all-MiniLM-L6-v2-encoder)\b": r"FOLDER/\1",
}
"""What differs from machine to machine, and what stands for it."""
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e-?\d+)?")
TOLERANCE = 0.03  # of figures that are no counts: another processor rounds another way


class Diary:
    """Runs commands and writes down what they said, without what belongs to this machine."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.parts: list[str] = []

    def name(self, shown: str, real: str) -> None:
        """Show something of this machine, an address or a folder, by another name."""
        self.names[shown] = real

    def tell(self, text: str) -> None:
        """Write a paragraph."""
        self.parts.append(text.strip())

    def run(self, command: str, *, code: int | None = 0, only: str = "", first: int = 0) -> str:
        """Run `hybridr …`, and write it with the lines that match `only`, or the first ones; give all.

        It has to end with `code`; None: whatever it ends with.
        """
        out, err = io.StringIO(), io.StringIO()
        words = [self.real(word) for word in shlex.split(command)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = hybridr_cli.main(words)
        assert code in (None, found), (command, found, out.getvalue(), err.getvalue())
        said = out.getvalue() if not code else out.getvalue() + err.getvalue()
        self.show(f"hybridr {command}", shortened(said.splitlines(), only, first), code)
        return said

    def real(self, word: str) -> str:
        """Put what is on this machine in the place of its name."""
        for shown, real in self.names.items():
            word = word.replace(shown, real)
        return word

    def show(self, command: str, lines: Iterable[str], code: int = 0) -> None:
        """Write a command and what it said."""
        said = [f"$ {command}", *(self.masked(line) for line in lines)]
        if code:
            said.append(f"(exit code {code})")
        self.parts.append("\n".join(["```console", *said, "```"]))

    def masked(self, line: str) -> str:
        for shown, real in self.names.items():
            line = line.replace(real, shown)
        for pattern, mask in MASKS.items():
            line = re.sub(pattern, mask, line)
        return line.rstrip()

    @property
    def text(self) -> str:
        return "\n\n".join(self.parts) + "\n"


def shortened(lines: list[str], only: str, first: int) -> list[str]:
    """Keep some lines, and say in a last one that there were more."""
    kept = [line for line in lines if re.search(only, line)] if only else lines
    kept = kept[:first] if first else kept
    return [*kept, "…"] if len(kept) < len(lines) else kept


def differences(found: str, expected: str) -> list[Any]:
    """List the lines that differ in more than the last digits of a figure; what is missing, what too many."""
    mine, theirs = found.splitlines(), expected.splitlines()
    unlike = [pair for pair in zip(mine, theirs, strict=False) if not alike(*pair)]
    return unlike + mine[len(theirs) :] + theirs[len(mine) :]


def alike(one: str, other: str) -> bool:
    """Compare two lines: words and counts are the same, fractions near; p values say nothing."""
    one, other = (re.sub(r"\(p [^)]*\)", "(p)", line) for line in (one, other))
    if NUMBER.sub("0", re.sub(r" +", " ", one)) != NUMBER.sub("0", re.sub(r" +", " ", other)):
        return False
    return all(near(*pair) for pair in zip(NUMBER.findall(one), NUMBER.findall(other), strict=True))


def near(one: str, other: str) -> bool:
    """Compare two figures; without a decimal point they are counts."""
    if "." not in one + other:
        return one == other
    return abs(float(one.replace(",", "")) - float(other.replace(",", ""))) <= TOLERANCE
