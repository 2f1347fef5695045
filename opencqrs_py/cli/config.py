"""``opencqrs config`` and ``opencqrs conditions``: what is set, where it comes from, what was decided."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opencqrs_py.assembly.sources import find_modules, literal_groups
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, stderr, stdout
from opencqrs_py.config import load

if TYPE_CHECKING:
    from opencqrs_py.config import Configuration

__all__ = ["conditions_command", "config_command", "schema_command"]

_GROUPS = "event-handling.groups."


@click.command("config")
@project_options
@format_option
@click.option("--group", "groups", multiple=True, metavar="G", help="Show this group only; may be repeated.")
@click.option("--changed", is_flag=True, help="Leave built-in defaults out.")
def config_command(options: ProjectOptions, groups: tuple[str, ...], *, changed: bool, as_json: bool) -> None:
    """Show the effective settings, each with its origin."""
    names = literal_groups(find_modules(Path(options.project)))
    configuration = load(options.project, profiles=options.profiles, overrides=options.overrides, groups=names)
    for warning in configuration.warnings:
        stderr().print(str(warning), style="yellow", markup=False, soft_wrap=True)
    wanted = groups or configuration.group_names
    unknown = [name for name in groups if name not in configuration.group_names]
    if unknown:
        known = ", ".join(configuration.group_names) or "none"
        raise click.UsageError(f"there is no group '{unknown[0]}'; known: {known}")
    sections = {} if groups else {"": [v for v in configuration.values() if not v.path.startswith(_GROUPS)]}
    sections |= {name: configuration.values(name) for name in wanted}
    shown = {name: [v for v in values if not (changed and v.is_default)] for name, values in sections.items()}
    if as_json:
        print_json({name or "application": [_row(v) for v in values] for name, values in shown.items()})
    else:
        _print(configuration, shown)


@click.command("conditions")
@project_options
@format_option
def conditions_command(options: ProjectOptions, *, as_json: bool) -> None:
    """Show what was chosen where settings leave a choice, and why."""
    decisions = options.application().conditions()
    if as_json:
        rows = [{"group": d.group, "subject": d.subject, "choice": d.choice, "reason": d.reason} for d in decisions]
        print_json(rows)
        return
    for decision in decisions:
        stdout().print(clean(str(decision)), markup=False, soft_wrap=True)


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of application.yaml, for editors."""
    from opencqrs_py.config.schema import json_schema  # noqa: PLC0415 only here

    print_json(json_schema())


def _row(value: Any) -> dict[str, Any]:
    return {
        "path": value.path,
        "value": value.value,
        "origin": str(value.origin),
        "default": value.is_default,
    }


def _print(configuration: Configuration, sections: dict[str, list[Any]]) -> None:
    files = ", ".join(str(file) for file in configuration.files) or "none"
    stdout().print(f"files read: {files}", style="dim", markup=False, soft_wrap=True)
    for name, values in sections.items():
        prefix = f"{_GROUPS}{name}." if name else ""
        rows = [
            (v.path.removeprefix(prefix), clean(_text(v.value)), clean(str(v.origin)), v.is_default) for v in values
        ]
        stdout().print(f"\ngroup {clean(name)}" if name else "\napplication", style="bold", markup=False)
        width = max((len(path) for path, *_ in rows), default=0)
        long = min(40, max((len(value) for _, value, *_ in rows), default=0))
        for path, value, origin, default in rows:
            line = f"  {path:<{width}}  {value:<{long}}  {origin}"
            stdout().print(line, markup=False, style="dim" if default else "default", soft_wrap=True)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else str(value)
