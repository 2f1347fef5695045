"""The arena of attacks, and which of them are tried."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from harness.arena import Arena
from harness.lanes import all_combinations, as_parameters, quick_lane

from opencqrs_py.processing import supervision
from opencqrs_py.processing.recovery import ExponentialBackOff


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory, fresh_url: Callable[[str], str]) -> Arena:
    return Arena(tmp_path_factory.mktemp("hostile"), fresh_url)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    """Collects garbage that attacks have left open, while its warnings are ignored."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def quick_outages() -> Iterator[None]:
    """A partition that waits for a database retries soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervision, "OUTAGE_BACK_OFF", ExponentialBackOff(initial=0.02, multiplier=1, maximum=0.02))
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test the combinations of its engine, those of the quick lane or, with ``--all``, all of them."""
    engine = getattr(metafunc.module, "ENGINE", "")
    if "combination" in metafunc.fixturenames:
        lane = all_combinations() if metafunc.config.getoption("--all") else quick_lane()
        metafunc.parametrize("combination", as_parameters([one for one in lane if one.engine == engine]))
