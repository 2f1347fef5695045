"""A project folder: which modules are imported or skipped, and what is reported about both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.zygote import Ran, Zygote

from opencqrs_py import Application
from opencqrs_py.errors import AssemblyError, AssemblyErrors

HANDLER = """from opencqrs_py import Event, event_handling
@event_handling({})
def on(raw: Event) -> None: print({!r}, raw.id)
"""


class Folder:
    """A project folder whose modules have unique names, since all tests share one process."""

    def __init__(self, path: Path, zygote: Zygote) -> None:
        self.path = path
        self.zygote = zygote
        self.opened = ExitStack()
        self.write("application.yaml", "opencqrs.event-handling.standard.processing.engine: thread\n")

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def application(self, *overrides: str) -> Application:
        application = Application.from_project(self.path, overrides=overrides)
        self.opened.callback(application.stop)
        return application

    def run(self, *arguments: str, **environment: str) -> Ran:
        return self.zygote.opencqrs(self.path, arguments, environment)


@pytest.fixture
def folder(tmp_path, zygote) -> Iterator[Folder]:
    path, modules = sys.path[:], set(sys.modules)
    folder = Folder(tmp_path, zygote)
    with folder.opened:
        yield folder
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def groups(application: Application) -> list[str]:
    return [group.name for group in application.groups]


def test_handlers_are_found_in_folders_without_init_file_and_below_src(folder):
    folder.write("top_found.py", HANDLER.format("'top'", "top"))
    folder.write("folder_found/deep/one.py", HANDLER.format("'deep'", "deep"))
    folder.write("src/source_found/two.py", HANDLER.format("'source'", "source"))
    assert groups(folder.application()) == ["deep", "top", "source"]


def test_all_modules_that_cannot_be_imported_are_reported_together(folder):
    folder.write("a_good.py", HANDLER.format("'good'", "good"))
    folder.write("b_raises.py", "import opencqrs_py\nopencqrs_py.event_handling\n1 / 0\n")
    folder.write("c_exits.py", "import sys\nfrom opencqrs_py import event_handling\nsys.exit()\n")
    folder.write(
        "d_parses.py",
        "import a_good, argparse\n\np = argparse.ArgumentParser()\np.add_argument('--x', required=True)\n"
        "p.parse_args([])\n",
    )
    folder.write("e_panics.py", "import a_good\nclass Panic(BaseException): ...\nraise Panic('lost')\n")
    folder.write("f_imports.py", "import b_raises\n")
    folder.write("g_syntax.py", "from opencqrs_py import event_handling\ndef (\n")
    with pytest.raises(AssemblyErrors) as caught:
        folder.application().start()
    assert {error.code for error in caught.value.errors} == {"OCQ-501"}
    assert [Path(error.where).name for error in caught.value.errors] == [
        "b_raises.py:3",
        "c_exits.py:3",
        "d_parses.py:5",
        "e_panics.py:3",
        "g_syntax.py:2",
    ]
    ways = "name the module in discovery.exclude, or the modules with handlers in discovery.modules"
    assert [error.fix.partition(", or ")[2] for error in caught.value.errors] == [ways] * 5


@pytest.mark.release  # modules that exit are among those that cannot be imported
@pytest.mark.spark
def test_a_module_that_exits_the_program_does_not_end_a_command_on_spark_silently(folder, java):
    folder.write("exits.py", "from opencqrs_py import event_handling\nraise SystemExit(0)\n")
    for command in ("run", "conditions", "doctor"):
        done = folder.run(command, **java)
        assert done.code in (1, 2), command
        assert "ends the program when it is imported" in done.out + done.err
        assert "Traceback" not in done.err


@pytest.mark.release(call="start()")
@pytest.mark.parametrize("call", ["run(until_caught_up=True)", "start()"])
def test_an_application_started_by_an_import_is_refused(folder, call):
    script = f"from opencqrs_py import Application\nimport handlers\nApplication.from_project('.').{call}\n"
    folder.write("handlers.py", HANDLER.format('"books"', "seen"))
    folder.write("serve.py", script)
    done = folder.run("run", "--until-caught-up")
    assert done.code == 2
    assert done.err.splitlines()[-3:] == [
        "[OCQ-501] module 'serve' starts an application when it is imported",
        f"  where: {folder.path}/serve.py:3",
        '  fix:   put what is to run below if __name__ == "__main__":; a module that a server imports must keep its '
        "start: name it in discovery.exclude, or the modules with handlers in discovery.modules",
    ]
    modules = ("--set", "discovery.modules=handlers")
    assert folder.run("run", "--until-caught-up", *modules).code == 0
    folder.write("serve.py", script.replace("Application.from", 'if __name__ == "__main__":\n    Application.from'))
    assert folder.run("run", "--until-caught-up").code == 0


def test_ctrl_c_during_an_import_is_not_an_error_of_the_module(folder):
    folder.write("interrupted.py", "from opencqrs_py import event_handling\nraise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        folder.application().start()


@pytest.mark.parametrize("mode", ["0", "0o444", "0o111"])
def test_an_inaccessible_folder_is_passed_over(folder, mode):
    folder.write("handlers.py", HANDLER.format("'a'", "a"))
    folder.write("data/deeper/x.py", HANDLER.format("'b'", "b"))
    unprivileged = (  # root can read every folder, unless a process drops its capabilities
        "import ctypes, os;"
        "ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)());"
        f"os.chmod('data', {mode})"
    )
    try:
        ran = folder.zygote.opencqrs(folder.path, ["conditions"], {}, unprivileged)
        assert (ran.code, ran.err) == (0, "")
        (skipped,) = (line for line in ran.out.splitlines() if "discovery data" in line)
        assert "it cannot be read (Permission denied)" in skipped
    finally:
        (folder.path / "data").chmod(0o755)


@pytest.mark.parametrize("place", ["shop.v2/loans.py", "loans.v2.py", "wsgiref/helpers.py"])
def test_a_file_that_python_cannot_import_by_its_name_is_refused_with_its_place(folder, place):
    folder.write(place, HANDLER.format("'a'", "a"))
    done = folder.run("run", "--until-caught-up")
    assert done.code == 2
    assert f"where: {folder.path / place}" in done.err
    assert "fix:   give the file and its folders names without a dot that no other module has" in done.err


def test_a_file_hidden_by_a_module_of_the_same_name_is_refused(folder):
    folder.write("hidden_one.py", "print('no handlers')\n")
    folder.write("src/hidden_one.py", HANDLER.format("'a'", "a"))
    folder.write("json.py", HANDLER.format("'b'", "b"))
    with pytest.raises(AssemblyError) as caught:
        _ = folder.application().groups
    assert caught.value.code == "OCQ-512"
    assert "'json'" in caught.value.what


def test_settings_choose_the_modules(folder):
    folder.write("chosen_a.py", HANDLER.format("'a'", "a"))
    folder.write("chosen_b.py", HANDLER.format("'b'", "b"))
    folder.write("chosen_old/c.py", "raise SystemExit\nimport opencqrs_py.event_handling\n")
    exclude = 'discovery.exclude=["chosen_old"]'
    assert groups(folder.application(exclude)) == ["a", "b"]
    assert groups(folder.application(exclude, "discovery.modules=chosen_b")) == ["b"]
    (warning,) = folder.application('discovery.exclude=["chosen_old", "chosne_b"]').configuration.warnings
    assert (warning.code, warning.where) == ("OCQ-529", "argument --set discovery.exclude")
    assert "'chosne_b' matches no file" in warning.what


@pytest.mark.parametrize(
    "name",
    ["chosne", "chosen.py", "./chosen", "chosen/", "chosen.handlers", "nowhere.handlers", "handlers.chosen.nowhere"],
)
def test_a_configured_module_that_does_not_exist_is_refused_with_the_place_of_the_setting(folder, name):
    folder.write("chosen.py", HANDLER.format("'a'", "a"))
    folder.write("handlers/chosen.py", HANDLER.format("'b'", "b"))
    folder.write("application.yaml", f"opencqrs:\n  discovery.modules: [{name}]\n")
    ran = folder.run("run", "--until-caught-up", "--set", "event-handling.standard.processing.engine=thread")
    assert ran.code == 2
    assert ran.err.splitlines() == [
        f"[OCQ-501] there is no module '{name}'",
        "  where: discovery.modules (application.yaml:2:22)",
        "  fix:   name modules as an import does, such as shop.handlers for shop/handlers.py, or leave the setting out",
    ]


def test_a_configured_module_whose_own_import_fails_is_refused_with_its_line(folder):
    folder.write("chosen.py", "import chosne\n")
    ran = folder.run("run", "--set", "discovery.modules=chosen")
    assert ran.code == 2
    assert "module 'chosen' cannot be imported (ModuleNotFoundError: No module named 'chosne')" in ran.err
    assert f"where: {folder.path}/chosen.py:1\n" in ran.err


def test_handlers_in_submodules_of_a_configured_package_without_any_are_warned_of(folder):
    folder.write("shop_e/__init__.py", "")
    folder.write("shop_e/loans.py", HANDLER.format("'a'", "a"))
    folder.write("shop_e/events.py", "from opencqrs_py import event_type\n@event_type('t')\nclass Lent: ...\n")
    folder.write("shop_f/__init__.py", HANDLER.format("'b'", "b"))
    folder.write("shop_f/drafts.py", HANDLER.format("'c'", "c"))
    (warning,) = folder.application("discovery.modules=shop_e,shop_f").configuration.warnings
    what = (
        "a file with handlers, jobs or the like is not imported: discovery.modules names shop_e, and not shop_e.loans"
    )
    assert (warning.code, warning.what, warning.where) == ("OCQ-529", what, str(folder.path / "shop_e/loans.py"))
    assert folder.application("discovery.modules=shop_e,shop_e.loans").configuration.warnings == ()


@pytest.mark.parametrize(
    ("source", "warned"),
    [
        ("from opencqrs_py import Application\nfrom other import plan\n@plan.job('x')\ndef found(): ...\n", False),
        ("from opencqrs_py import Event\nfrom other import job\n@job\ndef found(): ...\n", False),
        ("import opencqrs_py\n@opencqrs_py.job('tidy')\ndef found(): ...\n", True),
        ("from opencqrs_py import *\n@job('tidy')\ndef found(): ...\n", True),
    ],
)
def test_a_decorator_of_another_package_named_like_one_of_ours_is_not_warned_of(folder, source, warned):
    folder.write("shop_i/__init__.py", "")
    folder.write("shop_i/plans.py", source)
    folder.write("shop_j.py", HANDLER.format("'a'", "a"))
    warnings = folder.application("discovery.modules=shop_i,shop_j").configuration.warnings
    assert [warning.code for warning in warnings] == ["OCQ-529"] * warned


def test_a_group_of_a_job_started_by_events_is_not_reported_as_lacking_handlers(folder, caplog):
    folder.write("handled_k.py", HANDLER.format("'a'", "a"))
    folder.write("jobs_k.py", "from opencqrs_py import job\n@job('send')\ndef send() -> None: ...\n")
    folder.write(
        "application.yaml",
        "opencqrs:\n  jobs: {send: {triggers: {events: {types: [lent]}}}}\n"
        "  event-handling.groups:\n    'job:send': {fetch: {subject: /x}}\n    'job:sned': {fetch: {subject: /x}}\n",
    )
    application = folder.application()
    assert caplog.text.count("OCQ-117") == 0
    assert groups(application) == ["a", "job:send"]
    assert caplog.text.count("OCQ-117") == 1
    assert "groups.job:sned is configured, but no handler belongs to that group" in caplog.text


FUNCTIONS = {
    "upcaster": "upcaster('old')",
    "interceptor": "around_event",
    "job": "job('tidy')",
    "@on_start function": "on_start('a')",
    "@on_reset function": "on_reset('a')",
    "@on_replay_finished function": "on_replay_finished('a')",
    "@batch_key function": "batch_key('a')",
    "@inbox_filter function": "inbox_filter('a')",
}


def decorated(decorator: str) -> str:
    name = decorator.partition("(")[0]
    return f"from opencqrs_py import {name}\n@{decorator}\ndef found(): ...\n"


@pytest.mark.parametrize("decorator", FUNCTIONS.values())
def test_functions_in_submodules_of_a_configured_package_without_any_are_warned_of(folder, decorator):
    folder.write("shop_g/__init__.py", "")
    folder.write("shop_g/old.py", decorated(decorator))
    folder.write("shop_h.py", HANDLER.format("'a'", "a"))
    (warning,) = folder.application("discovery.modules=shop_g,shop_h").configuration.warnings
    assert (warning.code, warning.where) == ("OCQ-529", str(folder.path / "shop_g/old.py"))


@pytest.mark.parametrize(("noun", "decorator"), FUNCTIONS.items())
def test_a_function_of_an_excluded_module_is_warned_of(folder, caplog, noun, decorator):
    folder.write("left_behind.py", decorated(decorator))
    folder.write("imports_found.py", "from left_behind import found\n" + HANDLER.format("'a'", "a"))
    assert groups(folder.application("discovery.exclude=left_behind")) == ["a"]
    assert f"imports {noun} found from a module that discovery does not scan: it never runs" in caplog.text
    assert "fix:   name module left_behind in discovery.modules" in caplog.text


def test_functions_of_discovered_modules_are_not_warned_of(folder, caplog):
    folder.write("looked_at.py", decorated("on_start('a')") + "def made(): yield\n")
    folder.write(
        "uses_both.py",
        "from looked_at import found, made\nfrom opencqrs_py import around_event\naround_event(made)\n"
        + HANDLER.format("'a'", "a"),
    )
    assert groups(folder.application()) == ["a"]
    assert caplog.text == ""


def test_handlers_of_the_project_folder_itself_are_warned_of(folder):
    folder.write("__init__.py", "")
    folder.write("beside_it.py", HANDLER.format("'a'", "a"))
    assert folder.application().configuration.warnings == ()
    folder.write("__init__.py", HANDLER.format("'b'", "b"))
    (warning,) = folder.application().configuration.warnings
    assert (warning.code, warning.where) == ("OCQ-529", str(folder.path / "__init__.py"))


def test_a_handler_of_an_excluded_module_is_warned_of(folder, caplog):
    folder.write("left_out.py", HANDLER.format("'a'", "a"))
    folder.write(
        "imports_it.py", "from left_out import on\n" + HANDLER.replace("def on", "def other").format("'b'", "b")
    )
    assert groups(folder.application("discovery.exclude=left_out")) == ["b"]
    assert "imports handler on from a module that discovery does not scan" in caplog.text


def test_status_imports_nothing_when_the_files_name_all_groups(folder):
    folder.write("named.py", HANDLER.format("'b'", "b") + "raise RuntimeError('imported')\n")
    folder.write(
        "named_too.py",
        "from opencqrs_py import event_handling\nNAME = 'a'\n"
        "class H:\n    @event_handling(NAME)\n    def on(self, e: dict): ...\n",
    )
    statuses = folder.application().status()
    assert [(status.group, status.head, status.partitions) for status in statuses] == [("b", 0, ()), ("a", 0, ())]
    done = folder.run("status", "--format", "json")
    assert [row["group"] for row in json.loads(done.out)] == ["b", "a"]


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        (HANDLER.format("''.join('a')", "a"), ()),
        (HANDLER.format("'a'", "a"), ("event-handling.standard.progress.tracker-ref=somewhere",)),
        ("from dependency_injector import containers\n" + HANDLER.format("'a'", "a"), ()),
    ],
)
def test_status_imports_the_modules_when_it_needs_them(folder, source, overrides):
    folder.write("needed.py", source + "raise RuntimeError('imported')\n")
    with pytest.raises(AssemblyError, match="RuntimeError: imported"):
        folder.application(*overrides).status()


def test_status_shows_the_progress_of_a_run_without_an_import(folder):
    folder.write("ran.py", HANDLER.format("'a'", "a"))
    folder.write("events.ndjson", '{"specversion":"1.0","id":"1","source":"s","type":"t","subject":"/x"}\n')
    assert folder.run("events", "import", "events.ndjson").code == 0
    assert "a 1" in folder.run("run", "--until-caught-up").out
    folder.write("ran.py", HANDLER.format("'a'", "a") + "raise RuntimeError\n")
    (row,) = json.loads(folder.run("status", "--format", "json").out)
    assert (row["group"], row["lag"], row["partitions"][0]["position"]) == ("a", 0, 1)


def test_groups_not_named_by_a_literal_are_not_reported_as_unknown(folder):
    folder.write("constant.py", HANDLER.format("'book' + 's'", "a"))
    folder.write("literal.py", HANDLER.format("'audit'", "b"))
    application = folder.application("event-handling.groups.Books.life-cycle.partitions=2")
    assert application.configuration.warnings == ()
    assert [(group.name, group.life_cycle.partitions) for group in application.groups] == [("books", 2), ("audit", 1)]
    assert application.configuration.warnings == ()


def test_health_and_status_know_a_group_whose_decorator_is_renamed(folder):
    folder.write(
        "renamed.py", HANDLER.format("'a'", "a").replace("@event_handling", "@on").replace("ling\n", "ling as on\n")
    )
    folder.write("literal.py", HANDLER.format("'audit'", "b"))
    assert [row["group"] for row in json.loads(folder.run("status", "--format", "json").out)] == ["audit", "a"]
    assert "[a] no process runs it" in folder.run("health").out


HELPERS = """from opencqrs_py import event_handling, job
def read_model(name): return event_handling(name, types=["*"])
def nightly(name): return job(name)
"""
DECLARING = (
    "from helping import nightly, read_model\n"
    + HANDLER.format("'books'", "books")
    + """
