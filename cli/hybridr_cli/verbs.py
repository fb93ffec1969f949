"""Turns functions into verbs (commands) of the app, with the options that every verb shares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from .options import KEYWORD_ONLY, parameter_value, typer_options, verb_parameters
from .session import Session

F = TypeVar("F", bound=Callable[..., None])
ABOUT = "Make an existing OpenSearch index search better, without labels and without breaking anything."


@dataclass(frozen=True)
class SharedOptions:
    """The options of every verb."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show neither progress nor notes.")] = False
    config: Annotated[Path | None, typer.Option(help="Settings file.", show_default="./hybridr.toml")] = None


class Verb(TyperCommand):
    """A command whose options are made when they are first needed, since settings are slow to import."""

    def __init__(self, name: str, function: Callable[..., None], *, cluster: bool) -> None:
        super().__init__(name, help=inspect.getdoc(function))
        self.function = function
        self.cluster = cluster
        self.flags: dict[str, str] = {}

    def get_params(self, ctx: Any) -> Any:
        """Return the options, made on the first call."""
        if not self.params:
            self.make_options(members=False)
        return super().get_params(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; with --help the options list the plug-ins to choose from."""
        self.make_options(members="--help" in args)
        rest = super().parse_args(ctx, args)
        sources = ((option, ctx.get_parameter_source(option.name)) for option in self.params)
        typed = [option for option, source in sources if source.name == "COMMANDLINE"]
        self.flags = {str(option.name): option.opts[0] for option in typed}
        return rest

    def make_options(self, *, members: bool) -> None:
        """Make the options and the callback; `members` as for `typer_options`."""
        app = typer.Typer(add_completion=False)
        app.command()(self.option_function(members))
        command = typer.main.get_command(app)
        self.params, self.callback = command.params, command.callback

    def option_function(self, members: bool) -> Callable[..., None]:
        """Return a function for typer: its parameters are the options, and it calls the verb."""
        parameters = verb_parameters(self.function)
        connection = connection_options() if self.cluster else []

        def call(**arguments: Any) -> None:
            """Make the session and the verb's arguments from the options, and call the verb."""
            cluster = {option.name: arguments[option.name] for option in connection}
            session = Session(arguments, cluster, str(self.name), self.flags)
            try:
                values = {
                    parameter.name: parameter_value(parameter, arguments, session.settings)
                    for parameter in parameters
                }
                self.function(session, **values)
            except KeyboardInterrupt:
                session.output.error("interrupted", "run the same command again to continue")
                raise typer.Exit(130) from None
            finally:
                session.output.close()

        shared = typer_options(inspect.Parameter("shared", KEYWORD_ONLY, annotation=SharedOptions))
        options = [option for parameter in parameters for option in typer_options(parameter, members=members)]
        options += shared + connection
        call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        call.__annotations__ = {option.name: option.annotation for option in options}
        return call


def version_option() -> Any:
    """Return the option `--version` of `hybridr` itself."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def call(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=show_version, help="Print the version.")
        ] = False,
    ) -> None: ...

    option = typer.main.get_command(app).params[0]
    option.expose_value = False
    return option


def show_version(value: bool) -> None:
    """Print the installed version and exit, if `value` is set."""
    if value:
        from importlib.metadata import version

        typer.echo(f"hybridr {version('hybridr')}")
        raise typer.Exit


class App(TyperGroup):
    """The command `hybridr`, which also accepts shared options before the verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with shared options moved behind the verb."""
        if args and args[0].startswith("-") and args[0] not in ("--help", "--version"):
            args = move_behind_verb(args, Verb("any", lambda session: None, cluster=True).get_params(ctx))
        return super().parse_args(ctx, args)


def move_behind_verb(arguments: list[str], options: Iterable[Any]) -> list[str]:
    """Return the arguments with options that stand before the verb, such as `--url`, moved behind it."""
    takes_value = {
        name: not option.is_flag for option in options for name in (*option.opts, *option.secondary_opts)
    }
    verb_at = 0
    while verb_at < len(arguments) and (name := arguments[verb_at].partition("=")[0]) in takes_value:
        verb_at += 2 if takes_value[name] and "=" not in arguments[verb_at] else 1
    end = arguments.index("--", verb_at) if "--" in arguments[verb_at:] else len(arguments)
    return [*arguments[verb_at:end], *arguments[:verb_at], *arguments[end:]]


app = App(name="hybridr", help=ABOUT, no_args_is_help=True, params=[version_option()])


def connection_options() -> list[inspect.Parameter]:
    """Return the options for reaching the cluster."""
    from hybridr.cluster.settings import ClusterSettings

    parameters = typer_options(inspect.Parameter("connection", KEYWORD_ONLY, annotation=ClusterSettings))
    for option in parameters:
        option.annotation.__metadata__[0].rich_help_panel = "Cluster"
    return parameters


def group(name: str, help: str) -> TyperGroup:
    """Add a group of verbs to the app, and return the group."""
    command_group = TyperGroup(name=name, help=help, no_args_is_help=True)
    app.add_command(command_group)
    return command_group


def verb(parent: TyperGroup, name: str, *, cluster: bool = False) -> Callable[[F], F]:
    """Return a decorator that adds a function as a verb; its first parameter is the `Session`, the others
    become options.

    With `cluster` the verb also gets the options of the connection.
    """

    def add(function: F) -> F:
        """Add the function as a verb and return it."""
        parent.add_command(Verb(name, function, cluster=cluster))
        return function

    return add
