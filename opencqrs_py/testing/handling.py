"""Tests of handlers: given events, when they are handled, then the read model has the expected rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime
from types import ModuleType
from typing import Any, Self

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.sql import Database, DatabaseTransactions, Engine, rows_in
from opencqrs_py.assembly.discovery.discovered import Discovered, GroupFunction
from opencqrs_py.assembly.discovery.discovery import check_spellings, discover_members
from opencqrs_py.engines.checkpointing import CheckpointRule
from opencqrs_py.engines.parts import ProcessorOptions
from opencqrs_py.engines.processor import EventHandlingProcessor
from opencqrs_py.model.checkpoint import LATEST, Latest
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.event import Event
from opencqrs_py.model.naming import canonical, counted
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.progress import ProcessorState
from opencqrs_py.model.replay import Reset
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.binding import Work, of_reset, run_on_start
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointMode
from opencqrs_py.processing.frames import FrameMaker, FrameProcessing
from opencqrs_py.processing.notices import Notice, line_of
from opencqrs_py.processing.ports import BackOff
from opencqrs_py.processing.recovery import Action, FixedBackOff
from opencqrs_py.processing.roles import ON_RESET
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import PartitionKeyResolver
from opencqrs_py.testing.clock import FakeClock, forward
from opencqrs_py.testing.closing import closing
from opencqrs_py.testing.databases import opened_database
from opencqrs_py.testing.given import GivenEvents, by_type, choose
from opencqrs_py.testing.seen import RecordingTracker, Seen
from opencqrs_py.testing.showing import difference, from_users_frame

_HOUR = 3_600.0
_MOST_ATTEMPTS = 1_000  # of one event; then its back-off has no end that a test could wait for


class HandlerTest:
    """Handles given events as a project would, in the thread of the test: no store, no Spark, no waiting.

    Only a ``@dataframe_handler`` needs Spark: the session that is active, else a local one, which is opened once.

    Definitions are discovered as in a project: handlers, ``@on_start`` functions, upcasters, interceptors, event
    classes and containers. Transactions are real; the event store, the progress and the clock are the test's own.

    No settings are read: a scheduled group handles its events at once, without its filters and its batch key, and
    parking is by subject.

    Without ``retry``, ``handle`` raises what a handler raises. With it, errors are treated as in production, and the
    waits pass at once. A call after the commit that raises fails the test in any case.

    Example:
        ``HandlerTest(library).given(BookLent("1", "ada")).handle().expect_rows("SELECT isbn FROM lent", [("1",)])``

    Args:
        handlers: Modules, or functions and classes: then these only.
        group: The group to test; needed when the handlers belong to several.
        database: Where the read model is: a URL, a ``Database`` or a SQLAlchemy engine. By default a new SQLite
            database in memory.
        provide: Objects by the type that handlers take; they replace what containers provide.
        batch_size: Most events in one transaction; ``None``: as in production.
        retry: Waits between an event's attempts, such as ``FixedBackOff(2, max_attempts=1)`` or ``NoRetry()``.
        on_exhausted: ``skip``, ``stop`` or ``park``: with a ``retry``, what happens to an event after its last attempt.
            Parked events are tried again when ``clock`` has moved far enough, 30 s the first time, and ``handle`` is
            called.
        event_types: Event types that are not marked with ``@event_type``, each with its class.
        enveloped: Whether data come in OpenCQRS' envelope of metadata and payload.
        checkpointing: ``auto``, ``deferred`` or ``require-deferred``: when progress follows participants.

    Raises:
        ValueError: If there are no handlers, or handlers of several groups and none is named.
        TypeError: If ``provide``, ``retry`` or ``database`` is invalid.
        HandlerSignatureError: If a handler cannot be called as it is written.
        AssemblyError: If nothing provides a dependency of a handler class; OCQ-116, if handlers spell the group in two
            ways.
    """

    def __init__(
        self,
        *handlers: ModuleType | type | Callable[..., Any],
        group: str = "",
        database: Database | Engine | str = "",
        provide: Mapping[type, object] | None = None,
        batch_size: int | None = None,
        retry: BackOff | None = None,
        on_exhausted: str = "skip",
        event_types: Mapping[str, type] | None = None,
        enveloped: bool = False,
        checkpointing: str = "auto",
    ) -> None:
        if retry is not None and not callable(getattr(retry, "waits", None)):
            raise TypeError(f"retry takes a back-off such as FixedBackOff(2, max_attempts=3), got {retry!r}")
        group, self._members = choose(handlers, group)
        found = discover_members(self._members, provided=by_type(provide))
        check_spellings(found)
        self.group = next((each for each in found.groups if canonical(each) == canonical(group)), group)
        self.clock = FakeClock()
        self.database = opened_database(database)
        self._injectors = [found.injector]  # one of each process so far
        self._closing = closing(self, self.database, self._injectors, is_own=isinstance(database, str))
        self._starts = self._own(found, Declaration.ON_START)
        self._resets = self._own(found, Declaration.ON_RESET)
        self._injector = found.injector
        self._provide = provide
        self._transactions = DatabaseTransactions(self.database)
        self._store = InMemoryEventStore()
        self._given = GivenEvents(event_types or {}, enveloped=enveloped)
        self._seen = Seen()
        self._tracker = RecordingTracker(self._transactions, self._seen.raised.append)
        self._raises = retry is None
        self._back_off = retry or FixedBackOff(0)
        self._prepared = False
        self._waiting = 0  # events that were given since the last call of handle()
        self._options = ProcessorOptions(
            on_exhausted=OnExhausted(on_exhausted),
            batch_size=batch_size,
            event_types=event_types or {},
            enveloped=enveloped,
            observer=self._seen,
            clock=self.clock,
            checkpointing=CheckpointRule(CheckpointMode(checkpointing)),
        )
        self._processor = self._made(found)

    def _made(self, found: Discovered) -> EventHandlingProcessor:
        """Return a processor with what was discovered, as each start of a process creates one."""
        handlers = [
            each for each in found.make_handlers() if each.mark.group == self.group
        ]  # a start creates all of them, too
        in_frames = any(handler.mark.in_frames for handler in handlers)
        options = replace(
            self._options,
            injector=found.injector,
            upcasters=found.upcasters,
            interceptors=[*found.interceptors, *([] if in_frames else [self._seen.interceptor])],
            event_classes=found.event_classes,
            frames=self._local_frames if in_frames else None,
            replay_finished=[each.call for each in self._own(found, Declaration.ON_REPLAY_FINISHED)],
        )
        return EventHandlingProcessor(
            0,
            "/",
            True,  # noqa: FBT003 recursive
            self._store,
            self._tracker,
            PerSubject(),
            PartitionKeyResolver(1),
            handlers,
            self._back_off,
            options=options,
        )

    def given(
        self,
        *events: Any,
        subject: str = "/",
        time: datetime | str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Append events to the log. Until ``handle`` is called, expectations and values are not available.

        Args:
            events: Objects of event classes; ``Event``; or ``dict`` with the attributes of a CloudEvent, of which only
                ``type`` is required.
            subject: Subject of events that have none.
            time: Time of events that have none; by default that of ``clock``.
            metadata: Metadata of events that are not ``Event``.

        Raises:
            TypeError: If something is not an event.
            ValueError: If an event with that source and id was given before: the log would not accept it.
        """
        moment = self.clock.now() if time is None else time
        for given in events:
            event = self._given.make(given, subject, moment, metadata or {})
            if self._store.append([event]).added != 1:
                raise ValueError(f"an event with source '{event.source}' and id '{event.id}' was given before")
            self._waiting += 1
        return self

    def handle(self, seconds: float = _HOUR) -> Self:
        """Handle what is due; the first call runs the ``@on_start`` functions first.

        Passes the waits between attempts by moving ``clock``, until nothing is left to do, the partition has failed, or
        the waits exceed a limit on that clock. The time that handlers let pass on it counts, too, but what need not
        wait is handled in any case.

        Raises:
            ValueError: If the limit is negative.
            Exception: What a handler raised, unless the test was given a ``retry``.
            AssertionError: If a call after the commit has raised; the next call of ``handle`` continues.
        """
        until = self.clock.monotonic() + forward(seconds)
        self._waiting = 0
        self._prepare()
        while (wait := self._step()) is not None:
            if self.state is ProcessorState.FAILED and wait > 0:
                break
            remaining = max(0.0, until - self.clock.monotonic())
            self.clock.advance(min(wait, remaining))
            if wait > remaining:
                break
        return self

    def restart(self) -> Self:
        """Stop the processor; the next ``handle`` starts it again, and runs ``@on_start`` functions again.

        Raises:
            AssertionError: If a participant cannot flush, unless the test was given a ``retry``. The processor has
                stopped, and events that are not durable are repeated.
        """
        self._prepared = False
        self._stop()
        return self

    def crash(self) -> Self:
        """Simulate a crash of the process: what handlers and participants keep in memory is lost.

        Nothing is released. At the next ``handle`` new instances of handler classes resume at ``progress``.
        """
        found = discover_members(self._members, provided=self._provide)
        self._starts = self._own(found, Declaration.ON_START)
        self._resets = self._own(found, Declaration.ON_RESET)
        self._injector = found.injector
        self._injectors.append(found.injector)
        self._processor = self._made(found)
        self._prepared = False
        return self

    def request(self, position: int | Latest = LATEST) -> Self:
        """Request a checkpoint of the participants, as their trigger does; the next ``handle`` makes it.

        Raises:
            ValueError: If there is no participant, or nothing was handled since the start.
            CheckpointError: OCQ-647, if no event at that position was given to handlers yet.
        """
        self._processor.trigger.request(position)
        return self

    def reset(self, to: int = 0, *, reason: str = "", context: Any = None) -> Self:
        """Reset the group to a position, as ``opencqrs groups reset`` does; the next ``handle`` handles events again.

        Args:
            to: The position after which it continues.
            reason: What ``@on_reset`` functions get as the reason.
            context: The context that they get.

        Raises:
            ValueError: If the position is negative.
            Exception: What an ``@on_reset`` function raised, or what ``restart`` raises; then nothing was reset.
        """
        if to < 0:
            raise ValueError(f"reset takes the position after which the group continues, 0 for the start; got {to}")
        self.restart()
        reset = Reset(self.group, to, context, reason, in_milliseconds(self.clock.now()))
        calls = [of_reset(each.call, each.place, self._injector, ON_RESET) for each in self._resets]
        with self._tracker.resetting(reset, layout(1)) as opened:
            for call in calls:
                call(reset, Work(self.group, Partition(1, 0), opened.unit))
        return self

    def connection(self) -> AbstractContextManager[Any]:
        """Open a transaction on the read model's database, to arrange or inspect rows, at any time."""
        return self.database.writing()

    def rows(self, query: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query: SQL text, or a statement of SQLAlchemy."""
        __tracebackhide__ = True
        self._check_handled()
        return rows_in(self.database, query)

    @property
    def progress(self) -> int:
        """Position up to which the group is done."""
        __tracebackhide__ = True
        self._check_handled()
        return sum(status.position for status in self._tracker.statuses())

    @property
    def state(self) -> ProcessorState:
        """What the processor does."""
        __tracebackhide__ = True
        self._check_handled()
        status = self._processor.status()
        return ProcessorState.STARTING if status is None else status.state

    @property
    def log(self) -> list[str]:
        """The log that an operator would read, line by line."""
        __tracebackhide__ = True
        self._check_handled()
        return [line_of(notice) for notice in self._seen.notices]

    @property
    def waits(self) -> list[float]:
        """The waits in seconds before events were tried again."""
        __tracebackhide__ = True
        self._check_handled()
        return self._seen.waits

    @property
    def skipped(self) -> list[Event]:
        """The skipped events."""
        __tracebackhide__ = True
        self._check_handled()
        return [self._given.at(position) for position in self._seen.skipped]

    @property
    def parked(self) -> list[Event]:
        """The events that wait in the inbox, by their positions."""
        __tracebackhide__ = True
        self._check_handled()
        return [self._given.at(entry.position) for entry in self._tracker.entries(self.group)]

    @property
    def error(self) -> BaseException | None:
        """What the last failed attempt raised.

        ``None`` if nothing has failed, or the error was not raised by a handler, a commit, or an
        ``@on_replay_finished`` function: that of a participant, for example, is only in ``log``.
        """
        __tracebackhide__ = True
        self._check_handled()
        return self._seen.error

    def attempts(self, event: Any) -> int:
        """Return how often an event, given or by its position, was tried; 0 when no handler was called for it."""
        __tracebackhide__ = True
        position = self._given.find(event).position
        self._check_handled()
        waiting = {entry.position for entry in self._tracker.entries(self.group)}
        status = self._processor.status()
        handled = 0 if status is None or status.checkpoint is None else status.checkpoint.handled
        return self._seen.attempts(position, max(self.progress, handled), waiting)

    def expect_rows(self, query: Any, expected: Sequence[Sequence[Any]]) -> Self:
        """Expect the rows of a query, in this order."""
        __tracebackhide__ = True
        return self._expect(f"rows of {query}", [tuple(row) for row in expected], self.rows(query))

    def expect_progress(self, position: int) -> Self:
        """Expect that the group is done up to a position."""
        __tracebackhide__ = True
        return self._expect("progress", position, self.progress)

    def expect_attempts(self, event: Any, count: int) -> Self:
        """Expect that an event, given as for ``attempts``, was tried so often; 0: no handler was called for it."""
        __tracebackhide__ = True
        return self._expect(f"attempts of {self._given.find(event).label}", count, self.attempts(event))

    def expect_waits(self, waits: Sequence[float]) -> Self:
        """Expect these waits in seconds before events were tried again."""
        __tracebackhide__ = True
        return self._expect("waits", list(waits), self.waits)

    def expect_skipped(self, *events: Any) -> Self:
        """Expect that these events, given as for ``attempts``, were skipped, and no others."""
        __tracebackhide__ = True
        expected = [self._given.find(event).label for event in events]
        return self._expect("events skipped", expected, [event.label for event in self.skipped])

    def expect_parked(self, *events: Any) -> Self:
        """Expect that these events, given as for ``attempts``, wait in the inbox, and no others."""
        __tracebackhide__ = True
        expected = sorted(self._given.find(event).label for event in events)
        return self._expect("events parked", expected, sorted(event.label for event in self.parked))

    def expect_failed(self, error: type[BaseException] = Exception) -> Self:
        """Expect that the partition has failed, with an error of this class."""
        __tracebackhide__ = True
        if self.state is ProcessorState.FAILED and self._seen.has_failed_with(error):
            return self
        found = self._seen.end if self.state is ProcessorState.FAILED else self.state
        return self._expect("end", error.__name__, str(found))

    def expect_log(self, *texts: str) -> Self:
        """Expect lines in the log with these texts in them, in this order; there may be others between them."""
        __tracebackhide__ = True
        lines = iter(self.log)
        for text in texts:
            if not any(text in line for line in lines):
                self._fail(f"the log has no line with {text!r}" + (" after the others" if text != texts[0] else ""))
        return self

    def expect_no_failure(self) -> Self:
        """Expect that nothing failed, not even temporarily."""
        __tracebackhide__ = True
        self._check_handled()
        if self._seen.failures:
            self._fail("there was a failure")
        return self

    def close(self) -> None:
        """Stop, and close resources of containers, and the database unless the caller passed it open.

        When the test is dropped, they are closed automatically, and no participant flushes.

        Raises:
            AssertionError: As ``restart``; everything is closed then, too.
        """
        try:
            self._stop()
        finally:
            self._closing()

    def _own(self, found: Discovered, declaration: Declaration) -> list[GroupFunction]:
        return [each for each in found.functions[declaration] if canonical(each.group) == canonical(self.group)]

    def _prepare(self) -> None:
        if self._prepared:
            return
        with self._transactions.begin(guarded=False) as unit:  # some databases commit what defines a table
            for start in self._starts:
                run_on_start(start.call, start.place, self._injector, Work(self.group, Partition(1, 0), unit))
        self._prepared = True

    def _local_frames(self, processing: FrameProcessing) -> FrameMaker:
        from opencqrs_py.engines.spark.frames import LocalFrames, local_session  # noqa: PLC0415 loads PySpark

        return LocalFrames(local_session, processing, self._seen.called.update)

    def _step(self) -> float | None:
        before = self._seen.begin()
        wait = self._processor.step()
        self._check(self._seen.notices[before:])
        return wait

    def _stop(self) -> None:
        before = self._seen.begin()
        self._processor.stop()
        self._check(self._seen.notices[before:])

    def _check(self, notices: Sequence[Notice]) -> None:
        """Raise the first failure that the test was not prepared for."""
        for notice in notices:
            if notice.failure is None:
                continue
            if self._raises or notice.action is None:  # no back-off applies to a call after the commit
                self._raise(notice)
            if notice.attempt >= _MOST_ATTEMPTS:
                self._fail(f"{notice.failure.event} was tried {notice.attempt} times: set max_attempts in retry")

    def _raise(self, notice: Notice) -> None:
        """Raise what a handler has raised, with a note that names the event."""
        is_reported = notice.action in (None, Action.CLAIM)  # of a call after the commit, or a participant
        error = None if notice.failure is None or is_reported else self._seen.error_of(notice.failure)
        if error is None:
            raise AssertionError(line_of(notice))
        note = f"raised for {notice.failure.event}" if notice.failure and notice.failure.event else line_of(notice)
        with suppress(Exception):  # an error that takes no notes, or cannot be inspected, is raised as it is
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        raise from_users_frame(error)

    def _expect(self, what: str, expected: Any, found: Any) -> Self:
        __tracebackhide__ = True
        if expected != found:
            self._fail(f"{what}: not as expected\n{difference(expected, found)}")
        return self

    def _check_handled(self) -> None:
        """Fail if ``handle`` was not called since: otherwise tests that test nothing would pass."""
        __tracebackhide__ = True
        if self._waiting:
            self._fail(f"{counted(self._waiting, 'event')} given but not handled yet: call handle() first")

    def _fail(self, what: str) -> None:
        __tracebackhide__ = True
        log = "".join(f"\n  {line_of(notice)}" for notice in self._seen.notices)
        raise AssertionError(f"{what}\nlog:{log}" if log else what)
