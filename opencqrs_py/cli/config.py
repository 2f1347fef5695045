"""``opencqrs config`` and ``opencqrs conditions``: what is set, where it comes from, what was decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from opencqrs_py.assembly.discovery.project import read_project
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, print_line, print_result
from opencqrs_py.cli.signals import INTERRUPTED, signals
from opencqrs_py.config import OriginKind
from opencqrs_py.model.naming import canonical, listed, nearest

if TYPE_CHECKING:
    from opencqrs_py.assembly.conditions import Decision
    from opencqrs_py.config import Configuration, EffectiveValue


_Section: TypeAlias = "tuple[str, str]"
"""What settings belong to: ``group`` or ``job`` and its name, or two empty strings for the application."""
_APPLICATION = ("", "")
_ABOVE = {"group": "event-handling.groups", "job": "jobs"}
_Shown: TypeAlias = "tuple[EffectiveValue, Sequence[EffectiveValue]]"


@click.command("config")
@project_options
@format_option
@click.option("--group", "groups", multiple=True, metavar="G", help="Show this group only; may be repeated.")
@click.option("--job", "jobs", multiple=True, metavar="J", help="Show this job only; may be repeated.")
@click.option("--changed", is_flag=True, help="Leave built-in defaults out.")
@click.option("--origin", "with_overridden", is_flag=True, help="Also show overridden values.")
def config_command(
    options: ProjectOptions,
    groups: tuple[str, ...],
    jobs: tuple[str, ...],
    *,
    changed: bool,
    with_overridden: bool,
    as_json: bool,
) -> None:
    """Show the effective settings, each with its origin."""
    found = read_project(Path(options.project), profiles=options.profiles, overrides=options.overrides)
    configuration = found.configuration
    for warning in configuration.warnings:
        print_line(str(warning), "yellow")
    if configuration.ignored:
        names = listed(configuration.ignored)
        print_line(f"ignored environment variables, which Kubernetes sets for a Service: {names}")
    sections = _sections(configuration, groups, jobs)
    shown = {
        section: [
            (value, configuration.losers(value.path) if with_overridden else ())
            for value in values
            if not (changed and _is_untouched(value, configuration))
        ]
        for section, values in sections.items()
    }
    if as_json:
        rows = {
            section: [_row(value, lost if with_overridden else None) for value, lost in values]
            for section, values in shown.items()
        }
        print_json(
            {
                "files": [str(file) for file in configuration.files],
                "profiles": configuration.profiles,
                "warnings": [asdict(warning) for warning in configuration.warnings],
                "application": rows.get(_APPLICATION, []),
                "groups": {name: row for (noun, name), row in rows.items() if noun == "group"},
                "jobs": {name: row for (noun, name), row in rows.items() if noun == "job"},
            }
        )
    else:
        _print(configuration, shown)


def _sections(
    configuration: Configuration, groups: Sequence[str], jobs: Sequence[str]
) -> dict[_Section, list[EffectiveValue]]:
    """Return the values of each group and job that is wanted; without any, of all, after the general ones."""
    wanted_groups = _known("group", groups, configuration.group_names)
    wanted_jobs = _known("job", jobs, configuration.job_names)
    general = {} if groups or jobs else {_APPLICATION: configuration.general_values()}
    if general:
        wanted_groups, wanted_jobs = configuration.group_names, configuration.job_names
    of_groups = {("group", name): configuration.values(name) for name in wanted_groups}
    return {**general, **of_groups, **{("job", name): configuration.values(job=name) for name in wanted_jobs}}


def _known(noun: str, wanted: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Return the known spelling of each name that is wanted; an unknown name is a usage error."""
    known = {canonical(name): name for name in names}
    if unknown := [name for name in wanted if canonical(name) not in known]:
        close = nearest(unknown[0], names)
        fix = f"did you mean {close}?" if close else f"known: {listed(names) or 'none'}"
        raise click.UsageError(f"there is no {noun} '{unknown[0]}'; {fix}")
    return [known[canonical(name)] for name in wanted]


def _is_untouched(value: EffectiveValue, configuration: Configuration) -> bool:
    """Return whether a value is the built-in default, and not one that ``null`` brought back."""
    is_reset = value.origin.kind is OriginKind.RESET
    return value.is_default and not (is_reset and configuration.losers(value.path))


@click.command("conditions")
@project_options
@format_option
def conditions_command(options: ProjectOptions, *, as_json: bool) -> None:
    """Show what was chosen where settings leave a choice, and why."""
    from opencqrs_py.assembly.conditions import raise_together  # noqa: PLC0415 `opencqrs config` needs none of it

    decisions = options.application().conditions()
    if as_json:
        print_json([_decision_row(decision) for decision in decisions])
    else:
        for decision in decisions:
            style = "red" if decision.error else "default"
            print_result(str(decision), style)
            if decision.candidates:
                print_result(f"  candidates: {', '.join(decision.candidates)}", "dim")
    raise_together(decision.error for decision in decisions if decision.error)


def _decision_row(decision: Decision) -> dict[str, Any]:
    error = decision.error
    return {
        "group": decision.group,
        "job": decision.job,
        "subject": decision.subject,
        "choice": decision.choice,
        "reason": decision.reason,
        "candidates": decision.candidates,
        "error": error and {"code": error.code, "what": error.what, "where": error.where, "fix": error.fix},
    }


@click.command("schema")
@format_option
def schema_command(*, as_json: bool) -> None:  # noqa: ARG001 a schema is JSON in both formats
    """Print the JSON Schema of application.yaml, for editors."""
    from opencqrs_py.config.schema import json_schema  # noqa: PLC0415 only here

    signals.settle(INTERRUPTED)
    print_json(json_schema())


def _row(value: EffectiveValue, lost: Sequence[EffectiveValue] | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "path": value.path,
        "value": value.typed,
        "origin": str(value.origin),
        "default": value.is_default,
    }
    if lost is not None:
        row["lost"] = [{"path": each.path, "value": each.value, "origin": str(each.origin)} for each in lost]
    return row


def _print(configuration: Configuration, sections: Mapping[_Section, Sequence[_Shown]]) -> None:
    files = ", ".join(str(file) for file in configuration.files) or "none"
    print_result(f"files read: {files}", "dim")
    for section, values in sections.items():
        print_result(f"\n{' '.join(section).strip() or 'application'}", "bold")
        _print_values(values, [_in_section(section, value.path) for value, _ in values])


def _in_section(section: _Section, path: str) -> str:
    """Return ``path`` without what names the group or job it belongs to, in one of two ways."""
    noun, name = section
    if not noun:
        return path
    return path.removeprefix(f"{_ABOVE[noun]}[{name}].").removeprefix(f"{_ABOVE[noun]}.{name}.")


def _print_values(values: Sequence[_Shown], names: Sequence[str]) -> None:
    """Print the values in columns, below each of them the overridden ones."""
    width = max(map(len, names), default=0)
    long = min(40, max((len(clean(value.value)) for value, _ in values), default=0))
    for (value, lost), name in zip(values, names, strict=True):
        line = f"  {name:<{width}}  {clean(value.value):<{long}}  {clean(str(value.origin))}"
        print_result(line, "dim" if value.is_default else "default")
        for each in lost:
            line = f"  {'not':>{width}}  {clean(each.value):<{long}}  {clean(str(each.origin))}"
            print_result(line, "dim")
