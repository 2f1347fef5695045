"""The error table: what is done about which error."""

from __future__ import annotations

import pytest

from opencqrs_py.model import Origin, Trouble
from opencqrs_py.processing.recovery import Action, OnExhausted, action_for

SKIP, STOP = OnExhausted.SKIP, OnExhausted.STOP

TABLE = [
    # origin, permanent, exhausted, on_exhausted -> action
    (Origin.HANDLER, False, False, SKIP, Action.RETRY),
    (Origin.HANDLER, False, False, STOP, Action.RETRY),
    (Origin.HANDLER, False, True, SKIP, Action.SKIP),
    (Origin.HANDLER, False, True, STOP, Action.STOP),
    (Origin.HANDLER, True, False, SKIP, Action.STOP),
    (Origin.HANDLER, True, True, SKIP, Action.STOP),
    (Origin.HANDLER, True, False, STOP, Action.STOP),
    (Origin.HANDLER, True, True, STOP, Action.STOP),
]
FIXED = {
    Origin.EVENT: Action.STOP,
    Origin.FRAMEWORK: Action.STOP,
    Origin.OUTAGE: Action.WAIT,
    Origin.FENCED: Action.LEAVE,
}


def trouble(origin: Origin, *, permanent: bool) -> Trouble:
    return Trouble(origin, permanent=permanent, error="ValueError", message="mine")


@pytest.mark.parametrize(("origin", "permanent", "exhausted", "on_exhausted", "action"), TABLE)
def test_a_handler_error_is_tried_again_until_its_attempts_are_used_up(
    *, origin: Origin, permanent: bool, exhausted: bool, on_exhausted: OnExhausted, action: Action
) -> None:
    assert action_for(trouble(origin, permanent=permanent), exhausted=exhausted, on_exhausted=on_exhausted) is action


@pytest.mark.parametrize("permanent", [True, False])
@pytest.mark.parametrize("exhausted", [True, False])
@pytest.mark.parametrize("on_exhausted", [SKIP, STOP])
@pytest.mark.parametrize(("origin", "action"), FIXED.items())
def test_no_other_error_asks_for_attempts(
    *, origin: Origin, permanent: bool, exhausted: bool, on_exhausted: OnExhausted, action: Action
) -> None:
    assert action_for(trouble(origin, permanent=permanent), exhausted=exhausted, on_exhausted=on_exhausted) is action


def test_the_table_knows_every_origin() -> None:
    assert {origin for origin, *_ in TABLE} | set(FIXED) == set(Origin)
