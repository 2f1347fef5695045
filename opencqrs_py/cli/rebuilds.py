"""``opencqrs groups rebuild``: new tables are filled beside those in use, and then both are swapped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from opencqrs_py.cli.options import ProjectOptions, Seconds, format_option, project_options
from opencqrs_py.cli.output import continuation, print_json, print_line
from opencqrs_py.cli.records import print_only_warnings

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.shadows.comparison import Comparison
    from opencqrs_py.assembly.application import Application
    from opencqrs_py.assembly.rebuilds.rebuilds import RebuildPlan, RebuildResult
    from opencqrs_py.assembly.rebuilds.shadow_build import RebuildProgress
    from opencqrs_py.model.partition import Partition
    from opencqrs_py.model.rebuild import ShadowTable


_EVERY_SECONDS = 5.0  # between two progress lines
_WAYS = ("--dry-run", "--compare", "--undo", "--drop-old", "--abort")
_SHORT = frozenset({"--undo", "--drop-old", "--abort"})


@click.command("rebuild")
@click.argument("name", metavar="NAME")
@click.option("--dry-run", is_flag=True, help="Print what would happen; no event is handled.")
@click.option("--compare", is_flag=True, help="Build it, show which rows would differ, and do not swap.")
@click.option("--undo", is_flag=True, help="Put the old tables back, with their progress.")
@click.option("--drop-old", is_flag=True, help="Drop the old tables, which the swap has kept.")
@click.option("--abort", is_flag=True, help="Drop the new tables of an unfinished rebuild.")
@click.option("--accept-unhandled", is_flag=True, help="Swap even if it lacks events that handlers could not handle.")
@click.option("--timeout", type=Seconds(), default="1m", show_default=True, help="Longest wait for locks on tables.")
@project_options
@format_option
def rebuild_command(
    options: ProjectOptions,
    name: str,
    *,
    accept_unhandled: bool,
    timeout: float,
    as_json: bool,
    **ways: bool,
) -> None:
    """Build a group's tables again from the log while it runs.

    At the end old and new ones are swapped. This process handles the events, on the group's engine; others keep the
    live tables current meanwhile. If it was interrupted, run it again to continue. The old tables are kept until
    --drop-old or --undo.
    """
    chosen = [way for way in _WAYS if ways[way.lstrip("-").replace("-", "_")]]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} exclude each other")
    if accept_unhandled and chosen:
        raise click.UsageError(f"--accept-unhandled is for the swap, which {chosen[0]} does not make")
    if chosen and chosen[0] in _SHORT:
        print_only_warnings()  # what is logged of it is printed as the result
    with options.opened() as application:
        result, lines = _done(application, name, chosen[0] if chosen else "", timeout, accepts=accept_unhandled)
    if as_json:
        print_json(result)
    else:
        for line in lines:
            print_line(line, "default")


def _done(
    application: Application, name: str, way: str, timeout: float, *, accepts: bool
) -> tuple[dict[str, Any], list[str]]:
    """Do it; return its result as JSON, and as text."""
    rebuilds, is_stopped = application.rebuilds, application.control.is_stopped
    match way:
        case "--dry-run":
            plan = rebuilds.plan(name)
            return _plan_as_json(plan), _plan_lines(plan)
        case "--compare":
            found = rebuilds.compare(name, timeout=timeout, watcher=_watching())
            return _comparison_as_json(name, found), _comparison_lines(name, found)
        case "--undo":
            undone = rebuilds.undo(name, timeout=timeout)
            lines = _result_lines(undone, "has its old tables back", stopped=is_stopped(undone.group))
            return _result_as_json(undone, "undone"), lines
        case "--drop-old":
            dropped = rebuilds.drop_old(name)
            text = "the old tables are dropped" if dropped else "no old tables are kept"
            return {"group": name, "done": dropped, "state": "dropped"}, [f"{name}: {text}"]
        case "--abort":
            ended = rebuilds.abort(name)
            text = "the unfinished rebuild is dropped" if ended else "it is not being rebuilt"
            return {"group": name, "done": ended, "state": "aborted"}, [f"{name}: {text}"]
        case _:
            result = rebuilds.rebuild(name, timeout=timeout, accept_unhandled=accepts, watcher=_watching())
            lines = _result_lines(result, "was rebuilt", stopped=is_stopped(result.group))
            return _result_as_json(result, "swapped"), lines


def _watching() -> Callable[[RebuildProgress], None]:
    """Return what prints the progress of a rebuild."""
    last = time.monotonic()

    def watch(progress: RebuildProgress) -> None:
        nonlocal last
        if time.monotonic() - last < _EVERY_SECONDS:
            return
        last = time.monotonic()
        done = 100 * progress.position / max(1, progress.head)
        rate = "" if progress.events_per_second is None else f", {progress.events_per_second:,.0f}/s"
        print_line(f"{progress.group}: {progress.position:,} of {progress.head:,}, {done:.1f} %{rate}")

    return watch


def _plan_as_json(plan: RebuildPlan) -> dict[str, Any]:
    return {
        "group": plan.group,
        "engine": plan.engine,
        "events": plan.events,
        "tables": _tables_as_json(plan.tables),
        "handlers": plan.handlers,
        "left_out": plan.left_out,
        "refusals": plan.refusals,
        "max_events_per_second": plan.max_events_per_second,
        "max_tasks": plan.max_tasks,
        "done": False,
    }


def _tables_as_json(tables: Sequence[ShadowTable]) -> list[dict[str, str]]:
    return [{"name": one.name, "kind": one.kind, "fate": one.fate.value, "how": one.how} for one in tables]


def _plan_lines(plan: RebuildPlan) -> list[str]:
    from opencqrs_py.model.naming import counted  # noqa: PLC0415 only for this command
    from opencqrs_py.processing.notices import in_words  # noqa: PLC0415 as above

    lines = [
        f"{plan.group} would be rebuilt on the engine {plan.engine}; the log to handle: {counted(plan.events, 'event')}"
    ]
    if plan.max_events_per_second is not None:
        least = in_words(plan.events / plan.max_events_per_second)
        lines.append(f"  at most {counted(plan.max_events_per_second, 'event')} a second, so at least {least}")
    if plan.max_tasks is not None:
        what = "task" if plan.engine == "spark" else "partition"
        lines.append(f"  at most {counted(plan.max_tasks, what)} at once")
    lines += [f"  {one.kind} {one.name} ({one.how}): {_fate_of(one)}" for one in plan.tables]
    lines += [f"  left out, as it does not ask for the transaction: {place}" for place in plan.left_out]
    lines += [f"  refused: {reason}" for reason in plan.refusals]
    return lines


def _fate_of(one: ShadowTable) -> str:
    from opencqrs_py.model.rebuild import Fate  # noqa: PLC0415 only for this command

    is_used = one.kind in ("type", "collation", "function")
    left = "swapped with the tables that use it" if is_used else "swapped if a handler writes to it"
    return {Fate.LEFT: left, Fate.SHARED: "read only"}.get(one.fate, one.fate.value)


def _result_as_json(result: RebuildResult, state: str) -> dict[str, Any]:
    return {
        "group": result.group,
        "state": state,
        "position": result.position,
        "tables": _tables_as_json(result.tables),
        "before": [str(partition) for partition in result.before],
        "partitions": [str(partition) for partition in result.after],
        "seconds": round(result.seconds, 4),
        "running": result.running,
        "done": True,
    }


def _result_lines(result: RebuildResult, what: str, *, stopped: bool = False) -> list[str]:
    from opencqrs_py.model.naming import counted, listed  # noqa: PLC0415 only for this command
    from opencqrs_py.model.rebuild import Fate  # noqa: PLC0415 as above

    swapped = [one.name for one in result.tables if one.is_moved]
    left = [one.name for one in result.tables if one.fate is Fate.LEFT and one.is_table]
    lines = [f"{result.group} {what}, up to position {result.position:,}: {', '.join(swapped)}"]
    if left:
        lines += [f"{result.group}: {line}" for line in _left_lines(left, rebuilt=what == "was rebuilt")]
    if what == "was rebuilt":
        lines.append(f"{result.group}: the old tables are kept until --drop-old or --undo")
    if len(result.before) != len(result.after):
        again = f"{result.group} has {counted(len(result.after), 'partition')} again"
        lines.append(f"{again} ({len(result.before)} before)")
    elif result.before != result.after:
        lines.append(f"{result.group} has its former partitions again: {listed(map(str, sorted(result.after)))}")
    return lines + continuation(result.group, stopped=stopped, running=result.running)


def _left_lines(tables: Sequence[str], *, rebuilt: bool) -> list[str]:
    """Return what is said of tables that a swap leaves as they were."""
    if len(tables) == 1:
        lines = [f"no handler has written to {tables[0]}, which is left as it was"]
        empty = "if handlers read it, they found it empty: name it in rebuild.shared-tables"
    else:
        lines = [f"no handler has written to {', '.join(tables)}, which are left as they were"]
        empty = "if handlers read one of them, they found it empty: name it in rebuild.shared-tables"
    return [*lines, empty] if rebuilt else lines


def _comparison_as_json(name: str, found: Comparison) -> dict[str, Any]:
    return {
        "group": name,
        "exact": found.exact,
        "live": min(found.live.values(), default=0),
        "rebuilt": min(found.shadow.values(), default=0),
        "tables": [
            {
                "name": one.table,
                "live_rows": one.live,
                "rebuilt_rows": one.shadow,
                "live_only": one.missing,
                "rebuilt_only": one.added,
                "examples": one.examples,
                "live_only_columns": one.live_columns,
                "rebuilt_only_columns": one.shadow_columns,
            }
            for one in found.differences
        ],
        "unwritten": found.unwritten,
        "not_made": found.not_made,
        "done": False,
    }


def _positions(known: Mapping[Partition, int]) -> str:
    least, most = min(known.values(), default=0), max(known.values(), default=0)
    return f"position {least:,}" if least == most else f"positions {least:,} to {most:,}"


def _comparison_lines(name: str, found: Comparison) -> list[str]:
    live, rebuilt = _positions(found.live), _positions(found.shadow)
    lines = [f"{name}: live and rebuilt tables compared at {live}; nothing is swapped"]
    if not found.exact:
        what = f"live tables are at {live}, rebuilt ones at {rebuilt}, so rows of the events between differ"
        lines = [f"{name}: {what}; nothing is swapped"]
    for one in found.differences:
        rows = f"{one.table}: {one.live:,} rows live, {one.shadow:,} rebuilt"
        only = f"{one.missing:,} live only, {one.added:,} rebuilt only" if one.differs else "no row differs"
        lines.append(f"  {rows}; {only}")
        for where, columns in (("live", one.live_columns), ("rebuilt", one.shadow_columns)):
            lines += [f"    {where} only, and not compared: column {', '.join(columns)}"] if columns else []
        lines += [f"    {example}" for example in one.examples]
    for table in found.unwritten:
        lines.append(f"  {table}: nothing was written to it, so it stays as it is, with its rows")
    if found.not_made:
        names = ", ".join(found.not_made)
        lines.append(f"  not made by @on_start of the group, so a swap leaves them as they are: {names}")
    return lines
