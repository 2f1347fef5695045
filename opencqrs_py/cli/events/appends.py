"""``opencqrs events append``: adds events, if their conditions hold."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import orjson

from opencqrs_py.adapters.files import events_of_lines
from opencqrs_py.assembly.application import Application
from opencqrs_py.cli.events.display import summed_up
from opencqrs_py.cli.options import ProjectOptions, Text, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, print_line, stdout
from opencqrs_py.cli.streams import standard_input
from opencqrs_py.errors import EventFormatError, EventStoreError
from opencqrs_py.model.appending import (
    Appended,
    Precondition,
    SubjectIsOnEventId,
    SubjectIsPopulated,
    SubjectIsPristine,
)
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.event import Event
from opencqrs_py.processing.ports import EventStore, gives_ids


@contextmanager
def writable_store(application: Application) -> Iterator[EventStore]:
    """Open the application's event store; at the end, report where it was created if there was none.

    Raises:
        EventStoreError: OCQ-343, if it can only be read.
    """
    store, missing = application.checked_event_store, application.missing_files().get("event-store.url")
    if not isinstance(store, EventStore):
        fix = (
            "set event-store.url to a SQL database, without event-store.mapping; to add to a folder of files, put a "
            "new file there whose name sorts after all others"
        )
        raise EventStoreError("OCQ-343", "events cannot be added to this event store", "event-store.url", fix)
    try:
        yield store
    finally:
        if missing is not None and Path(missing[0]).exists():
            print_line(f"created a new SQLite database: {missing[0]} (event-store.url, {missing[1]})", "yellow")
        for key, (place, origin) in application.take_new_tables().items():
            print_line(f"created new tables in {place} ({key}, {origin})", "yellow")


_SOURCE = "urn:opencqrs:command-line"
_NOT_KEPT = {"event_id": "--id", "time": "--time"}  # by a store that gives them itself


@click.command("append")
@click.argument("events", nargs=-1, metavar="[EVENT…|-]")
@project_options
@format_option
@click.option("--type", "event_type", type=Text(), help="Type of a single event, given by options.")
@click.option("--subject", type=Text(), help="Its subject.  [default: /]")
@click.option("--data", type=Text(), help="Its data as JSON.  [default: none]")
@click.option("--source", type=Text(), help=f"Its source.  [default: {_SOURCE}]")
@click.option("--id", "event_id", type=Text(), help="Its id.  [default: a new UUID]")
@click.option("--time", type=Text(), help="Its time.  [default: now]")
@click.option("--if-pristine", type=Text(), multiple=True, metavar="SUBJECT", help="Only if the subject has no event.")
@click.option("--if-populated", type=Text(), multiple=True, metavar="SUBJECT", help="Only if the subject has an event.")
@click.option(
    "--if-on", type=Text(), multiple=True, metavar="SUBJECT=ID", help="Only if the subject's newest event has the id."
)
def append_command(
    events: tuple[str, ...],
    options: ProjectOptions,
    if_pristine: tuple[str, ...],
    if_populated: tuple[str, ...],
    if_on: tuple[str, ...],
    *,
    as_json: bool,
    **attributes: str | None,
) -> None:
    """Append events, all or none.

    Each EVENT is a CloudEvent in JSON; - reads them from standard input, one a line. Or one event is built from --type
    and the options that go with it. Nothing is appended unless all conditions (--if-…) hold. Events whose source and id
    are known already are left out. EventSourcingDB does not do that: it assigns its own ids, which the JSON output
    lists, and recognises no event.
    """
    given = {name: value for name, value in attributes.items() if value is not None}
    if bool(events) == bool(given):
        raise click.UsageError("give events, or the options --type, --subject and so on for one event")
    wanted = list(_parsed(events)) if events else [_made_up(given)]
    preconditions = _preconditions(if_pristine, if_populated, if_on)
    _check_spelling(preconditions, {event.subject for event in wanted})
    if (subject := given.get("subject", "/")) != _usual(subject):
        print_line(f"most subjects are written differently: did you mean --subject {_usual(subject)}?", "yellow")
    with writable_store(options.application()) as store:
        for name in _NOT_KEPT.keys() & given.keys() if gives_ids(store) else ():
            raise click.UsageError(f"{_NOT_KEPT[name]} has no effect: this event store assigns its own ids and times")
        append = store.append if events or "event_id" in given else partial(_append_with_new_id, store)
        appended = append(wanted, preconditions)
    if as_json:
        ids = [event.id for event in wanted] if appended.ids is None else appended.ids
        print_json({"events": appended.given, "added": appended.added, "ids": ids})
    else:
        stdout().print(summed_up(appended.added, appended.given, "appended"), markup=False)


def _append_with_new_id(store: EventStore, wanted: Sequence[Event], preconditions: Sequence[Precondition]) -> Appended:
    """Append an event with a generated id; the error after an outage names it, so that the append can be repeated."""
    try:
        return store.append(wanted, preconditions)
    except EventStoreError as error:
        if gives_ids(store) or not store.is_outage(error):
            raise
        again = f"repeat it with --id {wanted[0].id}, so that the event is not stored twice"
        fix = "; ".join(filter(None, (error.fix, again)))
        raise EventStoreError(error.code, error.what, error.where, fix) from None


def _preconditions(pristine: Iterable[str], populated: Iterable[str], on: Iterable[str]) -> Sequence[Precondition]:
    found: list[Precondition] = [*map(SubjectIsPristine, pristine), *map(SubjectIsPopulated, populated)]
    for text in on:
        subject, equals, event_id = text.rpartition("=")
        if not equals or not subject or not event_id:
            raise click.UsageError(f"--if-on is SUBJECT=ID, such as /books/1=4711, got '{text}'")
        found.append(SubjectIsOnEventId(subject, event_id))
    return found


def _check_spelling(preconditions: Iterable[Precondition], appended: Collection[str]) -> None:
    """Refuse a subject that no event is likely to have: it would always count as pristine."""
    for subject in (each.subject for each in preconditions):
        if subject != _usual(subject) and subject not in appended:
            what = f"a condition names the subject '{subject}', and no event to append has it"
            raise click.UsageError(clean(f"{what}; did you mean {_usual(subject)}? Nothing was appended"))


def _usual(subject: str) -> str:
    """Return a subject as it is usually written: with a slash at its beginning, and none at its end."""
    return f"/{subject.strip('/')}"


def _parsed(arguments: Sequence[str]) -> Iterator[Event]:
    for number, argument in enumerate(arguments, start=1):
        where = f"EVENT {number}"
        try:
            if argument == "-":
                yield from events_of_lines(standard_input(), "standard input")
            else:
                yield parse_event(argument)
        except EventFormatError as error:
            fix = "fix it and append again; nothing was appended"
            raise EventFormatError(error.code, error.what, error.where or where, fix) from None


def _made_up(given: dict[str, str]) -> Event:
    if "event_type" not in given:
        raise click.UsageError("an event needs a --type")
    fields: dict[str, Any] = {
        "id": given.get("event_id", str(uuid.uuid4())),
        "source": given.get("source", _SOURCE),
        "subject": given.get("subject", "/"),
        "type": given["event_type"],
        "time": given.get("time", datetime.now(UTC).isoformat(timespec="microseconds")),
    }
    if "data" in given:
        fields["data"] = _json(given["data"])
    try:
        return parse_event(orjson.dumps(fields))
    except EventFormatError as error:
        raise EventFormatError(error.code, error.what, "the options of append", "nothing was appended") from None


def _json(text: str) -> orjson.Fragment:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"--data is not JSON: {error.msg} at character {error.pos + 1}") from None
    return orjson.Fragment(text)
