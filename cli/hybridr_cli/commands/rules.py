"""The verb `hybridr rules`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hybridr.errors import quantity

from ..options import DryRun, SearchedName
from ..output import first_few
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.search.rules.rules import RulesChange, RulesVersion

SHOWN_LEFT_OUT = 20  # rules


@dataclass(frozen=True)
class RuleOptions:
    """The options for a new rule: the queries to which it applies (exactly one is needed), what it does."""

    text: Annotated[str | None, typer.Option(help="The query equals this text; case is ignored.")] = None
    words: Annotated[str | None, typer.Option(help="The query contains all these words.")] = None
    prefix: Annotated[str | None, typer.Option(help="The query begins with this text.")] = None
    pattern: Annotated[
        str | None, typer.Option(help="The query matches this regular expression somewhere.")
    ] = None
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
    name: SearchedName,
    what: Annotated[
        Literal["list", "add", "remove", "import", "export"],
        typer.Argument(help="list; add or remove a RULE; import or export a FILE.", show_default=True),
    ] = "list",
    subject: Annotated[
        str | None, typer.Argument(metavar="[RULE|FILE]", help="Name of a rule, or a file of JSON lines.")
    ] = None,
    *,
    options: RuleOptions,
    version: Annotated[
        int | None, typer.Option(min=1, help="List or export this earlier version of the rules.")
    ] = None,
    edit: RuleEdit,
) -> None:
    """Pin, hide or filter documents for certain queries, or replace the query text.

    Searches, /search and /v1/rank apply a rule within seconds. A rule of the same name is replaced.
    """
    from hybridr.errors import SettingsError
    from hybridr.search.rules.rules import read_rules

    if what != "add":
        command = f"hybridr rules {quote(name)} add RULE"
        session.refuse_options(f"is for: {command}", *vars(options))
    if what not in ("list", "export"):
        session.refuse_options("is for list and export", "version")
    else:
        session.refuse_options(f"does not go with {what}, which changes nothing", "by")
    if what == "list" and subject:
        raise SettingsError(f"list takes no RULE, '{subject}' was given", hint=f"hybridr rules {quote(name)}")
    rules = session.index(name).rules
    if what in ("list", "export"):
        stored = rules.list(version)
        return export_rules(session, stored, subject) if what == "export" else show_rules(session, stored)
    if what == "remove":
        return show_change(
            session, rules.remove([require_subject(subject, "RULE")], **vars(edit)), edit.dry_run
        )
    if what == "import":
        new_rules = read_rules(Path(require_subject(subject, "FILE")))
    else:
        from hybridr.search.rules.rule import read_rule

        from .search import read_filter

        rule_name = require_subject(subject, "RULE")
        values: dict[str, Any] = {**vars(options), "filter": read_filter(options.filter)}
        settings = {option: value for option, value in values.items() if value}
        new_rules = [read_rule({"name": rule_name, **settings}, f"rule {rule_name}")]
    show_change(session, rules.add(new_rules, **vars(edit)), edit.dry_run)


def require_subject(subject: str | None, argument: str) -> str:
    """Return the subject, a RULE or FILE as `argument` names it. Raises SettingsError if it is missing."""
    from hybridr.errors import SettingsError

    if subject is None:
        raise SettingsError(f"{argument} is missing", hint="hybridr rules --help")
    return subject


def show_rules(session: Session, version: RulesVersion) -> None:
    """Print the rules as a table, with warnings about rules that are left out."""
    session.output.result(version.to_json())
    for rule, reason in list(version.left_out.items())[:SHOWN_LEFT_OUT]:
        session.output.warning(f"warning: rule {rule} is left out: {reason}")
    if not version.rules:
        return session.output.line("no rules")
    rows = [
        (
            rule.name,
            ": ".join(rule.condition),
            "; ".join(
                f"{name} {', '.join(subject) if isinstance(subject, tuple) else json.dumps(subject)}"
                for name, subject in rule.actions.items()
            ),
            rule.by,
            rule.at,
        )
        for rule in version.rules
    ]
    session.output.table(("rule", "applies to", "does", "by", "at"), rows)
    session.output.line(f"version {version.version}, by {version.by or '?'} at {version.at}")


def export_rules(session: Session, version: RulesVersion, file: str | None) -> None:
    """Write the rules as JSON lines into a file, or print them."""
    session.output.result(version.to_json())
    if version.excess:
        names = first_few(str(rule.get("name", "?")) for rule in version.excess)
        session.output.warning(f"warning: not exported, since their patterns exceed the limits: {names}")
    lines = [json.dumps(rule.to_json(), ensure_ascii=False) for rule in version.rules]
    if file is None:
        for line in lines:
            session.output.line(line)
        return
    Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    session.output.line(f"{quantity(len(lines), 'rule')} of version {version.version} in {file}")


def show_change(session: Session, done: RulesChange, dry_run: bool) -> None:
    """Print how many rules are in force now, and which pinned documents do not exist."""
    new = done.now
    session.output.result({"version": new.version, "rules": len(new.rules), "missing": list(done.missing)})
    prefix, would = ("dry run, ", "would be ") if dry_run else ("", "")
    session.output.line(f"{prefix}{quantity(len(new.rules), 'rule')} {would}in force, version {new.version}")
    if done.missing:
        session.output.warning(f"pinned documents that the index does not have: {first_few(done.missing)}")
