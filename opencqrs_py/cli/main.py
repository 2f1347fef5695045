"""``opencqrs``: the commands and what they have in common."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

import click

from opencqrs_py.cli.output import explain, print_line, stderr
from opencqrs_py.cli.records import records_on_terminal
from opencqrs_py.cli.signals import INTERRUPTED, signals
from opencqrs_py.errors import EngineLostError, ExplainedError, NotReachedError, OpenCqrsError, WaitTimedOutError

_COMMANDS = {
    "await": "opencqrs_py.cli.awaiting",
    "conditions": "opencqrs_py.cli.config",
    "config": "opencqrs_py.cli.config",
    "doctor": "opencqrs_py.cli.doctor",
    "events": "opencqrs_py.cli.events",
    "groups": "opencqrs_py.cli.groups",
    "health": "opencqrs_py.cli.health",
    "inbox": "opencqrs_py.cli.inbox",
    "init": "opencqrs_py.cli.init",
    "jobs": "opencqrs_py.cli.jobs",
    "nodes": "opencqrs_py.cli.nodes",
    "run": "opencqrs_py.cli.run",
    "schema": "opencqrs_py.cli.config",
    "status": "opencqrs_py.cli.status",
}

WRONG_USE = 2
WAIT_TIMED_OUT = 4
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Commands(click.Group):
    """Loads a command's module when the command is used, so that ``opencqrs config`` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(__import__(module, fromlist=[cmd_name]), f"{cmd_name}_command")
        return command


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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left of the output is not tried again
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
