"""``opencqrs events export``: writes events to a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click

from opencqrs_py.adapters.files import (
    Compression,
    FileEventSource,
    FileFormat,
    FileKind,
    format_of,
    writer_to,
    written_whole,
)
from opencqrs_py.cli.events.display import ProgressReport, rate, summed_up
from opencqrs_py.cli.events.selection import after_option, print_reasons, selection_options, slices_between, source_of
from opencqrs_py.cli.options import Integer, ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import print_json, print_line, stderr, stdout
from opencqrs_py.cli.streams import results
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.naming import listed
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.ports import EventSource, report_unfinished

_STANDARD_OUTPUT = "-"
_COMPRESSED = {".gz": Compression.GZIP, ".zst": Compression.ZSTD}


class _Exported(NamedTuple):
    """The result, as JSON has it."""

    file: str
    events: int
    after: int
    upto: int
    seconds: float


@click.command("export")
@click.argument("file")
@project_options
@format_option
@click.option(
    "--format-of-file",
    type=click.Choice([kind.value for kind in FileKind]),
    help="Needed if the name of FILE does not show it.",
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@after_option("Position after which the export begins.")
@click.option("--to", type=Integer(min=0), help="Last position.  [default: the newest event]")
@selection_options
def export_command(
    file: str,
    options: ProjectOptions,
    format_of_file: str | None,
    after: int,
    to: int | None,
    selection: Selection,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write events to FILE, or to standard output (-).

    The name of the file determines the format: NDJSON (also .gz and .zst) or Parquet; standard output gets NDJSON. FILE
    appears only when it is complete.
    """
    form = _format(file, format_of_file)
    if file != _STANDARD_OUTPUT:
        _check_replaceable(file, overwrite=overwrite)
    began = time.monotonic()
    source = source_of(options.application(), must_exist=True)
    if file != _STANDARD_OUTPUT:
        _check_not_in_log(Path(file), source)
    head = source.head()
    upto = head if to is None else min(to, head)
    progress = ProgressReport("read", max(0, upto - after))
    events = 0
    with _opened(file) as target, writer_to(target, form) as writer:
        for part in slices_between(source, after, upto, selection):
            writer.write(part.events)
            events += len(part.events)
            progress(part.upto - after)
    seconds = time.monotonic() - began
    if upto == head:
        report_unfinished(source)
    if writer.left_out:
        names = listed(sorted(writer.left_out))
        what = f"metadata named {names} were left out: NDJSON has the events' own attributes under these names"
        print_line(f"{what}; Parquet holds both", "yellow")
    if not events:
        print_reasons(selection, after)
    if after > head:  # a position of another store, or of one before it was restored: the next events would be left out
        what = f"--after {after:,} is beyond the newest event, which is at position {head:,}"
        print_line(f"nothing found: {what}; is this the right event store?", "yellow")
    _print(_Exported(file, events, after, max(after, upto), round(seconds, 3)), as_json=as_json)


def _check_replaceable(file: str, *, overwrite: bool) -> None:
    """Refuse an existing FILE, unless it is a file that may be replaced."""
    if not Path(file).exists():
        return
    if not Path(file).is_file():  # replacing a pipe or a device would take it from its other users
        raise click.UsageError(f"{file} is not a regular file; - writes to standard output, which can be redirected")
    if not overwrite:
        raise click.UsageError(f"{file} exists already; --overwrite replaces it")


def _check_not_in_log(file: Path, source: EventSource) -> None:
    """Refuse a file that would become part of the log that it is written from, or replace it."""
    if not isinstance(source, FileEventSource):
        return
    log = source.path.resolve()
    for place in (file.parent.resolve() / file.name, file.resolve()):  # of a link, and of what it leads to
        if place.name.startswith((".", "_")) or format_of(place.name) is None:
            continue  # names that a log ignores
        if log in (place.parent, place):
            does = "replace it" if log == place else "belong to it: its events would exist twice"
            raise click.UsageError(
                f"the event store is {source.path}, and {file} would {does}; write to another folder"
            )


def _format(file: str, kind: str | None) -> FileFormat:
    known = format_of(file)
    if file == _STANDARD_OUTPUT:
        if kind == FileKind.ROWS.value:
            raise click.UsageError("Parquet cannot be written to standard output; name a file")
        return FileFormat(FileKind.LINES)
    if kind is not None:
        compression = Compression.NONE if kind == FileKind.ROWS.value else _COMPRESSED.get(Path(file).suffix.lower())
        return FileFormat(FileKind(kind), compression or Compression.NONE)
    if known is None:
        raise click.UsageError(
            f"the name {file} does not show the format: end it with .ndjson, .ndjson.gz, .ndjson.zst or .parquet, "
            "or use --format-of-file"
        )
    return known


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    try:
        if file == _STANDARD_OUTPUT:
            yield results().buffer
            results().buffer.flush()
        else:
            with written_whole(Path(file).resolve()) as target:  # a link stays one: its target is replaced
                yield target
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"the file cannot be written ({error.strerror or error})"
        raise EventStoreError("OCQ-345", what, file, _fix(error, file)) from error


def _fix(error: OSError, file: str) -> str:
    if isinstance(error, FileNotFoundError) and file != _STANDARD_OUTPUT:
        with suppress(FileNotFoundError):  # of a current folder that was deleted, which has no path
            folder = Path(file).resolve().parent
            if not folder.exists():
                return f"the folder {folder} does not exist; create it, or write to another one"
    return "check the folder, its permissions and the free space; nothing of the file was kept"


def _print(result: _Exported, *, as_json: bool) -> None:
    to_file = result.file != _STANDARD_OUTPUT
    if as_json and to_file:
        print_json(result._asdict())
    elif not as_json:
        line = summed_up(result.events, result.events, "exported") + rate(result.events, result.seconds)
        (stdout() if to_file else stderr()).print(line, markup=False)
