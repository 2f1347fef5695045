"""What ``mypy --strict`` finds in users' code; each line that is wrong says so."""

from __future__ import annotations

from opencqrs_py import Upcast, around_event, event_handling, event_type, upcaster


@event_type(7)  # wrong
class Lent: ...


@event_handling(7)  # wrong
def lend(event: Lent) -> None: ...


@event_handling("catalog", order="first")  # wrong
def give(event: Lent) -> None: ...


@upcaster(Lent)  # wrong
def renamed(event: Lent) -> Upcast:
    return Upcast(7, {})  # wrong


@around_event("catalog", order="first")  # wrong
def traced() -> None: ...


@event_handling("catalog")
def take(event: Lent) -> None: ...


take("no event")  # wrong
