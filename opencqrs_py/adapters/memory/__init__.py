"""Implementations of the ports in memory: for tests, and for progress that may be lost."""

from opencqrs_py.adapters.memory.control import InMemoryControlStore
from opencqrs_py.adapters.memory.event_store import InMemoryEventStore
from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.adapters.memory.progress import InMemoryProgressTracker, NoTransactions

__all__ = [
    "InMemoryControlStore",
    "InMemoryEventStore",
    "InMemoryJobStore",
    "InMemoryProgressTracker",
    "NoTransactions",
]
