"""Experiments: compare two rankings of an index with its users by interleaving, and promote the winner.

A ranking is a `Ranking` in the index's record, and an experiment has two: servers interleave them
(`serving/snapshots.py`), all other searches rank by `a`, and promoting one writes it into the record.
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote
from typing import Any, Literal, TypeAlias

from ..cluster.aliases import resolve_complete
from ..cluster.connection import Cluster
from ..cluster.destinations import event_change, resolve, rewrite
from ..cluster.record import Event, IndexInfo, Record
from ..cluster.record_parts import Experiment, Ranking
from ..encoders.contract import Encoder
from ..errors import DataError, NotFound, SettingsError
from ..evaluation.significance import ALPHA, Team, count_preferences, preferred_team
from ..records import Progress, Reported, silent
from ..search.checks import encoder_for
from ..search.search import Search
from ..search.settings import NAMES_A_FILE, SearchSettings
from ..settings import read_config
from .clicks.clicks import COUNTS_OF_EXPERIMENT, ClickLedger
from .clicks.ubi import QUERIES, LogReader, LogRecords, read_ubi_records

TODAY, LEARNT, TUNED = "today", "learnt", "tuned"
REMOVED_PARTS: dict[str, dict[str, Any]] = {LEARNT: {"memory": None}, TUNED: {"search": None, "chain": None}}
"""Parts of the record that `today` goes without when it is compared with `learnt` or `tuned`."""
SHOW_BOTH = (
    "hybridr serve --index {name} --ubi   shows both and keeps what is searched and clicked (it makes its "
    "indices itself, no plugin is needed): POST /search with ext.ubi, then the clicks to POST /events"
)
"""Hint with the ways to collect clicks for an experiment."""
CHAIN = ("rerank", "rerank_settings")
TEAM: dict[str, Team] = {"a": "a", "b": "b"}
Contender: TypeAlias = Literal["a", "b"]


@dataclass(frozen=True)
class ExperimentStep(Reported):
    """Result (or preview in a dry run) of a step of an experiment.

    `names` are those of `a` and `b`; `ranks` names the ranking that searches use now, or "before". `remark`
    says how to collect clicks if the cluster has none yet.
    """

    index: str
    experiment: str
    names: tuple[str, str]
    did: Event
    ranks: str
    ranking: dict[str, Any]
    remark: str = ""


@dataclass(frozen=True)
class ExperimentReport(Reported):
    """The votes of an experiment so far: each client votes once on each query, for `a`, `b` or neither
    (`ties`).

    The `evidence` is valid at any time. From `needed` on it decides for `better`, which is empty before.
    `changed` says that the index was tuned or has learnt since the start, which makes the experiment
    invalid.
    """

    index: str
    experiment: str
    names: tuple[str, str]
    began: str
    ended: str
    changed: bool
    searches: int
    clicks: int
    clients: int
    bots: int
    a: int
    b: int
    ties: int
    evidence: float
    needed: float
    better: Team
    left_out: dict[str, int]
    remark: str = ""
    """Hint on how to collect clicks, if there are none."""


def start_experiment(
    cluster: Cluster,
    name: str,
    a: str,
    b: str,
    *,
    encoder: Path | Encoder | None = None,
    dry_run: bool = False,
) -> ExperimentStep:
    """Start an experiment: servers interleave two rankings of an index, all other searches rank by `a`.

    Each ranking is `today`, `learnt`, `tuned` or a file with a table `[search]`: see `experiment_ranking`.
    Raises DataError if an experiment runs already, nothing was learnt or tuned, or both rankings are equal;
    SettingsError for a ranking that the index cannot use.
    """
    info = resolve_complete(cluster, name)
    current = info.record.ranking
    if (experiment := info.record.experiment) and not experiment.ended:
        raise DataError(
            f"an experiment of '{info.name}' has been running since {experiment.at}: "
            f"{experiment.names[0]} against {experiment.names[1]}",
            hint=f"hybridr experiment stop {quote(name)}",
        )
    first, second = (experiment_ranking(info.record, side, rival, name) for side, rival in ((a, b), (b, a)))
    if first.is_as(second):
        raise DataError(
            "both rankings are the same: there is nothing to compare", hint="--a today --b learnt"
        )
    encoder = encoder_for(info, encoder)
    for ranking in (first, second):  # raises SettingsError for signals that the index cannot give
        Search(cluster, info.with_record(info.record.with_ranking(ranking)), encoder)
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    experiment = Experiment(id=secrets.token_hex(4), at=at, names=(a, b), a=first, b=second, before=current)
    step = switch_ranking(cluster, info, experiment, "experiment began", "a", dry_run=dry_run)
    return step if cluster.exists(QUERIES) else replace(step, remark=SHOW_BOTH.format(name=quote(name)))


def experiment_ranking(record: Record, side: str, rival: str, name: str) -> Ranking:
    """Return the ranking of one side of an experiment.

    `side` is "today", "learnt", "tuned", or a file of settings. If the `rival` side is "learnt" or "tuned",
    "today" is the index's ranking without that. Raises SettingsError for a file that cannot be used,
    DataError if nothing was learnt or tuned.
    """
    current = record.ranking
    if side == TODAY:
        return current.model_copy(update=REMOVED_PARTS.get(rival, {}))
    if side not in REMOVED_PARTS:  # a file, whose [search] replaces what was tuned
        file = Path(side)
        if not file.is_file():
            raise SettingsError(
                f"'{file}' is not a ranking", hint="today, learnt, tuned, or the path of a file of settings"
            )
        if not (table := read_config(file).get("search")):
            hint = "hybridr settings   lists what it may hold"
            raise SettingsError(f"{file} has no table [search]", hint=hint)
        settings = SearchSettings(**table)
        if file_settings := sorted(NAMES_A_FILE & settings.model_fields_set):
            raise SettingsError(f"{file}: {file_settings[0]} names a file, which other machines may not have")
        values = settings.model_dump(mode="json", include=settings.model_fields_set - {"tuned"})
        chain = {part: values.pop(part) for part in CHAIN if part in values}
        return Ranking(search=values or None, chain=chain or None, memory=current.memory)
    if not any(getattr(current, part) for part in REMOVED_PARTS[side]):
        command = "learn" if side == LEARNT else "tune"
        raise DataError(
            f"nothing was {side} for '{name}'", hint=f"hybridr {command} {quote(name)} --beir FOLDER"
        )
    return current


def switch_ranking(
    cluster: Cluster,
    info: IndexInfo,
    experiment: Experiment,
    did: Event,
    side: Contender | Literal["before"],
    *,
    dry_run: bool,
) -> ExperimentStep:
    """Let an index rank by a side of an experiment, and record the step.

    Raises DataError if another command changed ranking or experiment after the record was read.
    """
    ranking: Ranking = getattr(experiment, side)
    names = {"a": experiment.names[0], "b": experiment.names[1], "before": "before"}
    details = {"experiment": experiment.id, "names": list(experiment.names), "ranks": names[side]}

    def change(record: Record) -> Record:
        """Return the record after the step. Raises DataError if another command changed it."""
        if record.experiment == experiment:  # an earlier attempt wrote it, but its answer was lost
            return record
        if record.experiment != info.record.experiment or not record.ranking.is_as(info.record.ranking):
            raise DataError(
                f"another command tuned '{info.name}', made it learn, or changed its experiment meanwhile",
                hint="run the same command again",
            )
        ranked = record.with_ranking(ranking)
        changes = {"tuning": ranked.tuning, "memory": ranked.memory, "experiment": experiment}
        return event_change(did, details, **changes)(record)

    if not dry_run:
        rewrite(cluster, info.name, change, settled=True)
    return ExperimentStep(
        info.name, experiment.id, experiment.names, did, names[side], ranking.model_dump(exclude_none=True)
    )


def last_experiment(cluster: Cluster, name: str) -> tuple[IndexInfo, Experiment]:
    """Return the index and its last experiment. Raises DataError without one."""
    info = resolve(cluster, name, whole_index=True)
    if info.record.experiment is None:
        raise DataError(
            f"'{info.name}' has had no experiment",
            hint=f"hybridr experiment start {quote(name)} --a today --b learnt",
        )
    return info, info.record.experiment


def stop_experiment(cluster: Cluster, name: str, *, dry_run: bool = False) -> ExperimentStep:
    """Stop an experiment: the index ranks as before it. Raises DataError if none runs.

    What was tuned or learnt meanwhile stays.
    """
    info, experiment = last_experiment(cluster, name)
    if experiment.ended:
        raise DataError(
            f"the experiment of '{info.name}' has ended", hint=f"hybridr experiment report {quote(name)}"
        )
    changes: dict[str, Any] = {}  # what `tune` or `learn` changed meanwhile
    for parts in (("search", "chain"), ("memory",)):
        values = {part: getattr(info.record.ranking, part) for part in parts}
        if any(value != getattr(experiment.a, part) for part, value in values.items()):
            changes |= values
    before = experiment.before.model_copy(update=changes)
    ended = experiment.model_copy(update={"ended": "stopped", "before": before})
    return switch_ranking(cluster, info, ended, "experiment ended", "before", dry_run=dry_run)


def promote_ranking(
    cluster: Cluster, name: str, winner: Contender | None = None, *, undo: bool = False, dry_run: bool = False
) -> ExperimentStep:
    """Let an index rank by the winner of its experiment, which ends it; `undo` restores the ranking before.

    Without a `winner` it is the one that the report names. Raises DataError if it names none, or the ranking
    was changed since.
    """
    info, experiment = last_experiment(cluster, name)
    if undo:
        if experiment.ended not in ("a", "b"):
            raise DataError(f"nothing is promoted for '{info.name}'")
        require_ranking(info, experiment.b if experiment.ended == "b" else experiment.a)
        stopped = experiment.model_copy(update={"ended": "stopped"})
        return switch_ranking(cluster, info, stopped, "promotion undone", "before", dry_run=dry_run)
    if experiment.ended in ("a", "b"):
        raise DataError(
            f"'{experiment.names[experiment.ended == 'b']}' is promoted",
            hint=f"hybridr experiment promote {quote(name)} --undo",
        )
    require_ranking(info, experiment.before if experiment.ended else experiment.a)
    if winner is None:
        report = report_experiment(cluster, name)
        if not report.better:
            raise DataError(
                f"the evidence is {report.evidence:.3g}, {report.needed:.0f} decides",
                hint=f"wait; or hybridr experiment promote {quote(name)} --winner a|b",
            )
        winner = report.better
    ended = experiment.model_copy(update={"ended": winner})
    return switch_ranking(cluster, info, ended, "promoted", winner, dry_run=dry_run)


def require_ranking(info: IndexInfo, expected: Ranking) -> None:
    """Raise DataError if an index was tuned, or has learnt, since the experiment set this ranking."""
    if not expected.is_as(info.record.ranking):
        raise DataError(
            f"'{info.name}' was tuned, or has learnt, since then: its ranking was in no experiment",
            hint=f"undo that with hybridr tune {quote(info.name)} --reset   "
            f"or hybridr learn {quote(info.name)} --forget",
        )


def report_experiment(cluster: Cluster, name: str, *, progress: Progress = silent) -> ExperimentReport:
    """Return the votes of an experiment from the UBI records in the cluster; may be called at any time.

    Raises DataError without an experiment, NotFound without UBI records.
    """
    info, experiment = last_experiment(cluster, name)
    expected = {"a": experiment.a, "b": experiment.b, "stopped": experiment.before}.get(
        experiment.ended, experiment.a
    )
    try:
        preferences, counts, left_out = count_votes(
            read_ubi_records(cluster, experiment.id), experiment.id, progress
        )
    except NotFound as error:
        raise NotFound(
            f"the experiment of '{info.name}' has no search yet: this cluster has no UBI records",
            hint=SHOW_BOTH.format(name=quote(name)),
            status=error.status,
        ) from None
    result = count_preferences(preferences)
    return ExperimentReport(
        index=info.name,
        experiment=experiment.id,
        names=experiment.names,
        began=experiment.at,
        ended=experiment.ended,
        changed=not expected.is_as(info.record.ranking),
        **counts,
        a=result.losses,
        b=result.wins,
        ties=len(preferences) - result.losses - result.wins,
        evidence=result.evidence,
        needed=1 / ALPHA,
        better=result.better,
        left_out=left_out,
        remark="" if counts["clicks"] else SHOW_BOTH.format(name=quote(name)),
    )


def count_votes(
    records: LogRecords, experiment: str, progress: Progress = silent
) -> tuple[list[Team], dict[str, int], dict[str, int]]:
    """Return the votes of an experiment, the counts of its log, and the records left out by reason.

    Each client has one vote for each query with a click; bots have none.
    """
    reader, votes = LogReader(experiment), list[Team]()
    with tempfile.TemporaryDirectory(prefix="hybridr-clicks-") as folder:
        with closing(ClickLedger(Path(folder), reader)) as ledger:
            ledger.fill((entry for entry in map(reader.read, records) if entry is not None), progress)
            for _, clients in ledger.looks():
                for looks in clients:
                    interleaved = [look for look in looks if look.teams and look.clicked]
                    if interleaved:  # the vote is by the search with the most clicks
                        look = max(interleaved, key=lambda look: len(look.clicked))
                        teams = dict(zip(look.shown, look.teams, strict=False))
                        votes.append(
                            preferred_team([TEAM.get(teams.get(doc, ""), "") for doc in look.clicked])
                        )
            counts = ledger.counts(COUNTS_OF_EXPERIMENT)
    return votes, counts, dict(Counter(reader.left_out))
