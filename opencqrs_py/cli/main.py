"""``opencqrs``: the commands and what they have in common."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import click
from typing_extensions import override

from opencqrs_py.cli.output import explain, print_line, stderr
from opencqrs_py.cli.records import records_on_terminal
from opencqrs_py.cli.signals import INTERRUPTED, signals
from opencqrs_py.cli.streams import results
from opencqrs_py.errors import EngineLostError, ExplainedError, NotReachedError, OpenCqrsError, WaitTimedOutError

_COMMANDS = {
    "await": ("awaiting", "Wait until groups have stored their progress up to an event."),
    "conditions": ("config", "Show what was chosen where settings leave a choice, and why."),
    "config": ("config", "Show the effective settings, each with its origin."),
    "doctor": ("doctor", "Check Python, Java, Spark, the databases and the handlers."),
    "events": ("events", "Append, import, export, list, follow and count events."),
    "groups": ("groups", "Start, stop, reset and rebuild groups; change their partitions."),
    "health": ("health", "Show whether all is well with groups and jobs, from any process."),
    "inbox": ("inbox", "Show, try, pause or skip the events that wait in the inbox."),
    "init": ("init", "Make a small project in DIR."),
    "jobs": ("jobs", "Show jobs and their runs, and run, pause or cancel them."),
    "nodes": ("nodes", "Show the nodes that run processors or jobs, and what each has."),
    "run": ("run", "Run the processors of a project, and its jobs."),
    "schema": ("config", "Print the JSON Schema of application.yaml, for editors."),
    "status": ("status", "Show how far every partition is, from any process."),
}
"""The commands: the module of each and the first sentence of its help, which ``--help`` shows without loading it."""

WRONG_USE = 2
WAIT_TIMED_OUT = 4
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Commands(click.Group):
    """Loads a command's module when the command is used, so that ``opencqrs config`` and ``--help`` stay quick."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"opencqrs_py.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{name}'.{_suggested(name)}")
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _suggested(name: str) -> str:
    """Return the command with a similar name, as click does only for commands that are loaded."""
    from difflib import get_close_matches  # noqa: PLC0415 only for a mistake

    return "".join(f" Did you mean '{near}'?" for near in get_close_matches(name, _COMMANDS, n=1))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="opencqrs-py", prog_name="opencqrs")
def cli() -> None:
    """Read models that follow an event log: discovered, configured, durable, on Spark."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code.

    0 done, 1 a processor failed, 2 wrong use or configuration, 4 a wait timed out, 130 interrupted after a clean stop.
    """
    try:
        with records_on_terminal() as records:
            result = cli.main(arguments, prog_name="opencqrs", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as wrong:
        with suppress(OSError):  # as of a reader that has ended
            wrong.show()
        sys.exit(WRONG_USE)
    except (KeyboardInterrupt, click.Abort):
        if not signals.received:  # else it is reported already
            stderr().print("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), results().fileno())  # the rest of the output is not tried again
        print_line(f"the output cannot be written: {error.strerror}", "red")
        sys.exit(1)
    except OpenCqrsError as error:
        if not signals.received and not records.has_printed(error):
            explain(error)
        sys.exit(_exit_code(error))
    sys.exit(result if isinstance(result, int) else 0)


def _exit_code(error: OpenCqrsError) -> int:
    if isinstance(error, WaitTimedOutError):
        return WAIT_TIMED_OUT
    if isinstance(error, EngineLostError | NotReachedError):
        return 1
    return WRONG_USE if isinstance(error, ExplainedError) else 1
