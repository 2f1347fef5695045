"""``opencqrs events skipped``: lists the events that groups have given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, stderr, stdout
from opencqrs_py.model.progress import Skip

__all__ = ["skipped_command"]


@click.command("skipped")
@project_options
@format_option
@click.option("--group", "groups", multiple=True, metavar="G", help="Of this group only; may be repeated.")
def skipped_command(options: ProjectOptions, groups: tuple[str, ...], *, as_json: bool) -> None:
    """List the events whose attempts were exhausted and that were skipped, with the reason.

    Nothing tries them again: their effects are missing from the read model.
    """
    skips = options.application().skipped()
    chosen = [skip for skip in skips if not groups or skip.group in groups]
    if as_json:
        print_json([_row(skip) for skip in chosen])
    elif chosen:
        _print(chosen)
    else:
        stderr().print("no events were skipped")


def _row(skip: Skip) -> dict[str, Any]:
    return {**asdict(skip), "partition": str(skip.partition)}


def _print(skips: Sequence[Skip]) -> None:
    for skip in skips:
        head = f"[{skip.group} {skip.partition}] event {skip.event_id} at position {skip.position}"
        where = f"({skip.event_type}, {skip.subject})"
        attempts = f"{skip.attempts} attempt{'s' if skip.attempts > 1 else ''}"
        line = f"{head} {where} skipped after {attempts} at {skip.skipped_at}: {skip.reason}"
        stdout().print(clean(line), markup=False, soft_wrap=True)
