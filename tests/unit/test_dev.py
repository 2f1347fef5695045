"""The development script: its decisions and messages, and that the locks match pyproject.toml."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.scheduling import OneSparkScheduling

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "dev.py").read_text(encoding="utf-8")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dev = load()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the script use an empty folder with a small pyproject.toml and two locks."""
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["a"]\n[tool.ruff]\nline-length = 100\n')
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "run.lock").write_text("a==1\n")
    (tmp_path / "requirements" / "dev.lock").write_text("a==1\nb==2\n")
    for name in ("VENV", "BIN", "PYTHON", "STAMP", "LOG", "DEMO"):
        monkeypatch.setattr(dev, name, tmp_path / getattr(dev, name).relative_to(ROOT))
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    return tmp_path


class TestOldPythons:
    def test_the_script_parses_on_old_pythons_so_it_can_print_its_message(self) -> None:
        ast.parse(SOURCE, feature_version=(3, 7))

    def test_the_script_imports_nothing_but_the_standard_library(self) -> None:
        imports = [node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {name for node in imports for name in _modules(node)}

        assert "subprocess" in names
        assert names <= sys.stdlib_module_names

    @pytest.mark.parametrize("version", [(3, 11, 0), (3, 14, 2), (4, 0, 0)])
    def test_a_new_enough_python_is_accepted(self, version: tuple[int, int, int]) -> None:
        assert dev.python_problem(version, lambda _name: None) == ""

    def test_the_newest_installed_python_is_suggested(self) -> None:
        found = {"python3.11": "/usr/bin/python3.11", "python3.13": "/usr/bin/python3.13"}

        assert dev.python_problem((3, 10, 12), found.get) == (
            "dev.py: this is Python 3.10, and 3.11 or newer is needed\nfix: type python3.13 dev.py ..."
        )

    def test_without_a_newer_python_the_fix_is_to_install_one(self) -> None:
        assert dev.python_problem((3, 6, 8), lambda _name: None) == (
            "dev.py: this is Python 3.6, and 3.11 or newer is needed\n"
            "fix: install a newer one, then type (for example) python3.12 dev.py ..."
        )


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [name.partition(".")[0] for name in names]


class TestCommandLine:
    @pytest.mark.parametrize(
        ("typed", "request_"),
        [
            ([], ("help", [], False)),
            (["--help"], ("help", [], False)),
            (["demo"], ("demo", [], False)),
            (["demo", "../other"], ("demo", ["../other"], False)),
            (["-v", "check"], ("check", [], True)),
            (["--verbose", "test", "-v"], ("test", ["-v"], True)),
            (["test", "-k", "java", "--help"], ("test", ["-k", "java", "--help"], False)),
        ],
    )
    def test_arguments_after_the_command_are_passed_on(
        self, typed: list[str], request_: tuple[str, list[str], bool]
    ) -> None:
        assert dev.parse(typed) == request_

    @pytest.mark.parametrize(
        ("typed", "message"),
        [
            (["tset"], "dev.py: there is no command 'tset'; use one of demo, test, check, lock, help\n"),
            (
                ["check", "tests"],
                "dev.py: check takes no arguments; to choose tests: python3 dev.py test ARGUMENT...\n",
            ),
        ],
    )
    def test_wrong_usage_prints_one_line_and_exits_with_2(
        self, typed: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert dev.main(typed) == 2
        assert capsys.readouterr() == ("", message)

    @pytest.mark.parametrize(
        ("raised", "code", "message"),
        [
            (dev.SetUpError("that went wrong"), 1, "dev.py: that went wrong\n"),
            (PermissionError(13, "Permission denied", ".venv"), 1, "dev.py: [Errno 13] Permission denied: '.venv'\n"),
            (KeyboardInterrupt(), 130, "\ndev.py: interrupted\n"),
        ],
    )
    def test_expected_errors_print_one_line_without_a_stack_trace(
        self,
        raised: BaseException,
        code: int,
        message: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(_request: object) -> int:
            raise raised

        monkeypatch.setitem(dev.COMMANDS, "check", fail)

        assert dev.main(["check"]) == code
        assert capsys.readouterr().err == message

    def test_a_missing_example_is_reported(self, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert dev.main(["demo"]) == 1
        assert capsys.readouterr().err.startswith(f"dev.py: {checkout}/examples/git_history/demo.py is missing")
        assert not (checkout / ".venv").exists()


class TestPrograms:
    def test_the_exit_code_is_passed_on(self) -> None:
        assert dev.run([sys.executable, "-c", "raise SystemExit(7)"])[:2] == (7, False)

    @pytest.mark.skipif(os.name == "nt", reason="signals")
    def test_death_by_a_signal_becomes_128_plus_its_number(self) -> None:
        assert dev.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"])[:2] == (143, False)

    def test_all_steps_run_under_their_headline_even_if_one_fails(self, capfd: pytest.CaptureFixture[str]) -> None:
        steps = {name: [sys.executable, "-c", f"print({name!r}); raise SystemExit({code})"] for name, code in STEPS}

        assert dev.run_all(steps) == 1

        lines = [line for line in capfd.readouterr().out.splitlines() if line]
        assert [line.rstrip("-") for line in lines[0:9:3]] == ["--- one ", "--- two ", "--- three "]
        assert lines[1:9:3] == ["one", "two", "three"]
        assert [line.partition(" in ")[0] for line in lines[2:9:3]] == [
            "--- one: passed",
            "--- two: failed",
            "--- three: passed",
        ]
        assert lines[-1].startswith("FAILED: two after ")

    def test_the_end_shows_the_time_of_each_step_and_the_total(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        times = iter([0.25, 61.5])
        monkeypatch.setattr(dev, "run", lambda _command, **_: dev.Ended(0, interrupted=False, seconds=next(times)))

        assert dev.run_all({"one": ["x"], "two": ["y"]}) == 0

        assert capsys.readouterr().out.splitlines()[-2:] == ["one 0.2 s, two 61.5 s", "all passed after 62 s"]

    @pytest.mark.parametrize(
        ("typed", "options"), [([], []), (["--coverage"], ["--cov"]), (["--all"], ["--cov", "--all"])]
    )
    def test_tests_run_after_the_checks_with_and_without_coverage(
        self, typed: list[str], options: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: dict[str, list[str]] = {}
        monkeypatch.setattr(dev, "prepare", lambda _kind, *, verbose: None)
        monkeypatch.setattr(dev, "run_all", lambda given: steps.update(given) or 0)

        assert dev.main(["test", *typed]) == 0

        assert list(steps) == [*dev.CHECKS, "pytest"]
        assert steps["pytest"] == [*dev.ALL_TESTS, *options]

    def test_no_step_runs_after_an_interrupted_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dev, "run", lambda _command, **_: dev.Ended(2, interrupted=True, seconds=0.1))

        with pytest.raises(KeyboardInterrupt):
            dev.run_all({"one": ["x"], "two": ["y"]})

    def test_the_environment_is_that_of_the_activated_venv(self) -> None:
        inherited = {"HOME": "/home/me", "PATH": "/bin", "PYTHONPATH": "/spark", "SPARK_HOME": "/s", "PYTHONHOME": "/p"}
        inherited["PYTHONDONTWRITEBYTECODE"] = "1"

        assert dev.environment(inherited) == {
            "HOME": "/home/me",
            "PATH": f"{dev.BIN}{os.pathsep}/bin",
            "VIRTUAL_ENV": str(dev.VENV),
        }

    def test_an_environment_without_a_path_gets_no_empty_path_entry(self) -> None:
        assert dev.environment({})["PATH"] == str(dev.BIN)


STEPS = (("one", 0), ("two", 3), ("three", 0))


class Recorder:
    """A stand-in for the parts of the set-up that start programs; it records their calls."""

    def __init__(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkout = checkout
        self.calls: list[str] = []
        monkeypatch.setattr(dev, "set_up", lambda label, _command, **_: self.calls.append(label))
        monkeypatch.setattr(dev, "works", lambda _python: True)

    def prepare(self, kind: str) -> list[str]:
        """Return the labels of the steps that ``kind`` took, and create an interpreter."""
        self.calls.clear()
        dev.prepare(kind, verbose=False)
        dev.PYTHON.parent.mkdir(exist_ok=True)
        dev.PYTHON.touch()
        return list(self.calls)


MADE = "making .venv with Python {}.{}.{}".format(*sys.version_info)
ITSELF = "installing opencqrs-py itself"
FIRST_RUN = "installing 1 packages (first time only, a few minutes)"
FIRST_DEV = "installing 2 packages (first time only, a few minutes)"
MORE_RUN = "installing 1 packages (some are new)"
MORE_DEV = "installing 2 packages (some are new)"


class TestSetUp:
    @pytest.fixture
    def recorder(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
        return Recorder(checkout, monkeypatch)

    def test_nothing_is_installed_twice(self, recorder: Recorder) -> None:
        assert recorder.prepare("run") == [MADE, FIRST_RUN, ITSELF]
        assert recorder.prepare("run") == []

    def test_test_packages_are_added_to_those_of_the_demo(self, recorder: Recorder) -> None:
        recorder.prepare("run")

        assert recorder.prepare("dev") == [MORE_DEV, ITSELF]
        assert recorder.prepare("dev") == []

    def test_the_demo_needs_nothing_beyond_the_test_packages(self, recorder: Recorder) -> None:
        assert recorder.prepare("dev") == [MADE, FIRST_DEV, ITSELF]
        assert recorder.prepare("run") == []

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("requirements/run.lock", "a==1.1\n"),
            ("pyproject.toml", '[project]\ndependencies = ["a", "c"]\n'),
            ("pyproject.toml", '[project]\ndependencies = ["a"]\n[tool.hatch]\nx = 1\n'),
        ],
    )
    def test_a_changed_lock_or_package_is_installed(self, recorder: Recorder, file: str, text: str) -> None:
        recorder.prepare("run")
        (recorder.checkout / file).write_text(text)

        assert recorder.prepare("run") == [MORE_RUN, ITSELF]

    def test_a_changed_tool_setting_installs_nothing(self, recorder: Recorder) -> None:
        recorder.prepare("run")
        (recorder.checkout / "pyproject.toml").write_text(
            '[project]\ndependencies = ["a"]\n[tool.ruff]\nline-length = 120\n'
        )

        assert recorder.prepare("run") == []

    def test_returning_to_an_older_lock_installs_the_test_packages_again(self, recorder: Recorder) -> None:
        lock = recorder.checkout / "requirements" / "run.lock"
        recorder.prepare("dev")
        lock.write_text("a==1.1\n")
        recorder.prepare("run")
        lock.write_text("a==1\n")

        assert recorder.prepare("dev") == [MORE_DEV, ITSELF]

    def test_another_python_recreates_the_venv(
        self, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recorder.prepare("run")
        (dev.VENV / "old").touch()
        monkeypatch.setattr(dev, "VERSION", (3, 19, 0))

        assert recorder.prepare("run") == ["making .venv with Python 3.19.0", FIRST_RUN, ITSELF]
        assert not (dev.VENV / "old").exists()
        assert "making .venv again: it is broken, or from another Python or place" in capsys.readouterr().out

    @pytest.mark.parametrize(
        "damage",
        [
            lambda: Path.unlink(dev.PYTHON),
            lambda: dev.STAMP.write_text("{"),
            lambda: dev.STAMP.write_text("[]"),
            lambda: dev.STAMP.write_text(json.dumps({"made": "Python 3.11 in /elsewhere/.venv"})),
        ],
    )
    def test_a_broken_or_moved_venv_is_recreated(self, recorder: Recorder, damage: Callable[[], object]) -> None:
        recorder.prepare("run")
        damage()

        assert recorder.prepare("run") == [MADE, FIRST_RUN, ITSELF]

    def test_a_venv_with_a_failing_interpreter_is_recreated_at_the_next_installation(
        self, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder.prepare("run")
        monkeypatch.setattr(dev, "works", lambda _python: False)

        assert recorder.prepare("run") == []
        assert recorder.prepare("dev") == [MADE, FIRST_DEV, ITSELF]

    def test_an_interrupted_set_up_is_repeated(self, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(_label: str, _command: list[str], **_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(dev, "set_up", interrupt)
            with pytest.raises(KeyboardInterrupt):
                dev.prepare("run", verbose=False)

        assert recorder.prepare("run") == [MADE, FIRST_RUN, ITSELF]

    def test_a_venv_not_made_by_the_script_is_left_alone(self, recorder: Recorder) -> None:
        dev.VENV.mkdir()

        with pytest.raises(dev.SetUpError) as caught:
            recorder.prepare("run")

        assert str(caught.value) == (
            f"{dev.VENV} was not made by dev.py\nfix: move it away (mv .venv .venv-old), and try again"
        )
        assert list(dev.VENV.iterdir()) == []

    def test_a_python_without_ensurepip_names_the_package_to_install(
        self, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "ensurepip", None)
        monkeypatch.setattr(dev, "VERSION", (3, 12, 3))

        with pytest.raises(dev.SetUpError) as caught:
            recorder.prepare("run")

        assert str(caught.value) == (
            "this Python has no module 'ensurepip'\nfix: on Debian and Ubuntu: sudo apt install python3.12-venv"
        )
        assert not dev.VENV.exists()


class TestSteps:
    @pytest.fixture(autouse=True)
    def venv(self, checkout: Path) -> None:
        dev.VENV.mkdir()

    @pytest.fixture
    def slow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make every program take 65 seconds by the clock."""
        now, wait = [0.0], dev.wait

        def waited(*arguments: Any) -> int:
            now[0] += 65
            return wait(*arguments)

        monkeypatch.setattr(dev, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(dev, "wait", waited)

    @pytest.mark.usefixtures("slow")
    def test_the_output_of_a_step_is_not_shown(self, capfd: pytest.CaptureFixture[str]) -> None:
        dev.set_up("installing", [sys.executable, "-c", "print('noise')"], verbose=False)

        assert capfd.readouterr().out == "installing ... 65 s\n"

    @pytest.mark.usefixtures("slow")
    def test_with_verbose_the_output_of_a_step_is_shown(self, capfd: pytest.CaptureFixture[str]) -> None:
        dev.set_up("installing", [sys.executable, "-c", "print('noise')"], verbose=True)

        assert capfd.readouterr().out == "installing ...\nnoise\n 65 s\n"

    def test_a_failed_step_is_reported_with_its_last_lines(self) -> None:
        program = "print(*range(20), sep='\\n'); raise SystemExit(1)"

        with pytest.raises(dev.SetUpError) as caught:
            dev.set_up("installing", [sys.executable, "-c", program], verbose=False)

        last = "".join(f"    {number}\n" for number in range(5, 20))
        assert str(caught.value) == (
            f"this failed: installing\n{last}fix: the whole output may tell more: python3 dev.py -v ..."
        )

    @pytest.mark.parametrize(
        ("said", "advice"),
        [
            ("OSError: [Errno 28] No space left on device", "free about 3 GB"),
            ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "set PIP_CERT"),
            ("Failed to establish a new connection: [Errno 111] Connection refused", "connect to the internet"),
            ("NewConnectionError: [Errno -2] Name or service not known", "connect to the internet"),
            ("ReadTimeoutError: Read timed out.", "connect to the internet"),
            ("ERROR: No matching distribution found for a==1", "use a Python from 3.11 to 3.14"),
        ],
    )
    def test_a_known_pip_failure_is_reported_with_advice(self, said: str, advice: str) -> None:
        output = f"Collecting a\n  WARNING: {said}\nERROR: first\nERROR: No matching distribution found for a==1\n\n"

        lines = dev.set_up_failure("installing", output).splitlines()

        assert lines[:2] == ["this failed: installing", "    ERROR: No matching distribution found for a==1"]
        assert lines[2].startswith(f"fix: {advice}")
        assert len(lines) == 3

    @pytest.mark.skipif(os.name == "nt", reason="signals")
    @pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
    def test_an_interrupt_during_imports_prints_one_line(self, sent: str, tmp_path: Path) -> None:
        slow = f"import os, signal, time\nos.kill(os.getpid(), signal.{sent})\ntime.sleep(60)\n"
        (tmp_path / "hashlib.py").write_text(slow)
        # Coverage would import hashlib itself, before the first line of dev.py.
        without_coverage = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}

        done = subprocess.run(
            [sys.executable, ROOT / "dev.py"],
            env={**without_coverage, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            check=False,
        )

        assert (done.returncode, done.stderr) == (130, b"\ndev.py: interrupted\n")

    @pytest.mark.skipif(os.name == "nt", reason="signals")
    def test_ctrl_c_ends_the_program_of_a_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = dev.start_quietly(["sh", "-c", "sleep 60 & wait"], None)
        waited = process.wait
        answers = iter([KeyboardInterrupt()])

        def wait_as_if_interrupted(timeout: float | None = None) -> int:
            for answer in answers:
                raise answer
            return waited(timeout)

        monkeypatch.setattr(process, "wait", wait_as_if_interrupted)

        with pytest.raises(KeyboardInterrupt):
            dev.wait(process, "")

        assert process.returncode == -15


class TestLocks:
    """The locks in the checkout."""

    @staticmethod
    def read(kind: str) -> list[str]:
        lines: list[str] = dev.packages((ROOT / "requirements" / f"{kind}.lock").read_text(encoding="utf-8"))
        return lines

    def test_the_test_lock_includes_the_demo_lock(self) -> None:
        assert set(self.read("run")) < set(self.read("dev"))

    @pytest.mark.parametrize("kind", ["run", "dev"])
    def test_each_line_is_an_exact_version_without_machine_specific_parts(self, kind: str) -> None:
        locked = [Requirement(line) for line in self.read(kind)]

        assert all([spec.operator for spec in one.specifier] == ["=="] and one.url is None for one in locked)

    @pytest.mark.parametrize("kind", ["run", "dev"])
    def test_every_dependency_is_locked_to_an_allowed_version(self, kind: str) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        asked = project["project"]["dependencies"] + project["build-system"]["requires"]
        if kind == "dev":
            asked += [one for one in project["dependency-groups"]["dev"] if isinstance(one, str)]
            asked += [one for extra in project["project"]["optional-dependencies"].values() for one in extra]
        locked = {canonicalize_name(one.name): one for one in map(Requirement, self.read(kind))}

        for requirement in map(Requirement, asked):
            (exact,) = locked[canonicalize_name(requirement.name)].specifier
            assert exact.version in requirement.specifier, requirement

    @pytest.mark.parametrize("kind", ["run", "dev"])
    def test_the_header_tells_how_to_renew_the_lock(self, kind: str) -> None:
        head = (ROOT / "requirements" / f"{kind}.lock").read_text(encoding="utf-8")

        assert head.startswith(dev.LOCK_HEADER.format(command="demo" if kind == "run" else "test"))


class TestRelease:
    @pytest.mark.parametrize(
        ("mark", "left_out"),
        [
            (pytest.mark.release, True),
            (pytest.mark.release(engine="spark"), True),
            (pytest.mark.release(engine="thread"), False),
            (pytest.mark.release(engine="spark", kind=("sqlite", "mariadb")), True),
            (pytest.mark.release(engine="spark", kind=("sqlite", "postgresql")), False),
            (pytest.mark.release(unknown="spark"), False),
            (pytest.mark.release(unknown=None), False),
            (pytest.mark.release(arguments=("--all", "")), True),
            (pytest.mark.release(arguments="--all"), False),
            (pytest.mark.release("test_other", engine="spark"), True),
            (pytest.mark.release("test_any", engine="spark"), False),
        ],
    )
    def test_the_release_mark_leaves_out_the_parameters_it_names(
        self, mark: pytest.MarkDecorator, pytestconfig: pytest.Config, *, left_out: bool
    ) -> None:
        conftest: Any = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
        item = SimpleNamespace(
            nodeid="test_file.py::test_any[spark-mariadb]",
            callspec=SimpleNamespace(params={"engine": "spark", "kind": "mariadb", "arguments": ("--all", "")}),
        )

        assert conftest._concerns(mark.mark, item) is left_out

    @pytest.mark.parametrize(
        ("mark", "left_out"),
        [
            (pytest.mark.few, {"sqlite-2", "sqlite-3", "mariadb-1", "mariadb-2"}),
            (pytest.mark.few(kind=("postgresql", "mariadb")), {"mariadb-2"}),
            (pytest.mark.few(kind=("sqlite", "mariadb")), {"sqlite-2", "mariadb-2"}),
            (pytest.mark.few("test_other", kind="mariadb"), {"mariadb-2"}),
            (pytest.mark.few("test_any", kind="mariadb"), set()),
        ],
    )
    def test_the_few_mark_keeps_the_first_and_last_value_for_each_named_parameter(
        self, mark: pytest.MarkDecorator, left_out: set[str], pytestconfig: pytest.Config
    ) -> None:
        conftest: Any = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
        items = [
            SimpleNamespace(
                nodeid=f"test_file.py::Test::test_any[{kind}-{number}]",
                callspec=SimpleNamespace(params={"kind": kind, "number": number}),
                iter_markers=lambda name: [mark.mark] if name == "few" else [],
            )
            for kind in ("sqlite", "mariadb")
            for number in (1, 2, 3)
        ]

        assert {item.nodeid.partition("[")[2][:-1] for item in conftest._between(items)} == left_out

    def test_the_few_mark_ignores_a_test_without_parameters(self, pytestconfig: pytest.Config) -> None:
        conftest: Any = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
        item = SimpleNamespace(nodeid="test_file.py::test_any", iter_markers=lambda _: [pytest.mark.few.mark])

        assert conftest._between([item]) == []


@pytest.mark.parametrize(
    ("test", "unit"),
    [
        ("tests/spark/test_source.py::test_a", "spark"),
        ("tests/acceptance/test_http.py::test_a[sqlite-spark]", "spark"),
        ("tests/integration/test_many_rows_of_data_frames.py::test_a[postgresql]", "spark"),
        ("tests/acceptance/test_http.py::test_a[sqlite-thread]", "tests/acceptance/test_http.py"),
        ("tests/unit/engines/spark/test_jobs.py::test_a", "tests/unit/engines/spark/test_jobs.py"),
    ],
)
def test_each_test_file_runs_in_one_process_and_so_do_all_spark_tests(test: str, unit: str) -> None:
    assert object.__new__(OneSparkScheduling)._split_scope(test) == unit
