"""Blueprints: what several threads of a process discover, and modules that no other process can find."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from opencqrs_py import Application
from opencqrs_py.assembly import blueprint as module
from opencqrs_py.assembly.blueprint import Blueprint, modules_of
from opencqrs_py.errors import AssemblyError

HANDLERS = """
from collections.abc import Iterator
from dependency_injector import containers, providers
from opencqrs_py import Event, event_handling

closed = []

def opened() -> Iterator[str]:
    yield "open"
    closed.append(1)

class Parts(containers.DeclarativeContainer):
    resource = providers.Resource(opened)
    text = providers.Object("")

@event_handling("g", types=["*"])
def handle(event: Event, text: str) -> None:
    pass
"""


@pytest.fixture
def handlers(make_module) -> Any:
    return make_module(HANDLERS)


@pytest.fixture
def blueprint(handlers, tmp_path) -> Blueprint:
    return Application({"event-store.url": "sqlite:///all.db"}, [handlers], tmp_path).blueprint


def on_another_thread(call: Any) -> Any:
    with ThreadPoolExecutor(1) as another:
        return another.submit(call).result()


def test_threads_that_discover_at_the_same_moment_get_the_same_containers(blueprint, monkeypatch):
    discovered, others = module._discovered, []

    def slower(modules: Any) -> Any:
        monkeypatch.setattr(module, "_discovered", discovered)
        others.append(on_another_thread(blueprint.discover))
        return discovered(modules)

    monkeypatch.setattr(module, "_discovered", slower)
    assert blueprint.discover() is others[0]
    assert blueprint.discovered is others[0]


def test_a_thread_can_look_for_outdated_modules_while_another_discovers(blueprint, monkeypatch):
    imports_of = module._imports_of

    def interrupted(modules: Any) -> Any:
        monkeypatch.setattr(module, "_imports_of", imports_of)
        on_another_thread(blueprint.forget_outdated)
        return imports_of(modules)

    monkeypatch.setattr(module, "_imports_of", interrupted)
    assert blueprint.discover() is blueprint.discovered


def test_threads_that_find_outdated_containers_at_the_same_moment_close_them_once(blueprint, handlers, monkeypatch):
    found = blueprint.discover()
    found.injector.open_resources()
    found.injector._users = 0  # they were opened for a part, without a start
    close, newer = found.injector.close_resources, []

    def slower(*, was_user: bool) -> bool:
        monkeypatch.setattr(found.injector, "close_resources", close)
        on_another_thread(blueprint.forget_outdated)
        newer.append(on_another_thread(blueprint.discover))
        return close(was_user=was_user)

    monkeypatch.setattr(found.injector, "close_resources", slower)
    with handlers.Parts.text.override("other"):
        blueprint.forget_outdated()
        assert blueprint.discover() is newer[0] is not found
    assert handlers.closed == [1]


def made_by_hand(*_: Any) -> Any:
    made = ModuleType("made_by_hand")
    exec("def handle(event): pass", vars(made))
    return made


def handler_made_by_hand(*_: Any) -> Any:
    return made_by_hand().handle


def folder_without_init(folder: Any, monkeypatch: Any) -> Any:
    (folder / "folder_of_modules").mkdir()
    monkeypatch.syspath_prepend(folder)
    return __import__("folder_of_modules")


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (made_by_hand, "made_by_hand"),
        (handler_made_by_hand, "made_by_hand"),
        (folder_without_init, "folder_of_modules"),
        (lambda *_: len, "builtins"),
    ],
)
def test_a_module_without_a_file_is_refused_with_a_fix(monkeypatch, tmp_path, made, name):
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))
    monkeypatch.delitem(sys.modules, "folder_of_modules", raising=False)
    with pytest.raises(AssemblyError, match=rf"OCQ-513\] the module '{name}' has no file from which") as raised:
        modules_of([made(tmp_path, monkeypatch)])
    assert "pass its modules" in raised.value.fix
