"""Options that several commands share."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from typing_extensions import override

from opencqrs_py.cli.output import print_line
from opencqrs_py.cli.signals import signals
from opencqrs_py.cli.streams import keep_output_for_results, results
from opencqrs_py.model.masking import scrubbed

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic in newer releases only

F = TypeVar("F", bound=Callable[..., Any])


LARGEST = 2**63 - 1
"""Position or number that logs and databases can have."""


class Integer(click.IntRange):
    """An integer within bounds, named so in help and messages; click itself calls it an "integer range"."""

    name = "integer"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if number > LARGEST:
            self.fail(f"{value} is too large: no log or database has more than {LARGEST:,}.", param, ctx)
        return number


@dataclass(frozen=True, slots=True)
class ProjectOptions:
    """Which project a command works on, and how it is configured."""

    project: Path
    profiles: tuple[str, ...]
    overrides: tuple[str, ...]

    @property
    def typed(self) -> str:
        """The options as they are typed after a command that works on the same project; secrets are hidden."""
        given = [("--project", str(self.project))] if self.project != Path() else []
        given += [("--profile", profile) for profile in self.profiles]
        given += [("--set", override) for override in self.overrides]
        return "".join(f" {name} {shlex.quote(scrubbed(value))}" for name, value in given)

    def application(self, *, logs: bool = False) -> Application:
        """Return the project's application.

        Args:
            logs: Whether messages are a log, in the format that settings say.
        """
        from opencqrs_py.assembly.application import Application  # noqa: PLC0415 only for commands that need it
        from opencqrs_py.cli.records import kept_on_terminal, write_json_lines  # noqa: PLC0415 as below
        from opencqrs_py.config import LogFormat  # noqa: PLC0415 as below

        try:
            folder = self.project.resolve()
        except OSError as error:
            what = f"the current folder cannot be found ({error.strerror}): it was deleted or replaced; cd to it again"
            raise click.UsageError(what) from None
        application = Application.from_project(
            folder, profiles=self.profiles, overrides=self.overrides, log_warnings=False
        )
        context = click.get_current_context()
        context.with_resource(kept_on_terminal())
        context.call_on_close(application.stop)
        if logs and application.configuration.settings.logging.format is LogFormat.JSON:
            write_json_lines()
        signals.settle(application.configuration.settings.run.sigterm_exit_code)
        for warning in application.configuration.warnings:
            print_line(str(warning), "yellow")
        return application

    def recorded(self) -> Application:
        """Return the application for reading records; warn if their SQLite file is missing, as in a wrong folder."""
        application = self.application()
        if (missing := application.missing_database()) is not None:
            file, key, origin = missing
            print_line(f"the database does not exist: {file} ({key}, {origin}); it records nothing", "yellow")
        return application

    def opened(self) -> Application:
        """Return the application for a command that opens its databases; at the end, log those that it has created."""
        application = self.application()
        click.get_current_context().call_on_close(application.new_databases().report)
        return application


class Text(_ParamType):
    """Text that an event can hold: no bytes that are not UTF-8, no U+0000."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, or refuse it."""
        text = str(value)
        if "\0" in text:
            self.fail("it must not contain the character U+0000", param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("it is not UTF-8", param, ctx)
        return text


class Seconds(_ParamType):
    """A duration as in settings: ``30s``, ``1m30s``, ``PT10S``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        from opencqrs_py.config.value_types import parse_duration  # noqa: PLC0415 only for these options

        try:
            return value if isinstance(value, float) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def project_options(command: F) -> F:
    """Add ``--project``, ``--profile`` and ``--set`` to a command; they reach it as ``options``."""

    def wrapped(project: Path, profiles: tuple[str, ...], overrides: tuple[str, ...], **others: Any) -> Any:
        return command(options=ProjectOptions(project, profiles, overrides), **others)

    wrapped.__name__ = command.__name__
    wrapped.__doc__ = command.__doc__
    wrapped.__dict__.update(command.__dict__)
    folder = click.Path(exists=True, file_okay=False, path_type=Path)
    decorated: Any = wrapped
    for option in (
        click.option("--set", "overrides", multiple=True, metavar="K=V", help="A setting that wins over all others."),
        click.option("--profile", "profiles", multiple=True, metavar="P", help="An active profile."),
        click.option("--project", type=folder, default=".", help="The project's folder.  [default: .]"),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result


def format_option(command: F) -> F:
    """Add ``--format text|json``; it reaches the command as ``as_json``."""

    def as_flag(context: click.Context, _option: click.Parameter, value: str) -> bool:
        if value == "json" and not context.resilient_parsing:
            keep_output_for_results()
            context.call_on_close(results().flush)
        return value == "json"

    choice = click.Choice(["text", "json"])
    option = click.option(
        "--format",
        "as_json",
        type=choice,
        default="text",
        callback=as_flag,
        help="Text for people, or stable JSON.",
    )
    return option(command)
