"""Who changes something, for the log."""

from __future__ import annotations

import getpass
import os
import socket


def actor() -> str:
    """Return the current user as ``user@host``; with the user's number if no name is known."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
