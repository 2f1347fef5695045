"""Injectors that need no container."""

from __future__ import annotations

from typing import Any

__all__ = ["NothingProvided"]


class NothingProvided:
    """Provides nothing: handlers get only what belongs to the event and its transaction."""

    def provides(self, wanted: object) -> bool:
        """Say no."""
        del wanted
        return False

    def provide(self, wanted: object) -> Any:
        """Refuse, since nothing is provided.

        Raises:
            LookupError: Always.
        """
        raise LookupError(wanted)
