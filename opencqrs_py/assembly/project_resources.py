"""The resources of the project's containers, as one application opens and closes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.discovery import Discovered
from opencqrs_py.processing.supervision import SupervisedPartition

_log = logging.getLogger("opencqrs.settings")


class ProjectResources:
    """Every ``providers.Resource`` of the project's containers.

    Applications of one process that share containers share them, too.

    Args:
        blueprint: Knows the containers.
        forget_parts: Has the application's parts made again when they are used next.
    """

    def __init__(self, blueprint: Blueprint, forget_parts: Callable[[], None]) -> None:
        self._blueprint = blueprint
        self._forget_parts = forget_parts
        self._found: Discovered | None = None  # what the application's parts are made of
        self._is_user = False

    def use(self) -> None:
        """Remember whose containers the parts are made of that are made now."""
        self._found = self._found or self._blueprint.discover()

    def renew(self) -> None:
        """Have all parts made again if the containers were closed since they were made."""
        if self._found is not None and self._found is not self._blueprint.discovered:
            self._forget_parts()
            self._found = self._blueprint.discover()

    def open(self) -> None:
        """Open every resource that needs no event loop.

        Raises:
            ProjectCodeError: OCQ-217, naming the resource that cannot be opened.
        """
        self.renew()
        self._found = found = self._blueprint.discover()
        if found.injector.has_resources and not self._is_user:
            self._is_user = True
            found.injector.open_resources()

    def close(self, in_hand: Sequence[SupervisedPartition]) -> None:
        """Close what is open, also what parts have opened when they were made, unless others may still use it.

        Args:
            in_hand: Partitions whose handlers have not returned yet; with any, nothing is closed.
        """
        found = self._blueprint.discovered
        if found is None or not found.injector.has_resources:
            return
        if in_hand:
            shown = ", ".join(f"{each.group} {each.partition}" for each in in_hand)
            _log.warning("resources stay open: events are still in hand (%s); another stop() closes them", shown)
            return
        was_user, self._is_user = self._is_user, False
        if found.injector.close_resources(was_user=was_user):
            self._found = found
            self._blueprint.forget()
