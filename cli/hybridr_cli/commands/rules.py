"""The verb `hybridr rules`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hybridr.errors import quantity

from ..arguments import DryRun, Searched
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.search.rules.rules import RulesChange, RulesVersion

SHOWN_LEFT_OUT = 20  # rules


@dataclass(frozen=True)
class RuleCondition:
    """The options for the queries for which a new rule holds; one of them is given."""

    text: Annotated[str | None, typer.Option(help="The query equals this text; case is ignored.")] = None
    words: Annotated[str | None, typer.Option(help="The query contains all these words.")] = None
    prefix: Annotated[str | None, typer.Option(help="The query begins with this text.")] = None
    pattern: Annotated[
        str | None, typer.Option(help="The query matches this regular expression somewhere.")
    ] = None


@dataclass(frozen=True)
class RuleAction:
    """The options for what a new rule does."""

    pin: Annotated[
        list[str] | None, typer.Option(help="Id of a document to put on top; may be repeated.")
    ] = None
    ban: Annotated[list[str] | None, typer.Option(help="Id of a document to hide; may be repeated.")] = None
    filter: Annotated[str | None, typer.Option(help="Query in JSON that every hit must match.")] = None
    replace: Annotated[str | None, typer.Option(help="Search for this text instead.")] = None


@dataclass(frozen=True)
class RuleEdit:
    """Author of a change of rules, and whether it is a dry run."""

    by: Annotated[str | None, typer.Option(help="Author of the rule.", show_default="the cluster's user")] = (
        None
    )
    dry_run: DryRun = False


@verb(app, "rules", cluster=True)
def rules(
    session: Session,
    name: Searched,
    what: Annotated[
        Literal["list", "add", "remove", "import", "export"],
        typer.Argument(help="list; add or remove a RULE; import or export a FILE.", show_default=True),
    ] = "list",
    subject: Annotated[
        str | None, typer.Argument(metavar="[RULE|FILE]", help="Name of a rule, or a file of JSON lines.")
    ] = None,
    *,
    condition: RuleCondition,
    action: RuleAction,
    version: Annotated[
        int | None, typer.Option(min=1, help="List or export this earlier version of the rules.")
    ] = None,
    edit: RuleEdit,
) -> None:
    """Pin, hide or filter documents for certain queries, or replace the query text.

    Searches, /search and /v1/rank apply a rule within seconds. A rule of the same name is replaced.
    """
    from hybridr.search.rules.rules import read_rules

    rules = session.index(name).rules
    if what in ("list", "export"):
        stored = rules.list(version)
        return exported(session, stored, subject) if what == "export" else listed(session, stored)
    if what == "remove":
        return changed(session, rules.remove([needed(subject, "RULE")], **vars(edit)), edit.dry_run)
    if what == "import":
        new_rules = read_rules(Path(needed(subject, "FILE")))
    else:
        from hybridr.search.rules.rule import read_rule

        from .search import read_filter

        name = needed(subject, "RULE")
        values: dict[str, Any] = {**vars(condition), **vars(action), "filter": read_filter(action.filter)}
        settings = {option: value for option, value in values.items() if value}
        new_rules = [read_rule({"name": name, **settings}, f"rule {name}")]
    changed(session, rules.add(new_rules, **vars(edit)), edit.dry_run)


def needed(subject: str | None, what: str) -> str:
    """Return the name of a rule or file. Raises SettingsError if the argument is missing."""
    from hybridr.errors import SettingsError

    if subject is None:
        raise SettingsError(f"{what} is missing", hint="hybridr rules --help")
    return subject


def listed(session: Session, version: RulesVersion) -> None:
    """Print the rules as a table, with warnings about rules that are left out."""
    session.output.result(version.to_json())
    for rule, reason in list(version.left_out.items())[:SHOWN_LEFT_OUT]:
        session.output.warning(f"warning: rule {rule} is left out: {reason}")
    if not version.rules:
        return session.output.line("no rules")
    rows = [
        (rule.name, f"{kind}: {said}", "; ".join(map(done, rule.actions.items())), rule.by, rule.at)
        for rule in version.rules
        for kind, said in [rule.condition]
    ]
    session.output.table(("rule", "holds for", "does", "by", "at"), rows)
    session.output.line(f"version {version.version}, by {version.by or '?'} at {version.at}")


def done(action: tuple[str, Any]) -> str:
    """Return a text that says what an action of a rule does."""
    name, subject = action
    return f"{name} {', '.join(subject) if isinstance(subject, tuple) else json.dumps(subject)}"


def exported(session: Session, version: RulesVersion, file: str | None) -> None:
    """Write the rules as JSON lines into a file, or print them."""
    session.output.result(version.to_json())
    lines = [json.dumps(rule.to_json(), ensure_ascii=False) for rule in version.rules]
    if file is None:
        for line in lines:
            session.output.line(line)
        return
    Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    session.output.line(f"{quantity(len(lines), 'rule')} of version {version.version} in {file}")


def changed(session: Session, done: RulesChange, dry_run: bool) -> None:
    """Print how many rules are in force now, and which pinned documents do not exist."""
    now = done.now
    session.output.result({"version": now.version, "rules": len(now.rules), "missing": list(done.missing)})
    tried, would = ("dry run, ", "would be ") if dry_run else ("", "")
    session.output.line(f"{tried}{quantity(len(now.rules), 'rule')} {would}in force, version {now.version}")
    if done.missing:
        names = ", ".join(done.missing[:5]) + ", …" * (len(done.missing) > 5)
        session.output.warning(f"the index has no such documents, pinned in vain: {names}")
