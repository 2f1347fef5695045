"""``opencqrs inbox``: shows and changes what waits there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opencqrs_py.cli.options import Integer, ProjectOptions, Text, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, print_line, print_result, stdout
from opencqrs_py.cli.records import print_only_warnings
from opencqrs_py.model.inbox import MOST_ATTEMPTS, FailedAttempt, InboxEntry, InboxStatus
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.naming import counted

if TYPE_CHECKING:
    from opencqrs_py.assembly.inbox import InboxControl, InboxFilter, InboxStep, ShownEntry


F = TypeVar("F", bound=Callable[..., Any])
_by_position = click.option("--position", type=Integer(min=1), metavar="N", help="At this position of the log.")
_SKIPPED = "skipped"
_LEFT = {"skip": _SKIPPED, "purge": "removed"}
"""The fate of events that a command has removed."""

_STATUSES = [status.value for status in InboxStatus]
_TAKEN_UP = (
    "a node that runs the group takes it up within seconds (a scheduled group at its next tick, a partition that backs "
    "off after its pause); without one, the next opencqrs run does"
)


def _filters(*, skipped: bool = False) -> Callable[[F], F]:
    """Add the options that select events; they reach the command as ``which``, with its parameter ``position``.

    Args:
        skipped: Whether ``--status skipped`` is possible, too; it reaches the command as ``skipped``.
    """

    def decorate(command: F) -> F:
        def wrapped(
            groups: tuple[str, ...],
            status: str | None,
            sequence: str | None,
            event: str | None,
            position: int | None,
            **others: Any,
        ) -> Any:
            from opencqrs_py.assembly.inbox import InboxFilter  # noqa: PLC0415 loads SQLAlchemy

            if skipped:
                others["skipped"] = status == _SKIPPED
            waits_for = None if status == _SKIPPED else status
            return command(which=InboxFilter(groups, waits_for, sequence, event, position), **others)

        decorated: Any = wraps(command)(wrapped)
        statuses = click.Choice([*_STATUSES, _SKIPPED] if skipped else _STATUSES)
        for option in (
            click.option("--event", type=Text(), metavar="ID", help="With this CloudEvents id."),
            click.option("--sequence", type=Text(), metavar="ID", help="Of this sequence."),
            click.option("--status", type=statuses, help="With this status."),
            click.option("--group", "groups", multiple=True, metavar="G", help="Of this group; may be repeated."),
        ):
            decorated = option(decorated)
        result: F = decorated
        return result

    return decorate


def _changing(command: Callable[..., list[InboxStep]]) -> Callable[..., None]:
    """Make a command of a function that changes events: it receives the inbox, the filter, and ``dry_run``."""

    def wrapped(
        options: ProjectOptions, which: InboxFilter, *, every: bool, dry_run: bool, as_json: bool, **others: Any
    ) -> None:
        if not every and not str(which):
            raise click.UsageError("select events: --group, --status, --sequence, --event or --position; or --all")
        print_only_warnings()  # what is logged of each change is printed as the result
        inbox = options.opened().inbox
        steps = command(inbox, which, dry_run=dry_run, **others)
        _print_left_out(inbox, which, "not changed")
        _print_steps(steps, command.__name__.removesuffix("_command"), dry_run=dry_run, as_json=as_json)

    decorated: Any = _filters()(_by_position(wraps(command)(wrapped)))
    for option in (
        click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing."),
        click.option("--all", "every", is_flag=True, help="All that wait, if no other option selects events."),
    ):
        decorated = option(decorated)
    result: Callable[..., None] = project_options(format_option(decorated))
    return result


def _print_left_out(inbox: InboxControl, which: InboxFilter, fate: str) -> bool:
    """Print which groups are left out if none is named; return whether events are known to wait in one of them."""
    if which.groups:
        return False
    for name in inbox.unseen():
        print_line(f"group {name} keeps its progress in memory: only its own process sees its inbox", "yellow")
    others = inbox.without_handlers()
    for name, count in others.items():
        waiting = counted(count, "event waits", "events wait")
        print_line(f"{waiting} in the inbox of group {name}, which has no handler here: {fate}", "yellow")
    return bool(others)


@click.group("inbox")
def inbox_command() -> None:
    """Show, try, pause or skip the events that wait in the inbox.

    They are parked, or belong to scheduled groups. A process that runs the group notices changes within seconds.
    """


@inbox_command.command("list")
@project_options
@format_option
@_filters(skipped=True)
@_by_position
def list_command(options: ProjectOptions, which: InboxFilter, *, skipped: bool, as_json: bool) -> None:
    """List the events that wait, by group, sequence and position.

    With --status skipped, those that have left unhandled instead.
    """
    if skipped and which.sequence is not None:
        raise click.UsageError("--status skipped and --sequence exclude each other: a skip records no sequence")
    inbox = options.recorded().inbox
    if skipped:
        _print_skips(inbox, which, as_json=as_json)
        return
    entries = inbox.entries(which)
    left_out = _print_left_out(inbox, which, "not listed")
    if as_json:
        print_json([_as_json(entry) for entry in entries])
        return
    held = inbox.holders(entries)
    for entry in entries:
        _print(_line(entry, held.get(entry)))
    if not entries:
        nothing = "nothing else waits in the inbox" if left_out else "nothing waits in the inbox"
        print_line(f"nothing in the inbox matches {which}" if str(which) else nothing, "default")


@inbox_command.command("show")
@click.argument("position", type=Integer(min=1), required=False)
@project_options
@format_option
@_filters()
def show_command(options: ProjectOptions, which: InboxFilter, *, as_json: bool) -> None:
    """Show one event, how its attempts ended, and what to type next.

    It is named by --event, or by its POSITION and --group.
    """
    if which.event is None and (which.position is None or not which.groups):
        raise click.UsageError("name one event: by --event ID, or by its POSITION and --group")
    inbox = options.opened().inbox
    shown = inbox.show(which)
    if as_json:
        from opencqrs_py.cli.events.display import positioned  # noqa: PLC0415 only for this

        event_json = None if shown.event is None else positioned(shown.event)
        print_json({**_as_json(shown.entry), "first_position": shown.first.position, "event": event_json})
    else:
        _print_entry(shown, inbox.holders((shown.entry, shown.first)), options.typed)


@inbox_command.command("retry")
@_changing
def retry_command(inbox: InboxControl, which: InboxFilter, *, dry_run: bool) -> list[InboxStep]:
    """Have the first event of each sequence tried at once.

    It does not matter what it waits for.
    """
    return inbox.retry(which, dry_run=dry_run)


@inbox_command.command("pause")
@_changing
def pause_command(inbox: InboxControl, which: InboxFilter, *, dry_run: bool) -> list[InboxStep]:
    """Have pending or retrying events wait until they are resumed."""
    return inbox.pause(which, dry_run=dry_run)


@inbox_command.command("resume")
@_changing
def resume_command(inbox: InboxControl, which: InboxFilter, *, dry_run: bool) -> list[InboxStep]:
    """Let paused events continue.

    The first of a sequence is tried at once.
    """
    return inbox.resume(which, dry_run=dry_run)


@inbox_command.command("skip")
@_changing
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is recorded with your user name.")
def skip_command(inbox: InboxControl, which: InboxFilter, reason: str, *, dry_run: bool) -> list[InboxStep]:
    """Remove events unhandled.

    It is recorded: opencqrs events skipped lists them.
    """
    if not reason.strip():
        raise click.UsageError("--reason is empty: give a reason")
    return inbox.skip(which, reason, dry_run=dry_run)


@inbox_command.command("set-attempts")
@_changing
@click.argument("attempts", metavar="N", type=Integer(min=0, max=MOST_ATTEMPTS))
def set_attempts_command(inbox: InboxControl, which: InboxFilter, attempts: int, *, dry_run: bool) -> list[InboxStep]:
    """Set how many attempts events have used up.

    They are attempts of park.retry or schedule.retry; 0 gives all of them again.
    """
    return inbox.set_attempts(which, attempts, dry_run=dry_run)


@inbox_command.command("purge")
@_changing
def purge_command(inbox: InboxControl, which: InboxFilter, *, dry_run: bool) -> list[InboxStep]:
    """Remove events of scheduled groups that have expired.

    Nodes that run them do so at each tick.
    """
    return inbox.purge(which, dry_run=dry_run)


_DONE = {
    "retry": ("is due now", "would be due now"),
    "pause": ("paused", "would be paused"),
    "resume": ("resumed", "would be resumed"),
    "skip": ("skipped", "would be skipped"),
    "purge": ("removed", "would be removed"),
    "set_attempts": ("attempts used up: {0}", "attempts used up would be: {0}"),
}


def _print_steps(steps: Sequence[InboxStep], command: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": dry_run, "changed": [_step_as_json(step, command) for step in steps]})
        return
    for step in steps:
        done = _DONE[command][dry_run].format(step.after.retries if step.after is not None else 0)
        first = f", before the event at position {step.meant.position}" if step.meant is not None else ""
        held = "" if step.held_up_by is None else f", but {_waits_for(step.held_up_by)}"
        expires = _expiry(step.after, dry_run=dry_run) if command == "pause" else ""
        _print(f"{_place(step.before)}, {step.before.status}: {done}{first}{held}{expires}")
    if dry_run:
        print_line("nothing was changed: --dry-run", "default")
    elif command in ("retry", "resume", "skip") and any(step.held_up_by is None for step in steps):
        print_line(_TAKEN_UP, "default")


def _expiry(entry: InboxEntry | None, *, dry_run: bool) -> str:
    """Return the note on an event that expires although it is paused; empty if it does not."""
    if entry is None or entry.expires_at is None:
        return ""
    return f"; {'would still expire' if dry_run else 'still expires'} {entry.expires_at}"


def _place(entry: InboxEntry) -> str:
    return f"[{entry.group} {entry.sequence_id}] {_named(entry)}"


def _named(entry: InboxEntry) -> str:
    return f"event {entry.event_id} at position {entry.position}"


def _waits_for(holder: InboxEntry) -> str:
    return f"waits for {_named(holder)}, {holder.status}"


def _line(entry: InboxEntry, holder: InboxEntry | None) -> str:
    """Return all of an event in one line."""
    error = f": {entry.reason}" if entry.reason else ""
    return f"{_place(entry)} ({entry.event_type}) {_state(entry, holder)}{error}"


def _state(entry: InboxEntry, holder: InboxEntry | None) -> str:
    """Return what an event waits for; ``holder`` is the event that waits for a person and holds it up, if one does."""
    after = f" after {counted(entry.attempts, 'attempt')}" if entry.attempts else ""
    if not entry.status.moves:
        return f"{entry.status}{after}"
    if holder is not None:
        return f"{entry.status}{after}, {_waits_for(holder)}"
    due = f"next attempt {entry.due_at}" if entry.due_at is not None else "an earlier event of its sequence comes first"
    return f"{entry.status}{after}, {due}"


def _print(line: str) -> None:
    stdout().print(clean(scrubbed(line)).replace("\n", "\\n"), markup=False, soft_wrap=True)


def _as_json(entry: InboxEntry) -> dict[str, Any]:
    errors = [asdict(error) for error in entry.errors]
    return {**entry._asdict(), "status": entry.status.value, "errors": errors, "last_error": entry.reason or None}


def _step_as_json(step: InboxStep, command: str) -> dict[str, Any]:
    before, after = step.before, step.after
    return {
        "group": before.group,
        "sequence_id": before.sequence_id,
        "position": before.position,
        "event_id": before.event_id,
        "was": before.status.value,
        "status": _LEFT.get(command) if after is None else after.status.value,
        "retries": None if after is None else after.retries,
        "due_at": None if after is None else after.due_at,
        "meant_position": None if step.meant is None else step.meant.position,
        "held_up_by": None if step.held_up_by is None else step.held_up_by.position,
    }


def _print_skips(inbox: InboxControl, which: InboxFilter, *, as_json: bool) -> None:
    from opencqrs_py.cli.events.listings import print_skips, skip_as_json  # noqa: PLC0415 only for this

    skips = inbox.skips(which)
    if as_json:
        print_json([{**skip_as_json(skip), "status": _SKIPPED} for skip in skips])
    elif skips:
        print_skips(skips)
    elif str(which):
        print_line(f"no event that was skipped matches {which}", "default")
    else:
        print_line("no events were skipped", "default")


def _print_entry(shown: ShownEntry, held: Mapping[InboxEntry, InboxEntry], project: str) -> None:
    entry, first = shown.entry, shown.first
    _print(_place(entry))
    expires = f"; expires {entry.expires_at}" if entry.expires_at is not None else ""
    state = _state(entry, held.get(entry))
    _print(f"{state}; came in {entry.parked_at}; attempts used up: {entry.retries}{expires}")
    if first not in (entry, held.get(entry)):
        _print(f"it waits behind {_named(first)}, {_state(first, held.get(first))}")
    _print_stored(shown)
    for number, error in _numbered(entry):
        _print(f"attempt {number}, {error.at}: {error.error}")
        if error.lines:
            stdout().print(clean(scrubbed(error.lines.rstrip("\n"))), markup=False, soft_wrap=True)
    for what, command in _next(shown, project):
        print_result(f"{what + ':':<26}{command}")


def _print_stored(shown: ShownEntry) -> None:
    if shown.event is None:
        print_line("the log does not have this event at this position any more", "yellow")
        return
    from opencqrs_py.cli.events.display import positioned  # noqa: PLC0415 only for this

    print_json(positioned(shown.event))


def _numbered(entry: InboxEntry) -> Iterator[tuple[int, FailedAttempt]]:
    """Yield the attempts whose ends are kept, with their numbers: the first one, and the newest."""
    count = len(entry.errors)
    for index, error in enumerate(entry.errors):
        yield (1 if index == 0 and count > 1 else entry.attempts - (count - 1 - index)), error


def _next(shown: ShownEntry, project: str) -> Iterator[tuple[str, str]]:
    """Yield what can be done with an event, and what to type for it, with the options that say which project it is."""
    entry = shown.entry
    sequence = position = ""
    if shown.shares_id:  # also by one of its own sequence; an event of several sequences waits in each
        sequence, position = f" --sequence {shlex.quote(entry.sequence_id)}", f" --position {entry.position}"
    event = f"{sequence} --event {shlex.quote(entry.event_id)}{position}"
    which = f"--group {shlex.quote(entry.group)}{event}{project}"
    if entry.status is InboxStatus.PAUSED:
        yield "to let it continue", f"opencqrs inbox resume {which}"
    if entry.status is InboxStatus.EXPIRED:
        yield "to remove it", f"opencqrs inbox purge {which}"
    else:
        yield "to try it at once", f"opencqrs inbox retry {which}"
    if entry.status.moves:
        yield "to let it wait for you", f"opencqrs inbox pause {which}"
    if entry.status is InboxStatus.EXHAUSTED:
        yield "to give it all attempts", f"opencqrs inbox set-attempts 0 {which}"
    yield "to leave it unhandled", f"opencqrs inbox skip {which} --reason TEXT"
