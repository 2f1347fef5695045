"""The command line."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as typing's; importing typing would take longer than everything before signals are handled
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line in this process and end it. A signal at any moment ends it in one line.

    Nothing but the standard library is loaded before signals are handled.
    """
    try:
        from opencqrs_py.cli.signals import signals  # noqa: PLC0415 inside, so that an interrupt leaves no trace
        from opencqrs_py.cli.streams import prepare_streams  # noqa: PLC0415 the same

        prepare_streams()
        signals.install()
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        os._exit(130)
    try:
        from opencqrs_py.cli.main import main as run_command  # noqa: PLC0415 takes a tenth of a second

        run_command()
    except BaseException:
        if not signals.received:
            raise
        signals.conclude()  # whatever was raised on the way out is a consequence of the signal
    finally:
        signals.finished = True
