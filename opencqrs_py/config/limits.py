"""How much a source may say: beyond it, a file is an accident or an attack, and reading it would take for ever.

A key of this package has at most six levels, and a hundred groups with every setting have some four thousand nodes.
"""

from __future__ import annotations

__all__ = ["MOST_BYTES", "MOST_CHAINED", "MOST_CHARACTERS", "MOST_LEVELS", "MOST_NODES", "MOST_PLACEHOLDERS"]

MOST_BYTES = 4 * 1024 * 1024
"""Size of a file, in bytes; a ConfigMap of Kubernetes holds at most 1 MiB."""

MOST_LEVELS = 100
"""Levels of a key, and of what is nested in brackets."""

MOST_NODES = 20_000
"""Keys and values of one file, each alias counted as often as it is used."""

MOST_CHAINED = 50
"""Placeholders that stand for each other or in each other."""

MOST_PLACEHOLDERS = 20_000
"""Placeholders that are replaced for all values together."""

MOST_CHARACTERS = 1024 * 1024
"""Length of a value after its placeholders are replaced."""
