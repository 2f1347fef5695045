"""Units of work where there is no database."""

from __future__ import annotations

import pytest

from opencqrs_py.adapters.memory import NoTransactions
from opencqrs_py.errors import NonTransientError


@pytest.mark.parametrize("name", ["connection", "session"])
def test_there_is_nothing_to_write_to_and_no_second_attempt_helps(name: str) -> None:
    with NoTransactions().begin() as unit, pytest.raises(NonTransientError, match="there is no database"):
        getattr(unit, name)


def test_what_is_not_there_is_never_away() -> None:
    assert not NoTransactions().is_outage(ConnectionError())
