"""All printing of the commands: results to stdout, notes, warnings, errors and progress to stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridr.errors import DownloadError, indented, on_one_line, printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

PLAIN_INTERVAL_S = 5.0
WIDTH = 110


class Output:
    """Prints for one command: tables and lines for people, one JSON object with `--json`, no remarks and no
    progress with `--quiet`.

    With `muted` only errors are printed: of several processes that train together, one prints.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False, muted: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet or muted
        self.muted = muted
        self._bar: Bar | None = None
        self._tasks: dict[str, TaskID] = {}
        self._plain: dict[str, tuple[float, float, int]] = {}

    def result(self, value: Any) -> None:
        """Print `value` as JSON if `--json` was given."""
        if self.as_json and not self.muted:
            # Control characters occur in strings only, where a JSON reader decodes the escapes.
            with report_write_error():
                sys.stdout.write(printable(json.dumps(value, ensure_ascii=False, default=str)) + "\n")

    def line(self, text: str = "") -> None:
        """Print one line of a result for people; nothing with `--json`."""
        if not (self.as_json or self.muted):
            with report_write_error():
                sys.stdout.write(on_one_line(text) + "\n")

    def refusal(self, refusal: Mapping[str, Any] | None) -> None:
        """Print why the command would be refused without --dry-run, with the hint; nothing for None."""
        if refusal:
            self.line(f"without --dry-run this is refused: {refusal['message']}")
            self.line(f"hint: {refusal['hint']}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
        """Print a table unless `--json`: numbers right-aligned, floats with four decimals."""
        if self.as_json:
            return
        from io import StringIO

        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table, title = Table(box=None, pad_edge=False), printable(title)
        for number, name in enumerate(columns):
            is_numeric = all(isinstance(row[number], (int, float)) for row in rows)
            table.add_column(name, justify="right" if is_numeric else "left", overflow="fold")
        for row in rows:
            cells = (f"{cell:.4f}" if isinstance(cell, float) else on_one_line(str(cell)) for cell in row)
            table.add_row(*map(Text, cells))
        buffer = StringIO()
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        Console(file=buffer, width=width, highlight=False).print(table)
        if title:
            self.line(title)
        for text in buffer.getvalue().splitlines():
            self.line(text.rstrip())

    def requests(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Print HTTP requests in a form that can be sent by hand."""
        for request in requests:
            self.line(f"{request['method']} {request['path']}")
            if request.get("body") is not None:
                for text in json.dumps(request["body"], indent=2).splitlines():
                    self.line(text)

    def note(self, text: str) -> None:
        """Print a remark to stderr, unless `--quiet` or `--json` was given."""
        if not (self.quiet or self.as_json):
            self.warning(text)

    def warning(self, text: str) -> None:
        """Print a warning to stderr, also with `--quiet` and `--json`."""
        if not self.muted:
            self.close()
            sys.stderr.write(indented(text) + "\n")

    def error(self, message: str, hint: str | None) -> None:
        """Print an error and its hint to stderr."""
        self.close()
        sys.stderr.write(indented(f"error: {message}") + "\n")
        if hint:
            sys.stderr.write(indented(f"hint: {hint}") + "\n")

    def progress(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Show progress: a bar with the remaining time on a terminal, else a line every few seconds."""
        if self.quiet or self.as_json:
            return
        stage, note = printable(stage), printable(note)
        if sys.stderr.isatty():
            self._advance_bar(stage, done, total, note)
        else:
            self._plain_line(stage, done, total, note)

    def close(self) -> None:
        """Stop the progress bar and leave its last state on the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar, self._tasks = None, {}

    def _advance_bar(self, stage: str, done: int, total: int | None, note: str) -> None:
        """Show progress in the bar of a terminal."""
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                *(TextColumn("{task.description:<28}", markup=False), BarColumn(), MofNCompleteColumn()),
                *(
                    TimeRemainingColumn(elapsed_when_finished=True),
                    TextColumn("{task.fields[note]}", markup=False),
                ),
            )
            self._bar = Progress(*columns, console=Console(file=sys.stderr))
            self._bar.start()
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=total, note=note)
        self._bar.update(self._tasks[stage], completed=done, total=total, note=note)

    def _plain_line(self, stage: str, done: int, total: int | None, note: str) -> None:
        """Print progress as a line if the previous line is 5 seconds old or the stage has ended."""
        now = time.monotonic()
        started, printed, first = self._plain.get(stage, (now, 0.0, done))
        is_finished = total is not None and done >= total
        if is_finished or now - printed >= PLAIN_INTERVAL_S:
            printed = now
            time_left = remaining(done - first, total - first, now - started) if total else ""
            size = f"/{total:,}" if total else ""
            sys.stderr.write(f"{stage}: {done:,}{size}{time_left}{'  ' + note if note else ''}\n")
        self._plain[stage] = (started, float("inf") if is_finished else printed, first)


@contextmanager
def report_write_error() -> Iterator[None]:
    """Run the block; turn a write error such as a full disk into DownloadError, but not a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        raise DownloadError(f"the result cannot be written: {error.strerror}") from None


def first_few(values: Iterable[str]) -> str:
    """Return the first five values, comma-separated, with an ellipsis if there are more."""
    texts = list(values)
    return ", ".join(texts[:5] + ["…"] if len(texts) > 5 else texts)


def remaining(done: int, total: int, elapsed_s: float) -> str:
    """Return the estimated time left as text for a progress line; "" at the start and the end."""
    if done <= 0 or done >= total:
        return ""
    seconds = round(elapsed_s * (total - done) / done)
    return f", {seconds // 60}:{seconds % 60:02d} left"
