"""Units of work without a database."""

from __future__ import annotations

import pytest

from opencqrs_py.adapters.memory import NoTransactions
from opencqrs_py.errors import NonTransientError


@pytest.mark.parametrize("name", ["connection", "session"])
def test_without_a_database_using_the_transaction_is_a_non_transient_error(name: str) -> None:
    with NoTransactions().begin() as unit, pytest.raises(NonTransientError, match="there is no database"):
        getattr(unit, name)


def test_without_a_database_no_error_is_an_outage() -> None:
    assert not NoTransactions().is_outage(ConnectionError())