@read_model("loans")
def lend(raw: Event) -> None: raise LookupError("broken")
@nightly("remind")
def remind() -> None: raise LookupError("broken")
"""
)


@pytest.mark.release  # rare, and long
def test_groups_and_jobs_declared_by_a_helper_are_found(folder):
    folder.write("helping.py", HELPERS)
    folder.write("declaring.py", DECLARING)
    folder.write("events.ndjson", '{"specversion":"1.0","id":"1","source":"s","type":"t","subject":"/x"}\n')
    named = ("--set", "discovery.modules=declaring", "--set", "event-handling.groups.loans.retry.policy=none")
    stop = (*named, "--set", "event-handling.groups.loans.retry.on-exhausted=stop")
    once = (*named, "--set", "jobs.remind.retry.max-attempts=1")
    assert folder.run("events", "import", "events.ndjson").code == 0
    assert folder.run("run", "--until-caught-up", *stop).code == 1
    assert folder.run("jobs", "run", "remind", "--here", *once).code == 1
    health = folder.run("health", *named)
    assert (health.code, "[loans" in health.out, "remind:" in health.out) == (1, True, True), health
    assert "OCQ-117" not in health.out + health.err
    assert folder.run("status", "--check", *named).code == 1
    assert '"loans"' in folder.run("groups", "list", "--format", "json", *named).out
    assert "OCQ-542" in folder.run("await", "loans", *named).err


def test_a_group_whose_name_is_in_no_file_is_found_by_an_import(folder):
    folder.write(
        "shown.py", HANDLER.format("'a'", "a") + 'exec(\'event_handling("b", types=["*"])(lambda raw: None)\')\n'
    )
    assert [status.group for status in folder.application().status()] == ["a"]
    assert [status.group for status in folder.application().status(["B"])] == ["b"]
    with pytest.raises(AssemblyError, match=r"OCQ-509(?s:.*)use one of a, b"):
        folder.application().status(["c"])


@pytest.mark.parametrize("place", ["src/application.yaml", "src/shop_c/application.toml", "src/config/application.yml"])
def test_unread_settings_files_next_to_modules_are_warned_of(folder, place):
    folder.write("src/shop_c/__init__.py", HANDLER.format("'a'", "a"))
    folder.write("shop_d/__init__.py", "")
    folder.write("shop_d/application.yaml", "server: {port: 8080}\n")  # of another library
    folder.write("config/application.yaml", "opencqrs.node.name: here\n")
    folder.write(place, "opencqrs.node.name: there\n" if "toml" not in place else "opencqrs.node.name = 'there'\n")
    (warning,) = folder.application().configuration.warnings
    what = f"{place} is not read: settings are in the project's folder, or in its folder config"
    assert (warning.code, warning.what, warning.where) == ("OCQ-125", what, place)
    assert warning.fix.endswith(f"--project {Path(place).parent}")
    imported = folder.application(f"config.import={place}")
    assert imported.configuration.warnings == ()
    assert imported.configuration.settings.node.name == "there"


def test_programs_and_commands_report_each_warning_of_a_project_once(folder, caplog):
    folder.write("handled.py", HANDLER.format("'a'", "a"))
    folder.write("application-prod.yaml", "opencqrs.event-handling.groups.b.fetch.subject: /b\n")
    once = {"OCQ-529": 1, "OCQ-119": 1, "OCQ-117": 1}
    overrides = ["discovery.exclude=nothing", "event-handling.groups.b.fetch.subject=/b"]
    given = [each for override in overrides for each in ("--set", override)]
    for command in ("status", "conditions", "health", "config"):
        printed = folder.run(command, "--profile", "prdo", *given).err
        assert {code: printed.count(code) for code in once} == once
    with Application.from_project(folder.path, profiles=["prdo"], overrides=overrides) as application:
        assert groups(application) == ["a"]
        application.run(until_caught_up=True)
    assert {code: caplog.text.count(code) for code in once} == once


def test_conditions_list_modules_handlers_and_what_is_passed_over(folder):
    folder.write("listed.py", HANDLER.format("'a'", "a") * 2)
    folder.write("tool.py", "print()\n")
    folder.write("tests/test_x.py", "")
    rows = {(row["group"], row["subject"]): row for row in json.loads(folder.run("conditions", "--format", "json").out)}
    assert rows["", "discovery listed.py"]["choice"] == "imported"
    assert rows["", "discovery listed.py"]["reason"] == "module listed has 2 handlers"
    assert rows["", "discovery tool.py"]["choice"] == rows["", "discovery tests"]["choice"] == "passed over"
    assert rows["", "discovery tests"]["reason"] == "tests"
    assert rows["a", "handlers"]["candidates"] == ["listed.py:2 (on)", "listed.py:5 (on)"]


def test_conditions_report_import_errors_and_what_was_passed_over(folder):
    folder.write("broken_too.py", "from opencqrs_py import event_handling\nimport nothing_like_it\n")
    folder.write("tool.py", "print()\n")
    done = folder.run("conditions", "--format", "json")
    rows = {row["subject"]: row for row in json.loads(done.out)}
    assert rows["discovery"]["error"]["where"].endswith("broken_too.py:2")
    assert rows["discovery tool.py"]["choice"] == "passed over"
    assert done.code == 2
