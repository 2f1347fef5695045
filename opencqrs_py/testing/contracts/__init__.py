"""Contracts: what every event source, tracker, inbox, job store, lock registry and engine must do, as pytest classes.

Subclass the one of your port in a test module and give its fixtures::

    class TestMyProgressTracker(ProgressTrackerContract):
        @pytest.fixture
        def tracker(self):
            return MyProgressTracker(...)
"""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from opencqrs_py.testing.contracts.control_store import ControlStoreContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.engine import EngineContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.event_source import EventSourceContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.event_store import EventStoreContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.group_records import GroupRecordsContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.inbox import InboxContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.job_store import JobStoreContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.lock_registry import LockRegistryContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.progress_records import ReadModel  # noqa: E402 as above
from opencqrs_py.testing.contracts.progress_tracker import ProgressTrackerContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.repartitioning_tracker import RepartitioningTrackerContract  # noqa: E402 as above
from opencqrs_py.testing.contracts.resettable_tracker import ResettableTrackerContract  # noqa: E402 as above

__all__ = [
    "ControlStoreContract",
    "EngineContract",
    "EventSourceContract",
    "EventStoreContract",
    "GroupRecordsContract",
    "InboxContract",
    "JobStoreContract",
    "LockRegistryContract",
    "ProgressTrackerContract",
    "ReadModel",
    "RepartitioningTrackerContract",
    "ResettableTrackerContract",
]
