"""Engines that other packages register by entry points."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from opencqrs_py import Application, Event
from opencqrs_py.config import Engine, load
from opencqrs_py.config.schema import json_schema
from opencqrs_py.config.settings import Settings
from opencqrs_py.errors import AssemblyError, ConfigurationErrors

FLEET = """
from opencqrs_py.engines.thread import ThreadEngine

made = []

class FleetEngine(ThreadEngine):
    def __init__(self, runs, owner, observer, clock):
        super().__init__(runs, owner, observer, clock)
        made.append([run.group for run in runs])

def raises(*arguments):
    raise OSError("no ships")

def takes_nothing():
    return None

def returns_text(*arguments):
    return "a fleet"
"""
HANDLERS = """
from opencqrs_py import event_handling

@event_handling("a", types=["*"])
def on_a(event: dict) -> None: ...

@event_handling("b", types=["*"])
def on_b(event: dict) -> None: ...
"""
SETTING = "event-handling.groups.b.processing.engine"
THREAD = {"event-handling.standard.processing.engine": "thread"}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that installs a package of a given name, which registers engines."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fleet_engine.py").write_text(FLEET)

    def install(package: str, **registered: str) -> None:
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name.replace('_', '-')} = fleet_engine:{value}\n" for name, value in registered.items()]
        (info / "entry_points.txt").write_text("".join(["[opencqrs.engines]\n", *lines]))

    yield install
    sys.modules.pop("fleet_engine", None)


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "handlers_of_fleets.py").write_text(HANDLERS)
    yield __import__("handlers_of_fleets")
    del sys.modules["handlers_of_fleets"]


def test_a_registered_engine_runs_the_groups_that_name_it(install, handlers, tmp_path) -> None:
    install("fleet", fleet="FleetEngine")
    application = Application({**THREAD, SETTING: "Fleet"}, [handlers], tmp_path)
    application.event_store.append([Event(0, "1", "s", "/x", "t", None, "application/json", "{}", None)])

    result = application.run(until_caught_up=True)

    assert not result.failed
    assert sum(result.handled.values()) == 2
    assert sys.modules["fleet_engine"].made == [["b"]]


@pytest.mark.parametrize("spelling", ["big-fleet", "BIG_FLEET", "bigFleet"])
def test_the_name_is_found_in_every_spelling(install, spelling) -> None:
    install("fleet", big_fleet="FleetEngine")
    found = Engine(spelling)
    assert (found, found.value, str(found), found.name) == ("big-fleet",) * 4
    assert found == Engine("big-fleet")
    assert len({found, Engine("big-fleet")}) == 1
    assert pickle.loads(pickle.dumps(found)) == found
    assert found not in tuple(Engine)


def test_an_unknown_engine_is_refused_with_the_known_ones(install, tmp_path) -> None:
    install("fleet", fleet="FleetEngine", thread="FleetEngine")
    with pytest.raises(ConfigurationErrors) as caught:
        load(tmp_path, defaults={SETTING: "fleeet"}, environ={})
    (error,) = caught.value.errors
    assert error.code == "OCQ-112"
    assert error.fix == "use one of spark, thread, fleet; nearest: fleet"


def test_a_built_in_engine_cannot_be_replaced(install, handlers, tmp_path) -> None:
    install("fleet", thread="FleetEngine")
    application = Application(THREAD, [handlers], tmp_path)
    application.start()
    application.stop()
    assert "fleet_engine" not in sys.modules


def test_the_schema_for_editors_has_the_installed_engines(install) -> None:
    install("fleet", fleet="FleetEngine")
    assert '["spark", "thread", "fleet"]' in json.dumps(json_schema(Settings))


@pytest.mark.parametrize(
    ("value", "what", "fix"),
    [
        ("raises", "the engine 'fleet' cannot be created: OSError: no ships", "check that its package is complete"),
        ("takes_nothing", "the engine 'fleet' cannot be created: TypeError", "takes (runs, owner, observer, clock)"),
        ("missing", "the engine 'fleet' cannot be created: AttributeError", "check that its package is complete"),
        ("returns_text", "what 'fleet' registers returned str, which has no assign, start", "return an Engine of"),
    ],
)
def test_an_engine_that_cannot_be_created_is_refused_naming_its_entry_point(
    install, handlers, tmp_path, value, what, fix
) -> None:
    install("fleet", fleet=value)
    with pytest.raises(AssemblyError) as caught:
        Application({**THREAD, SETTING: "fleet"}, [handlers], tmp_path).start()
    assert caught.value.code == "OCQ-533"
    assert caught.value.what.startswith(what)
    assert caught.value.where == f"processing.engine, entry point fleet = fleet_engine:{value} of opencqrs.engines"
    assert fix in caught.value.fix


def test_an_engine_name_used_by_two_packages_is_refused(install, handlers, tmp_path) -> None:
    install("fleet", fleet="FleetEngine")
    install("other", fleet="raises")
    with pytest.raises(AssemblyError, match="2 packages register engines of the name 'fleet'") as caught:
        Application({**THREAD, SETTING: "fleet"}, [handlers], tmp_path).start()
    assert caught.value.fix == "uninstall all but one of them"
