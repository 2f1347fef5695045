"""What to test with: a clock that is moved by hand and, in ``contracts``, one class of tests per port."""

from opencqrs_py.testing.clock import FakeClock

__all__ = ["FakeClock"]
