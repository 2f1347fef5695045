"""Every exception that the package raises on purpose.

Two families. *Signals* are raised by or for handlers and carry only a message: they decide whether an
event is tried again. *Explained errors* are written for the person who has to fix something: each has a code
(a heading in ``docs/reference/errors.md``), says what is wrong, where, and how to fix it.

All of them survive pickling, since they cross from Spark's workers to the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "AssemblyError",
    "AssemblyErrors",
    "BulkWriteError",
    "CheckpointError",
    "ConfigurationError",
    "ConfigurationErrors",
    "DamagedFileError",
    "DatabaseFileError",
    "DatabaseFileGoneError",
    "EngineError",
    "EngineLostError",
    "EventFormatError",
    "EventStoreError",
    "ExplainedError",
    "FencedError",
    "HandlerCrashError",
    "HandlerSignatureError",
    "HandlerTimeoutError",
    "InboxChangedError",
    "InboxError",
    "InboxFullError",
    "JobCancelledError",
    "JobError",
    "LayoutChangedError",
    "LayoutError",
    "LazyResultError",
    "NonTransientError",
    "NotReachedError",
    "OnStartError",
    "OpenCqrsError",
    "OtherLogError",
    "PreconditionFailedError",
    "ProjectCodeError",
    "SeveralErrors",
    "TasksLeftError",
    "TransactionEndedError",
    "TransientError",
    "WaitTimedOutError",
]


class OpenCqrsError(Exception):
    """Root of all exceptions of this package. Raised by a handler, it is retried like any other error."""


class TransientError(OpenCqrsError):
    """A temporary failure: the event is tried again after the back-off."""


class NonTransientError(OpenCqrsError):
    """A permanent failure, which no retry can fix: the partition fails, or the event is parked."""


class TransactionEndedError(NonTransientError):
    """A handler has ended the transaction that it shares with the progress (OCQ-228). No progress was written."""

    code = "OCQ-228"

    may_be_kept = False
    """Whether earlier writes may have been committed. Not if ending was refused, or everything was rolled back."""


class FencedError(OpenCqrsError):
    """Another processor has taken over the partition; nothing that this one did was stored."""


class ExplainedError(OpenCqrsError):
    """A mistake that a person can fix.

    Args:
        code: Stable identifier, ``OCQ-`` and three digits; the first digit names the area that raised it (1
            configuration, 2 processing, 3 adapters, 4 engines, 5 assembly and command line).
        what: What is wrong, one sentence without a full stop.
        where: File with line and column, variable, argument or function. Empty when there is no place.
        fix: What to do about it. Empty when ``what`` says it all.
    """

    def __init__(self, code: str, what: str, where: str = "", fix: str = "") -> None:
        super().__init__(code, what, where, fix)
        self.code = code
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


class ConfigurationError(ExplainedError):
    """A setting, or the place where one was looked for, is wrong (OCQ-1xx)."""


class SeveralErrors(ExplainedError):  # noqa: N818 several of them
    """Errors that are reported together, in the order in which they were found; code and places are those of the first.

    Args:
        errors: At least one error.
    """

    def __init__(self, errors: tuple[ExplainedError, ...]) -> None:
        if not errors:
            raise ValueError("at least one error is needed")
        first = errors[0]
        super().__init__(first.code, first.what, first.where, first.fix)
        self.args = (errors,)
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class ConfigurationErrors(SeveralErrors, ConfigurationError):  # noqa: N818 as above
    """All configuration errors of one start together."""


class HandlerSignatureError(ExplainedError):
    """A handler, as written, cannot be called (OCQ-20x)."""


class ProjectCodeError(ExplainedError):
    """A sequence resolver, a provider or an interceptor of the project fails or breaks its contract (OCQ-21x, 22x).

    No event is to blame: none is skipped for it, and none uses an attempt.
    """


class OrderingError(ExplainedError):
    """The place of an event in its batch cannot be determined (OCQ-611): a failure of that event."""


class EventFormatError(ExplainedError, NonTransientError):
    """Bytes that should be an event, or its data, are not (OCQ-21x). No retry helps."""


class DamagedFileError(EventFormatError):
    """A file of events cannot be read to its end (OCQ-213)."""


class IncompleteLineError(DamagedFileError):
    """The last line of a file is not complete, although another file follows (OCQ-213): it may still be completed."""


class EventStoreError(ExplainedError):
    """The event store or the database refuses a request (OCQ-3xx)."""


class DatabaseFileError(EventStoreError):
    """The file of an SQLite database that is in use was replaced (OCQ-326). It is not the event's fault."""


class DatabaseFileGoneError(DatabaseFileError):
    """The file of an SQLite database that is in use was deleted or moved away (OCQ-326); it may come back."""


class UnreadableFileError(EventStoreError):
    """The operating system cannot read a file of events that is imported (OCQ-340)."""


class OtherLogError(EventStoreError):
    """The event store is not the one that the progress belongs to (OCQ-316)."""


class ProgressLostError(EventStoreError):
    """The progress of a group that has begun is lost (OCQ-317)."""


class HandlersChangedError(ExplainedError):
    """A group's code has changed, and must not continue what the earlier code has built (OCQ-318, OCQ-319)."""


