"""An attack: code that a handler runs for one event, and the ends that are right for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

__all__ = ["DATABASES", "ENGINES", "KINDS", "NOT_SQLITE", "ONLY_MARIADB", "ONLY_POSTGRESQL", "ONLY_SQLITE", "Attack"]
__all__ += ["ERROR", "PASSING_ERROR", "End", "Firing", "followed"]

DATABASES = ("sqlite", "postgresql", "mariadb")
ENGINES = ("thread", "hand", "spark")
KINDS = ("single", "list", "class", "async")

ONLY_SQLITE = ("sqlite",)
ONLY_POSTGRESQL = ("postgresql",)
ONLY_MARIADB = ("mariadb",)
NOT_SQLITE = ("postgresql", "mariadb")


class End(StrEnum):
    """How the first run ends."""

    RIGHT = "right"  # every event was applied exactly once, and the progress is at the head
    STOPPED = "stopped"  # the partition failed, backs off or waits, and its report explains why
    SKIPPED = "skipped"  # the event was skipped, which is recorded, and all others were applied exactly once
    REFUSED = "refused"  # the application does not start, with a coded message
    INTERRUPTED = "interrupted"  # a KeyboardInterrupt on the caller's own thread: the run ends, nothing is lost


class Firing(StrEnum):
    """On which calls with the event the attack fires."""

    ALWAYS = "always"
    ONCE = "once"


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Code that ordinary users write, and that must never make a read model wrong without a message.

    The parameters of the handler are derived from the names in the code: ``connection``, ``session``, ``driver``,
    ``raw``, ``metadata``, ``context``, ``after_commit``.

    Attributes:
        name: Identifies the attack.
        before: Runs before the handler writes the row of the event at which the attack fires.
        after: Runs after it.
        extra: Further code of the module, placed before the handler.
        write: Replaces the statement that writes the row of ``event``.
        whole: Source of a whole module instead: the attack is in how handlers are registered.
        asks: Further parameters of the handler, each with its annotation.
        event: Class that the data become.
        firing: On which calls the attack fires.
        ends: The ends that are right.
        commits: Whether the attack can make writes durable outside our commit: events may then repeat, but not be lost.
        says: Regular expression that the report of a stop contains.
        anywhere: Whether it acts at other events, too, so that the stop may be before any of them.
        names_event: Whether the report of a stop names the event.
        blames_handler: Whether the report of a stop names the handler's file.
        kinds: Kinds of handler that it concerns.
        databases: Databases that it concerns.
        engines: Engines that it concerns.
        settings: Settings of the group.
        partitions: Partitions of the group.
        setup: Statements that prepare the database; ``{table}`` is the read model.
        process_wide: Whether it changes the whole process, so that no other attack shares it.
        correctable: Whether the module knows that its handler was corrected.
    """

    name: str
    before: str = ""
    after: str = ""
    extra: str = ""
    write: str = ""
    whole: str = ""
    asks: Mapping[str, str] = field(default_factory=dict)
    event: str = "Counted"
    firing: Firing = Firing.ALWAYS
    ends: tuple[End, ...] = (End.STOPPED,)
    commits: bool = False
    says: str = ""
    anywhere: bool = False
    names_event: bool = True
    blames_handler: bool = True
    kinds: tuple[str, ...] = KINDS
    databases: tuple[str, ...] = DATABASES
    engines: tuple[str, ...] = ENGINES
    settings: Mapping[str, object] = field(default_factory=dict)
    partitions: int = 1
    setup: tuple[str, ...] = ()
    process_wide: bool = False
    correctable: bool = True


ERROR, PASSING_ERROR = ", then an error", ", then an error that passes"
"""Ends of the names of attacks that an error follows."""


def followed(attacks: Iterable[Attack]) -> tuple[Attack, ...]:
    """Return each attack as it is, followed by an error, and followed by an error that passes on the second attempt."""
    return tuple(variant for attack in attacks for variant in (attack, _raising(attack), _raising_once(attack)))


def _raising(attack: Attack) -> Attack:
    return replace(
        attack,
        name=f"{attack.name}{ERROR}",
        after=f"{attack.after}\nraise ValueError('mine')",
        ends=(End.STOPPED,),
        says="",
    )


def _raising_once(attack: Attack) -> Attack:
    return replace(
        attack,
        name=f"{attack.name}{PASSING_ERROR}",
        after=f"{attack.after}\nraise ValueError('mine')",
        firing=Firing.ONCE,
        ends=(End.RIGHT, End.STOPPED),
        says="",
        names_event=False,  # a handler that ended the transaction once, and not again, is not found
        anywhere=True,
    )
