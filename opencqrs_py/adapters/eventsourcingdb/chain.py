"""The chain of hashes: what shows that a log is still the one that was read.

Each event names the hash of the event before it, so equal hashes at one position mean equal logs up to there.

Source:
    EventSourcingDB's auditing specification, section 3.2: the first event has the id 0, each further one the id of the
    one before plus one, and ``predecessorhash`` is the ``hash`` of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

import orjson

from opencqrs_py.errors import EventStoreError, OtherLogError
from opencqrs_py.model.event import Event

EMPTY = "eventsourcingdb:empty"
"""The fingerprint of a log without events."""

_PREFIX = "eventsourcingdb:"
_REPLACED = (
    "restore the event store that the progress belongs to; or rebuild the group: delete its read model and its rows of "
    "opencqrs_progress and opencqrs_groups; or, to continue from here anyway, clear log_fingerprint in its rows "
    "of opencqrs_progress, set position there to the newest event's id plus 1 if it is beyond it, and start again"
)
_MOST = 20_000  # links that are remembered, beside the newest one


class Link(NamedTuple):
    """An event's place in the chain: its position and its hash, as the server writes it."""

    position: int
    hash: str

    @classmethod
    def of(cls, event: Event) -> Link | None:
        """Return the link of an event that was read, ``None`` if it has no hash.

        Uses the stored text, as handlers may have changed the event's metadata.
        """
        found = orjson.loads(event.extensions) if event.extensions else {}
        text = found.get("hash") if isinstance(found, dict) else None
        return cls(event.position, text) if isinstance(text, str) and text else None

    @classmethod
    def parse(cls, fingerprint: str) -> Link | None:
        """Return the link that a fingerprint names, ``None`` if it is not one of this event store."""
        event_id, _, text = fingerprint.removeprefix(_PREFIX).partition(":")
        if not fingerprint.startswith(_PREFIX) or not (event_id.isascii() and event_id.isdigit()) or not text:
            return None
        return cls(int(event_id) + 1, text)

    @property
    def fingerprint(self) -> str:
        """The link as text: ``eventsourcingdb:``, the event's id, a colon and its hash."""
        return f"{_PREFIX}{self.position - 1}:{self.hash}"


class SeenChain:
    """The links that this process has seen: the last 20,000 and the newest. Safe for several threads.

    Attributes:
        doubted: The link that was missing in the log; nothing is delivered until it is found again.
    """

    def __init__(self, label: str) -> None:
        self.doubted: Link | None = None
        self._label = label
        self._hashes: dict[int, str] = {}
        self._newest: Link | None = None
        self._lock = Lock()

    @property
    def newest(self) -> Link | None:
        """The link with the highest position, ``None`` before anything was read."""
        return self._newest

    def at(self, position: int) -> Link | None:
        """Return the link at a position, ``None`` if it is unknown."""
        newest = self._newest
        if newest is not None and newest.position == position:
            return newest
        found = self._hashes.get(position)
        return None if found is None else Link(position, found)

    def keep(self, links: Iterable[Link]) -> None:
        """Remember links in the order of their positions; raise OCQ-316 if another hash is known at one of them."""
        with self._lock:
            for link in links:
                known = self.at(link.position)
                if known is not None and known != link:
                    raise self.broken(known, link)
                self._hashes[link.position] = link.hash
                if self._newest is None or link.position >= self._newest.position:
                    self._newest = link
            while len(self._hashes) > _MOST:
                del self._hashes[next(iter(self._hashes))]

    def follow(self, link: Link, predecessor: str) -> None:
        """Remember a link that the server has sent after those that are known, and check the one before.

        ``predecessor`` is the hash that its event names for that one.

        Raises:
            EventStoreError: OCQ-316, if either is known with another hash.
        """
        before = self.at(link.position - 1)
        if before is not None and before.hash != predecessor:
            raise self.broken(before, Link(before.position, predecessor))
        self.keep([link])

    def broken(self, expected: Link, found: Link | None) -> EventStoreError:
        """Return the error of ``not_the_log``, and doubt the log from now on."""
        self.doubted = expected
        return not_the_log(expected, found, self._label)


def not_the_log(expected: Link, found: Link | None, label: str) -> EventStoreError:
    """Return the error for a log without an event that was read, the ``expected`` one.

    ``found`` is the newest event at or below its position; ``None`` if the log is empty. Messages name the server by
    the label.
    """
    if found is None:
        there = "the log is empty"
    elif found.position < expected.position:
        there = f"the log ends at event {found.position - 1}"
    else:
        there = f"it has {_short(found.hash)}"
    what = (
        "the event store is not the one that the progress belongs to: "
        f"event {expected.position - 1} had the hash {_short(expected.hash)}, but now {there}"
    )
    return OtherLogError("OCQ-316", what, label, _REPLACED)


def other_store(position: int, found: str, label: str) -> EventStoreError:
    """Return the error for progress at a position that this log cannot have had."""
    what = f"the event store is not the one that the progress belongs to: the progress is at {position}, {found}"
    return OtherLogError("OCQ-316", what, label, _REPLACED)


def _short(text: str) -> str:
    return f"…{text[-12:]}"
