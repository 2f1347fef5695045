"""Hostile handlers on Spark: many at once, as the groups of one application, since a session is slow to start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest
from harness.arena import Arena
from harness.engines import run_application
from harness.lanes import Combination
from harness.ordeal import Ordeal, undergone

from opencqrs_py.engines.spark.session import Sessions, SessionSettings

ENGINE = "spark"
AT_ONCE = 12
"""Groups of one application."""

BATCHES_OF_A_SESSION = 4
"""Python workers keep what they have built for every application, and what an attack has left open."""

pytestmark = pytest.mark.filterwarnings("ignore")  # attacks may leave things open


class Batches:
    """Runs the chosen combinations batch by batch, each batch when its first combination is needed."""

    def __init__(self, chosen: list[Combination], arena: Arena) -> None:
        self._arena = arena
        self._sessions = Sessions(SessionSettings(master="local[2]", name="hostile"))
        self._run_in_session = 0
        self._batches = list(_batches(chosen))
        self._ordeals: dict[Combination, Ordeal] = {}

    def ordeal(self, combination: Combination) -> Ordeal:
        if combination not in self._ordeals:
            (batch,) = (batch for batch in self._batches if combination in batch)
            self._run(batch)
        return self._ordeals[combination]

    def close(self) -> None:
        self._sessions.close()

    def _open(self) -> None:
        if self._run_in_session == BATCHES_OF_A_SESSION:
            self._sessions.close()
            self._run_in_session = 0
        self._sessions.open()
        self._run_in_session += 1

    def _run(self, batch: list[Combination]) -> None:
        self._open()
        targets = self._arena.targets(batch)
        ordeals = undergone(targets, lambda those: run_application(those, ENGINE))
        if batch[0].attack.process_wide:  # its changes in the workers must not affect the next one
            self._run_in_session = BATCHES_OF_A_SESSION
        if len(batch) > 1 and any(ordeal.broke_off for ordeal in ordeals.values()):
            for one in batch:  # one of them ended the application: which one is seen when each is alone
                self._run([one])
            return
        self._ordeals |= {one: ordeals[target.group] for one, target in zip(batch, targets, strict=True)}


def _batches(chosen: list[Combination]) -> Iterator[list[Combination]]:
    """Group combinations by database; attacks that change the whole worker process come last, each alone."""
    gentle = sorted((one for one in chosen if not one.attack.process_wide), key=_place)
    for _, on_one in groupby(gentle, key=_place):
        those = list(on_one)
        yield from (those[first : first + AT_ONCE] for first in range(0, len(those), AT_ONCE))
    yield from ([one] for one in chosen if one.attack.process_wide)


def _place(one: Combination) -> tuple[str, str]:
    return one.database, one.schema


@pytest.fixture(scope="module")
def batches(request: pytest.FixtureRequest, arena: Arena) -> Iterator[Batches]:
    here = [item for item in request.session.items if item.path == request.path]
    made = Batches([item.callspec.params["combination"] for item in here], arena)  # type: ignore[attr-defined]
    yield made
    made.close()


def test_an_attack_leaves_a_correct_read_model_or_a_stopped_partition(
    combination: Combination, batches: Batches
) -> None:
    batches.ordeal(combination).check()
