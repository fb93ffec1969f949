"""Reports of an index as text for a model: inspection, reindex plan, evaluation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import anyio
import anyio.to_thread

from ...errors import HybridrError
from .wording import WARNED, ToolFailure, bounded, fitting, plain_text, shown_name

Report: TypeAlias = Callable[..., Mapping[str, Any]]
"""Takes an index's name, for `evaluate` the systems too, and `progress`; gives what `--json` shows."""
MOST_SYSTEMS = 6
BUSY = "another report is being made"


class Reports:
    """Makes one report at a time, each within `timeout_s`."""

    def __init__(self, reports: Mapping[str, Report], timeout_s: float) -> None:
        self.reports, self.timeout_s = dict(reports), timeout_s
        self.working = threading.Lock()

    async def write(self, kind: str, index: str, *arguments: Any) -> str:
        """Return a report as text. Raises ToolFailure if it fails, takes too long, or another one is being
        made.
        """
        late = ToolFailure(
            f"{kind} takes longer than {self.timeout_s:g} s",
            hint=f"tell the user to run: hybridr {COMMANDS[kind]}".format(index=index),
        )
        work = partial(self._write, kind, index, arguments, late)
        with anyio.move_on_after(self.timeout_s):
            return bounded(await anyio.to_thread.run_sync(work, abandon_on_cancel=True))
        raise late

    def _write(self, kind: str, index: str, arguments: Sequence[Any], late: ToolFailure) -> str:
        """Return a report as text; raise ToolFailure if another one is being made, or if it takes too
        long.
        """
        if not self.working.acquire(blocking=False):
            raise ToolFailure(BUSY, hint="ask again in a minute")
        deadline = time.monotonic() + self.timeout_s

        def stop_when_late(*_: Any, **__: Any) -> None:
            """Raise `late` if the time is over; called as a progress function."""
            if time.monotonic() > deadline:
                raise late

        try:
            return WRITERS[kind](index, self.reports[kind](index, *arguments, progress=stop_when_late))
        except HybridrError as error:
            raise ToolFailure(error.message, hint=error.hint) from None
        finally:
            self.working.release()


def written(lines: Iterable[str], end: str = "") -> str:
    """Return lines behind the mark of data, as many as fit into an answer."""
    text, _ = fitting(WARNED, (f"| {plain_text(line)}" for line in lines if line))
    return f"{text}\n{end}" if end else text


def inspection_text(index: str, report: Mapping[str, Any]) -> str:
    """Return an inspection as text: fields, lengths, language and advice."""
    lengths, language = report["lengths"], report["language"]
    cut = "" if lengths["cut"] is None else f", {lengths['cut']:.1%} longer than the limit {lengths['limit']}"
    lines = [
        f"{report['index']}: {report['documents']:,} documents in {report['shards']} shards, "
        f"{report['sampled']:,} read",
        f"text: {names(report['text_fields'])}; words are searched in {names(report['lexical_fields'])}",
        f"lengths: median {lengths['median']}, p90 {lengths['p90']} {lengths['unit']}{cut}",
        f"language: {language['code']}, {language['share']:.0%} of the texts; analyser {report['analyzer']}",
        f"duplicates {report['duplicates']:.1%}, without text {report['empty']:.1%}",
        *(f"advice: {remark}" for remark in report["advice"]),
        *(
            f"field {shown_name(field['name'])} ({field['type']})"
            + ("" if field["filled"] is None else f", filled {field['filled']:.0%}")
            + (", encoded" if field["used"] else "")
            + (f": {field['why']}" if field["why"] else "")
            for field in report["fields"]
        ),
    ]
    return written(lines)


def plan_text(index: str, report: Mapping[str, Any]) -> str:
    """Return the plan of a reindex as text: documents, sizes, disk, time and requests."""
    disk, requests = report["disk"], report["requests"]
    lines = [
        f"{report['documents']:,} documents, text from {names(report['fields'])}, "
        f"words from {names(report['lexical_fields'])}",
        f"vectors and graph: about {report['vector_bytes'] / 1e6:,.1f} MB a copy",
        disk
        and f"disk: about {disk['needed_bytes'] / 1e6:,.1f} MB with replicas, "
        f"{disk['usable_bytes'] / 1e6:,.0f} MB usable",
        f"time: about {report['seconds']:,.0f} s" if report["seconds"] is not None else "",
        *(f"  {stage}: {seconds:,.1f} s" for stage, seconds in report["stages"].items() if seconds),
        *report["notes"],
        *(f"would send {request['method']} {request['path']}" for request in requests),
    ]
    return written(lines, f"nothing was sent; the user starts it by: hybridr reindex {index}")


def evaluation_text(index: str, report: Mapping[str, Any]) -> str:
    """Return an evaluation as text: each system's means with intervals, and tests against the baseline."""
    lines = [
        f"{report['queries']:,} judged queries, against {report['baseline']}",
        *(
            f"{system}: "
            + ", ".join(
                f"{measure} {mean:.4f} [{low:.4f}, {high:.4f}]"
                for measure, mean in means.items()
                for low, high in [report["intervals"][system][measure]]
            )
            for system, means in report["systems"].items()
        ),
        *(
            f"{test['system']} {test['measure']}: {test['difference']:+.4f}, p {test['p_holm']:.2g}"
            for test in report["comparisons"]
        ),
        *report["remarks"],
    ]
    return written(lines, "a difference with p of .05 or more may be chance")


def names(fields: Iterable[str]) -> str:
    """Return names of fields, quoted and joined; "none" if there are none."""
    return ", ".join(map(shown_name, fields)) or "none"


WRITERS = {"inspect": inspection_text, "plan": plan_text, "evaluate": evaluation_text}
COMMANDS = {
    "inspect": "inspect {index}",
    "plan": "reindex {index} --dry-run",
    "evaluate": "evaluate {index} --beir FOLDER",
}
