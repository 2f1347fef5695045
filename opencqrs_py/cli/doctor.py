"""``opencqrs doctor``: what is wrong with this machine or project, and the command that fixes it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

import click

from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import print_json, print_result
from opencqrs_py.errors import ExplainedError, OpenCqrsError
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.naming import counted
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.ports import CountingSource


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    subject: str
    fine: bool
    found: str
    fix: str = ""


@click.command("doctor")
@project_options
@format_option
def doctor_command(options: ProjectOptions, *, as_json: bool) -> int:
    """Check Python, Java, Spark, the databases and the handlers."""
    findings = []
    for finding in _findings(options):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        rows = [{"subject": f.subject, "fine": f.fine, "found": f.found, "fix": f.fix} for f in findings]
        print_json(rows)
    return 0 if all(f.fine for f in findings) else 1


def _findings(options: ProjectOptions) -> Iterator[CheckResult]:
    yield CheckResult("Python", fine=True, found=f"{platform.python_version()} ({sys.executable})")
    yield from _checked("settings", lambda: _settings(options))
    yield from _checked("Java", _java)
    yield from _checked("Spark workers", _spark_workers)
    yield from _checked("event store", lambda: _event_store(options))
    yield from _checked("read models' database", lambda: _database(options))
    yield from _checked("handlers", lambda: _handlers(options))


def _checked(subject: str, look: Callable[[], str]) -> Iterator[CheckResult]:
    try:
        yield CheckResult(subject, fine=True, found=look())
    except OpenCqrsError as error:
        explained = error if isinstance(error, ExplainedError) else ExplainedError("", str(error))
        where = f", {explained.where}" if explained.where else ""
        yield CheckResult(subject, fine=False, found=scrubbed(f"{explained.what}{where}"), fix=explained.fix)
    except Exception as error:  # a check must not end the examination
        yield CheckResult(subject, fine=False, found=one_line(error))


def _java() -> str:
    from opencqrs_py.engines.spark.java import find_java  # noqa: PLC0415 only here

    java = find_java(os.environ)
    skipped = "".join(f"; skipped: {reason}" for reason in java.skipped)
    return f"{java.version} from {java.origin.value} ({java.home}){skipped}"


def _spark_workers() -> str:
    from opencqrs_py.engines.spark.session import python_of_workers  # noqa: PLC0415 loads PySpark

    python = python_of_workers()
    return f"PySpark {version('pyspark')} answers; its workers run Python {python}"


def _settings(options: ProjectOptions) -> str:
    application = options.application()
    files = application.configuration.files
    return f"read from {', '.join(str(f) for f in files)}" if files else "all defaults: no application.yaml was found"


def _event_store(options: ProjectOptions) -> str:
    application = options.application()
    store = application.checked_event_store
    count = store.count() if isinstance(store, CountingSource) else store.head()
    return f"{application.container.event_store_choice().choice}: {counted(count, 'event')}"


def _database(options: ProjectOptions) -> str:
    database = options.application().container.database()
    if database is None:
        return "none: progress is kept in memory"
    with database.writing():
        return f"{database.label}: can be written"


def _handlers(options: ProjectOptions) -> str:
    application = options.application()
    conditions = application.conditions()
    if errors := [decision.error for decision in conditions if decision.error]:
        raise errors[0]
    groups = dict.fromkeys(decision.group for decision in conditions if decision.group)
    count = len(application.blueprint.discover().declared)
    return f"{count} for {', '.join(groups)}" if groups else "none found"


def _print(finding: CheckResult) -> None:
    mark, style = ("ok  ", "green") if finding.fine else ("FAIL", "red")
    print_result(f"{mark} {finding.subject}: {finding.found}", style)
    if finding.fix:
        print_result(f"     fix: {finding.fix}")
