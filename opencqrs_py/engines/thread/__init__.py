"""The thread engine: every partition on a thread of this process."""

from opencqrs_py.engines.thread.engine import ThreadEngine

__all__ = ["ThreadEngine"]
