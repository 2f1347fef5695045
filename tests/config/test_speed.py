"""Bounds that are generous, and counted in calls of Python functions: the same on a busy machine."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import opencqrs_py

HEAVY = ("pyspark", "sqlalchemy", "dependency_injector", "pandas", "pyarrow", "numpy", "rich", "click")


def modules_after(statement):
    """Return the modules that a new Python has loaded after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def test_loading_a_configuration_imports_no_heavy_library(tmp_path):
    modules = modules_after(
        f"from pathlib import Path\nfrom opencqrs_py.config import load\nload(Path({str(tmp_path)!r}))"
    )
    assert "pydantic_settings" in modules
    assert modules.isdisjoint(HEAVY)


def test_the_command_that_shows_settings_imports_no_console_and_no_runtime(project):
    project.yaml("opencqrs.spark.master: local[2]")
    arguments = ["config", "--project", str(project.folder)]
    modules = modules_after(
        f"from opencqrs_py.cli.main import main\ntry:\n    main({arguments})\nexcept SystemExit: print()"
    )
    assert "yaml" in modules
    assert modules.isdisjoint({*HEAVY, "opencqrs_py.model.event", "opencqrs_py.assembly.application"} - {"click"})
    rooms = {name.split(".")[1] for name in modules if name.startswith("opencqrs_py.")}
    assert rooms == {"assembly", "cli", "config", "errors", "model"}


def test_listing_the_commands_imports_none_of_them():
    modules = modules_after(
        "from opencqrs_py.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit: print()"
    )
    assert modules.isdisjoint({*HEAVY, "pydantic", "yaml"} - {"click"})
    assert {name.split(".")[1] for name in modules if name.startswith("opencqrs_py.")} == {"cli", "errors", "model"}


def test_objects_sent_to_workers_import_no_pydantic():
    modules = modules_after("from opencqrs_py.config import EffectiveGroup, Tracking, mask_url")
    assert modules.isdisjoint({*HEAVY, "pydantic", "pydantic_settings", "yaml"})


def with_groups(project, count):
    """Write settings of ``count`` groups, and return variables for all of them, in both styles."""
    groups = "".join(
        f"      book-catalog-{number}: {{fetch: {{subject: /books/{number}}}, retry: {{max-attempts: 3}}}}\n"
        for number in range(count)
    )
    project.write("application.yaml", f"opencqrs:\n  event-handling:\n    groups:\n{groups}")
    styles = (
        "OPENCQRS__EVENT_HANDLING__GROUPS__BOOK_CATALOG_{}__LIFE_CYCLE__PARTITIONS",
        "OPENCQRS_EVENTHANDLING_GROUPS_BOOKCATALOG{}_LIFECYCLE_PARTITIONS",
    )
    return {styles[number % 2].format(number): "4" for number in range(count)}


def calls_of(action):
    """Return how many Python functions ``action`` calls."""
    calls = Counter()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls["call"]


def own_calls_of(action):
    """Return how many functions of the package ``action`` calls, and how many of its modules they are in."""
    calls = Counter()
    package = str(Path(opencqrs_py.__file__).parent)

    def count(frame, event, _argument):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls[frame.f_code.co_filename] += 1

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls.total(), len(calls)


def test_three_lines_of_yaml_load_with_few_calls(project):
    project.yaml("""
        opencqrs:
          spark.master: local[2]
          event-handling.groups.books.fetch.subject: /books
    """)
    project.load()  # the index of all settings is made once
    calls, modules = own_calls_of(project.load)
    assert calls <= 250
    assert modules <= 12


def test_five_hundred_groups_and_variables_bind_with_few_calls(project):
    environ = with_groups(project, 500)
    project.load()  # the index of all settings is made once
    found = []

    def bind():
        configuration = project.load(environ=environ)
        found.extend(configuration.group(name).life_cycle.partitions for name in configuration.group_names)

    assert calls_of(bind) < 500_000  # a quarter of a second
    assert found == [4] * 500


def test_the_work_grows_linearly_with_groups_and_variables(project):
    once = with_groups(project, 100)
    project.load(environ=once)
    calls = calls_of(lambda: project.load(environ=once))
    twice = with_groups(project, 200)
    assert calls_of(lambda: project.load(environ=twice)) < 2.1 * calls


def test_jobs_take_as_few_calls_as_groups(project):
    jobs = "".join(f"    clean-up-{number}: {{limit: {number + 1}}}\n" for number in range(100))
    project.write("application.yaml", f"opencqrs:\n  jobs:\n    standard: {{queue-size: 2}}\n{jobs}")
    variables = {f"OPENCQRS_JOBS_CLEANUP{number}_OVERLAPSCOPE": "per-id" for number in range(100)}
    found = []

    def bind():
        configuration = project.load(environ=variables)
        found.extend(configuration.job(name).limit for name in configuration.job_names)

    assert calls_of(bind) < 200_000
    assert found == list(range(1, 101))


INDEXED = """
import sys
from opencqrs_py.config.keys import index_of
from opencqrs_py.config.settings import Settings
calls = 0
def count(_frame, event, _argument):
    global calls
    calls += event == "call"
sys.setprofile(count)
index_of(Settings)
sys.setprofile(None)
print(calls)
"""


def test_the_index_of_all_settings_is_built_with_few_calls():
    run = subprocess.run([sys.executable, "-c", INDEXED], check=True, capture_output=True, text=True)
    assert int(run.stdout) < 18_000


COUNTED = """
import sys
calls = 0
def count(_frame, event, _argument):
    global calls
    calls += event == "call"
sys.setprofile(count)
from opencqrs_py.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    sys.setprofile(None)
    assert not end.code, end.code
print(calls, file=sys.stderr)
"""


def test_the_command_shows_a_hundred_groups_with_few_calls(project):
    with_groups(project, 100)
    command = [sys.executable, "-c", COUNTED, "config", "--project", str(project.folder), "--changed"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout.count("/books/") == 100
    assert int(run.stderr.split()[-1]) < 800_000  # half a second, imports and all
