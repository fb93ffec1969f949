"""The verb `hybridr status`."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from shlex import quote
from typing import TYPE_CHECKING, Any

from hybridr.errors import quantity

from ..options import ReindexedName
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.status.standing import IndexStatus, Status


@verb(app, "status", cluster=True)
def status(session: Session, name: ReindexedName) -> None:
    """Show how current the vectors are, what hybridr created, and its history. Changes nothing."""
    result = session.index(name).status()
    out = session.output
    out.result(result.to_json())
    documents = "deleted" if result.documents is None else quantity(result.documents, "document")
    out.line(f"source {result.source}: {documents}")
    for alias, restrictions in result.parts.items():
        out.line(f"  alias {alias} ({' and '.join(restrictions)}) shows a part of it")
    for holding in result.holdings:
        show_holding(session, result.source, holding)
    if not result.holdings:
        out.line(f"no index with vectors; hybridr reindex {quote(name)} makes one")
    if result.rollover:
        out.line(f"ROLLED OVER: {result.rollover}")
    for index_name, pipelines in result.final_pipelines.items():
        out.line(f"{index_name}: {pipelines}")
    for index_name in result.unsynced:
        out.line(f"a sync of {result.source} leaves {index_name} out: hybridr sync {quote(index_name)}")
    for stranger in result.strangers:
        out.line(
            f"NOT OURS: {stranger} claims to hold vectors of {result.source}, whose record does not list it"
        )
    for index_name in result.earlier:
        out.line(
            f"{index_name} holds vectors of an earlier index '{result.source}'; "
            f"hybridr remove {quote(index_name)} deletes it"
        )
    show_files(session, result)


def show_files(session: Session, result: Status) -> None:
    """Print the local files with text of documents, and the command that deletes those of other indices."""
    out = session.output
    for text in result.files:
        out.line(f"local file with text of documents: {text.path} ({text.kind}, {text.bytes:,} bytes)")
    for text in result.other_files:
        out.line(
            f"{text.path} belongs to another index '{text.index}', deleted or on another cluster; "
            f"hybridr clean {quote(f'{text.index}#{text.uuid}')} deletes it"
        )


def show_holding(session: Session, source: str, holding: IndexStatus) -> None:
    """Print the status of one index with vectors."""
    out = session.output
    total = holding.documents + (holding.lag.inserts if holding.lag else 0)
    share = holding.current / total if total else 1.0
    share = floor(1000 * share) / 1000  # rounded down: 100.0% means all of them
    out.line()
    place = "in place, " if holding.in_place else ""
    aliases = [f"{alias} (a part)" if alias in holding.parts else alias for alias in holding.aliases]
    out.line(f"{holding.index} ({place}{holding.state}), alias {', '.join(aliases) or 'none'}")
    out.line(f"  {holding.current:,} of {quantity(total, 'document')} current ({share:.1%})")
    if holding.warning:
        out.line(f"  WARNING, forced: {holding.warning}")
    show_progress(session, source, holding)
    out.line(f"  vectors: {holding.vectors} {holding.compression or ''}".rstrip())
    for line in holding.representations:
        out.line(f"  {line}")
    out.line(f"  encoder {holding.encoder[:12]}: {holding.encoder_folder or 'not in a folder known here'}")
    if holding.arithmetic:
        out.line(f"  encoded in {holding.arithmetic}")
    for line in holding.sidecar_lines():
        out.line(f"  {line}")
    if holding.unfinished:
        out.line(f"  {holding.unfinished}")
    if holding.outgrown:
        out.line(
            f"  confidence was measured when there were {holding.calibrated:,} documents; "
            f"hybridr tune {quote(source)} measures it again"
        )
    if deployed := holding.deployment:
        state = f"NOT WHOLE: {'; '.join(deployed.missing)}" if deployed.missing else "whole"
        model = f", model {deployed.model} asks {deployed.server or 'its server'}" if deployed.model else ""
        boost = f", boost {deployed.boost}" if deployed.boost else ""
        out.line(f"  deployed: {deployed.way}, pipeline {deployed.pipeline}{model}{boost} ({state})")
    for event in holding.history:
        details = {name: value for name, value in event.items() if name not in ("at", "event")}
        out.line(f"  {event['at']} {event['event']}: {in_words(details)}")


def in_words(details: Mapping[str, Any]) -> str:
    """Return "name value, name value"; a nested mapping is in parentheses, a value of None is left out."""
    return ", ".join(
        f"{name} ({in_words(value)})" if isinstance(value, Mapping) else f"{name} {value}"
        for name, value in details.items()
        if value is not None
    )


def show_progress(session: Session, source: str, holding: IndexStatus) -> None:
    """Print how far an index is behind its source, and how many documents clients wrote."""
    out = session.output
    if holding.restored:
        out.line(
            "  OUTDATED: the source has since been restored from a snapshot; "
            f"hybridr reindex {quote(source)} makes a new index"
        )
    if holding.lag:
        lag = holding.lag
        out.line(
            f"  behind the source: {lag.inserts:,} inserts, {lag.updates:,} updates, {lag.deletes:,} deletes"
        )
        if lag.refused:
            out.line(f"  REFUSED by the engine: {lag.refused:,} of these; hybridr sync tries them again")
    for field in holding.unlike:
        out.line(
            f"  {field}: mapped otherwise than in {source}; hybridr sync {quote(source)}, "
            f"or if that fails hybridr reindex {quote(source)}"
        )
    if holding.writes:
        place = "not in the source" if holding.aliases else "in no other index"
        out.line(
            f"  by clients, {place}: {holding.writes['changed'] + holding.writes['conflicts']:,} "
            f"changed, {holding.writes['deleted']:,} deleted"
        )
