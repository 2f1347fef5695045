"""``python -m opencqrs_py``: the command line."""

from opencqrs_py.cli import main

main()
