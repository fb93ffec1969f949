"""Works on all shares at once, in threads of this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ...cluster.reading import Position
from ..job import Filling, Job, Meter, Work


def fill_parts(
    job: Job,
    parts: list[tuple[int, int]],
    positions: list[Position],
    until: Position | None,
    meter: Meter,
    work: Work,
) -> list[Filling]:
    """Work on all parts at once; when one fails, or Ctrl-C is pressed, the others stop after their page."""
    if len(parts) == 1:
        return [work(job, parts[0], positions[0], until, meter)]
    with ThreadPoolExecutor(len(parts)) as pool:
        try:
            return list(pool.map(lambda part, at: work(job, part, at, until, meter), parts, positions))
        except BaseException:
            job.stop.set()
            raise
