"""The command line."""

from opencqrs_py.cli.main import main

__all__ = ["main"]