class BeginningNeededError(OpenCqrsError):
    """A claim needs to know where partitions without progress start, and is repeated with that.

    Attributes:
        position: Where the group began, if that applies; ``None`` if it has to be determined.
    """

    def __init__(self, position: int | None = None) -> None:
        super().__init__("it is not known where partitions without progress start")
        self.position = position


class SequencesUncheckedError(OpenCqrsError):
    """A claim needs the sequences of all events in the inbox compared first, and is repeated after that."""

    def __init__(self) -> None:
        super().__init__("it is not known whether the events in the inbox are still in the same sequences")


class PreconditionFailedError(EventStoreError, TransientError):
    """A precondition of an append does not hold (OCQ-320): another writer came first. Nothing was added."""


class BulkWriteError(ExplainedError, NonTransientError):
    """A call of ``bulk.upsert`` does not fit its table (OCQ-36x). Its rows are not stored, and no retry helps."""


class HandlerCrashError(ExplainedError):
    """Several processes have ended while they handled the same event (OCQ-236)."""


class HandlerTimeoutError(ExplainedError, TransientError):
    """A handler has not returned in time (OCQ-229)."""


class TasksLeftError(ExplainedError, NonTransientError):
    """An async function has returned before the tasks that it started (OCQ-242). No retry helps."""


class LazyResultError(ExplainedError, NonTransientError):
    """A function has returned a generator, coroutine or lazy iterator, which nothing runs (OCQ-244). No retry helps."""


class CheckpointError(ExplainedError):
    """A participant does not confirm what is durable, or a request is invalid (OCQ-645 to OCQ-647)."""


class InboxError(ExplainedError):
    """An event cannot wait in the inbox, or a requested change of it is impossible. Nothing is lost."""


class InboxFullError(InboxError):
    """More events or sequences would wait in the inbox than allowed (OCQ-601).

    Args:
        code: As for any explained error, like the next three.
        what: What is wrong.
        where: The group, and the first event for which there is no room.
        fix: What to do about it.
        position: Position of that event.
    """

    def __init__(self, code: str, what: str, where: str = "", fix: str = "", position: int = 0) -> None:
        super().__init__(code, what, where, fix)
        self.args = (code, what, where, fix, position)
        self.position = position


class JobCancelledError(OpenCqrsError):
    """A job that was asked to end has done so, and rolled back what it had not committed."""


class JobError(ExplainedError, NonTransientError):
    """A job cannot run as it is written, or a request for it is impossible (OCQ-66x). Nothing is lost."""


class UnknownJobError(JobError):
    """No job has the name (OCQ-667)."""


class KeyReusedError(JobError):
    """The key of a request for a run was used before, for other ids (OCQ-675). Nothing was recorded."""


class ResetError(ExplainedError):
    """A group cannot be reset (OCQ-612 to OCQ-614). Nothing was changed."""


class LayoutError(ExplainedError):
    """The partitions of a group cannot be changed (OCQ-615). Nothing was changed."""


class LayoutChangedError(ExplainedError):
    """The partitions of a group are no longer those that were to be claimed (OCQ-616).

    Attributes:
        group: Processing group.
        partitions: Its partitions, as ``(modulus, residue)``.
    """

    group: str = ""
    partitions: Sequence[tuple[int, int]] = ()

    @classmethod
    def of(cls, group: str, partitions: Iterable[tuple[int, int]], claimed: str) -> LayoutChangedError:
        """Return the error that ``claimed`` is no longer a partition of a group."""
        what = f"the partitions of group '{group}' were changed: {claimed} is no longer one of them"
        error = cls("OCQ-616", what, f"group {group}", "restart this process")
        error.group, error.partitions = group, tuple(partitions)
        return error


class RebuildError(ExplainedError):
    """A group cannot be rebuilt beside the live one (OCQ-630, OCQ-634 to OCQ-636). The live tables are unchanged."""


class RebuildWriteError(ExplainedError, NonTransientError):
    """In a rebuild a handler writes outside of the new tables (OCQ-634). These writes are not kept."""


class RebuildUnderWayError(ExplainedError):
    """A group cannot run now, as it is being rebuilt (OCQ-632, OCQ-633)."""


class SwapUnderWayError(RebuildUnderWayError):
    """The tables of a group are being swapped by a rebuild (OCQ-633), which takes a moment."""


class InboxChangedError(OpenCqrsError):
    """Events in the inbox were changed by a person after they were read. They are read again."""


class EngineError(ExplainedError):
    """An engine cannot run on this machine in its current state (OCQ-4xx)."""


class UnavailableError(EngineError):
    """What a call needed on Spark is unavailable (OCQ-420): an outage, which uses no attempt."""


class EngineLostError(EngineError):
    """An engine has ended while it ran; nothing is wrong with the project."""


class AssemblyError(ExplainedError):
    """The parts of an application do not fit together (OCQ-5xx)."""


class CodeChangedError(AssemblyError):
    """A process has loaded other code of the project than the run that it works for (OCQ-545)."""


class WaitTimedOutError(ExplainedError):
    """A request was not carried out in time. It stays recorded."""


class NotReachedError(ExplainedError):
    """The wait cannot end unless a person acts first (OCQ-542, OCQ-543)."""


class OnStartError(AssemblyError):
    """An ``@on_start`` function raised its cause (OCQ-507)."""


class AssemblyErrors(SeveralErrors, AssemblyError):  # noqa: N818 as above
    """Everything that keeps an application from starting, together."""
