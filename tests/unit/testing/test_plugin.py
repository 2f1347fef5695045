from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import pytest
from opencqrs_py.config import load

def partitions(tmp_path, group):
    environ = {"OPENCQRS__EVENT_HANDLING__STANDARD__LIFE_CYCLE__PARTITIONS": "3"}
    return load(tmp_path, environ=environ).group(group).life_cycle.partitions
"""


ARGUMENTS = ("-p", "no:cacheprovider", "--strict-markers")


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Return a function that runs a file of tests in this process, ten times faster than in a new one."""
    pytester.makeconftest('pytest_plugins = ["opencqrs_py.testing.plugin"]')

    def run(source: str) -> dict[str, int]:
        pytester.makepyfile(HEAD + source)
        return pytester.runpytest_inprocess(*ARGUMENTS).parseoutcomes()

    return run


def test_a_marker_overrides_variables_for_its_test_only(run):
    assert run("""
@pytest.mark.opencqrs_properties({"event-handling.standard.life-cycle.partitions": 5})
def test_first(tmp_path):
    assert partitions(tmp_path, "books") == 5

def test_second(tmp_path):
    assert partitions(tmp_path, "books") == 3
""") == {"passed": 2}


def test_the_nearest_marker_wins_and_the_fixture_overrides_markers(run):
    assert run("""
pytestmark = pytest.mark.opencqrs_properties({"event-handling.standard.life-cycle.partitions": 5})

@pytest.mark.opencqrs_properties({"event-handling.groups.books.life-cycle.partitions": 6})
def test_first(tmp_path, opencqrs_properties):
    assert (partitions(tmp_path, "books"), partitions(tmp_path, "audit")) == (6, 5)
    opencqrs_properties("event-handling.groups.audit.life-cycle.partitions", 7)
    assert partitions(tmp_path, "audit") == 7
""") == {"passed": 1}


def test_fixtures_of_a_module_or_class_use_the_settings_of_its_markers(run):
    assert run("""
from pathlib import Path
from unittest import TestCase

PARTITIONS = "event-handling.groups.{}.life-cycle.partitions"
pytestmark = pytest.mark.opencqrs_properties({PARTITIONS.format("books"): 5, PARTITIONS.format("audit"): 5})

@pytest.fixture(scope="module")
def of_module(tmp_path_factory):
    return partitions(tmp_path_factory.mktemp("module"), "books")

@pytest.fixture(scope="class")
def of_class(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    return partitions(folder, "books"), partitions(folder, "audit")

def test_module(of_module, of_class):
    assert (of_module, of_class) == (5, (5, 5))

@pytest.mark.opencqrs_properties({PARTITIONS.format("books"): 6})
class TestOuter:
    def test_outer(self, of_class, of_module):
        assert (of_module, of_class) == (5, (6, 5))

    @pytest.mark.opencqrs_properties({PARTITIONS.format("audit"): 7})
    class TestInner:
        def test_inner(self, tmp_path, opencqrs_properties):
            assert (partitions(tmp_path, "books"), partitions(tmp_path, "audit")) == (6, 7)
            opencqrs_properties(PARTITIONS.format("books"), 8)
            assert (partitions(tmp_path, "books"), partitions(tmp_path, "audit")) == (8, 7)

@pytest.mark.opencqrs_properties({PARTITIONS.format("audit"): 9})
class TestOfUnittest(TestCase):
    @classmethod
    def setUpClass(cls):
        folder = Path(__file__).parent
        cls.found = partitions(folder, "books"), partitions(folder, "audit")

    def test_found(self):
        assert self.found == (5, 9)

def test_after_them(tmp_path):
    assert (partitions(tmp_path, "books"), partitions(tmp_path, "audit")) == (5, 5)
""") == {"passed": 5}


def test_the_fixture_sets_properties_from_an_event_loop_and_from_a_thread(run):
    assert run("""
import asyncio
from threading import Thread

async def on_loop(call):
    call()

def in_thread(call):
    thread = Thread(target=call)
    thread.start()
    thread.join()

@pytest.mark.parametrize("run", [lambda call: asyncio.run(on_loop(call)), in_thread])
@pytest.mark.opencqrs_properties({"event-handling.standard.life-cycle.partitions": 5})
def test_first(tmp_path, opencqrs_properties, run):
    run(lambda: opencqrs_properties("event-handling.groups.books.life-cycle.partitions", 6))
    assert (partitions(tmp_path, "books"), partitions(tmp_path, "audit")) == (6, 5)

def test_second(tmp_path):
    assert partitions(tmp_path, "books") == 3
""") == {"passed": 3}


@pytest.mark.parametrize(
    ("marker", "got"),
    [
        ("", "no argument"),
        ("()", "no argument"),
        ("('spark.master', 'local')", "'spark.master', 'local'"),
        ("(['spark.master'])", "['spark.master']"),
        ("(partitions=5)", "partitions=5"),
        ("({'spark.master': 'local'}, partitions=5)", "{'spark.master': 'local'}, partitions=5"),
        (
            "({'spark.master': 'local'}, {'spark.master': 'yarn'})",
            "{'spark.master': 'local'}, {'spark.master': 'yarn'}",
        ),
    ],
)
def test_a_marker_without_one_dict_of_properties_fails_its_test(run, pytester, capsys, marker, got):
    source = f"""
@pytest.mark.opencqrs_properties{marker}
class TestFirst:
    def test_first(self): ...
"""
    assert run(source) == {"errors": 1}
    shown = capsys.readouterr().out
    example = '@pytest.mark.opencqrs_properties({"event-handling.standard.processing.engine": "thread"})'
    assert f"opencqrs_properties takes one dict, such as {example}, got {got}\n" in shown
    assert "plugin.py" not in shown


def test_the_fixture_creates_handler_tests(run):
    assert run("""
import sys
from opencqrs_py import event_handling

seen = []

@event_handling("g", types=["*"])
def see(event: dict) -> None:
    seen.append(event)

def test_first(opencqrs_handler_test):
    opencqrs_handler_test(see).given({"type": "t", "data": {"a": 1}}).handle().expect_progress(1)
    opencqrs_handler_test(see, batch_size=2).given({"type": "t", "data": {"a": 2}}).handle()
    assert seen == [{"a": 1}, {"a": 2}]
""") == {"passed": 1}


def test_the_plugin_imports_nothing_heavy(pytester):
    pytester.makeconftest('pytest_plugins = ["opencqrs_py.testing.plugin"]')
    pytester.makepyfile("""
import sys

def test_first():
    heavy = {"sqlalchemy", "pyspark", "dependency_injector", "pandas"}
    assert heavy & set(sys.modules) == set()
""")
    assert pytester.runpytest_subprocess(*ARGUMENTS).parseoutcomes() == {"passed": 1}


def test_a_failed_expectation_shows_the_line_of_the_test(pytester):
    pytester.makeconftest('pytest_plugins = ["opencqrs_py.testing.plugin"]')
    pytester.makepyfile("""
def test_first(opencqrs_handler_test):
    from opencqrs_py import event_handling

    @event_handling("g", types=["*"])
    def see(event: dict) -> None: ...

    opencqrs_handler_test(see).expect_progress(1)
""")
    shown = pytester.runpytest_subprocess(*ARGUMENTS).stdout.str()
    assert ">       opencqrs_handler_test(see).expect_progress(1)" in shown
    assert "handling.py" not in shown
