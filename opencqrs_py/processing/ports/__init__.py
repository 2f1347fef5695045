"""What the core needs from outside: protocols that adapters implement."""

from opencqrs_py.processing.ports.event_store import (
    EventSource,
    EventStore,
    LimitedSource,
    PickingSource,
    SharingSource,
    Watch,
)
from opencqrs_py.processing.ports.inbox import (
    Inbox,
)
from opencqrs_py.processing.ports.progress_tracker import (
    Carry,
    GroupRecords,
    NeverHandled,
    ParkingTracker,
    ProgressTracker,
    RepartitioningTracker,
    ReplayEnd,
    ResettableTracker,
    ResetUnit,
    SavingTracker,
    SucceedingTracker,
    nothing_ahead,
)
from opencqrs_py.processing.ports.surroundings import (
    BackOff,
    Clock,
    Injector,
    Lock,
    LockRegistry,
    SequenceResolver,
    SystemClock,
)
from opencqrs_py.processing.ports.transactions import (
    NoUnit,
    SavingUnit,
    Transactions,
    UnitOfWork,
)

__all__ = [
    "BackOff",
    "Carry",
    "Clock",
    "EventSource",
    "EventStore",
    "GroupRecords",
    "Inbox",
    "Injector",
    "LimitedSource",
    "Lock",
    "LockRegistry",
    "NeverHandled",
    "NoUnit",
    "ParkingTracker",
    "PickingSource",
    "ProgressTracker",
    "RepartitioningTracker",
    "ReplayEnd",
    "ResetUnit",
    "ResettableTracker",
    "SavingTracker",
    "SavingUnit",
    "SequenceResolver",
    "SharingSource",
    "SucceedingTracker",
    "SystemClock",
    "Transactions",
    "UnitOfWork",
    "Watch",
    "nothing_ahead",
]
