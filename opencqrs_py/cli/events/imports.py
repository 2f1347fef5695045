"""``opencqrs events import``: fills the event store from files."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

import click

from opencqrs_py.adapters.files import (
    blocks_of,
    events_of_file,
    events_of_lines,
    listing,
    warn_of_ignored,
    warn_of_order,
)
from opencqrs_py.cli.events.appends import writable_store
from opencqrs_py.cli.events.display import ProgressReport, rate, summed_up
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import print_json, print_line, print_result, stdout
from opencqrs_py.cli.streams import standard_input
from opencqrs_py.errors import DamagedFileError, EventFormatError, EventStoreError, UnreadableFileError
from opencqrs_py.model.event import Event
from opencqrs_py.processing.ports import EventStore, gives_ids

_STANDARD_INPUT = "-"
_PACKED = (".gz", ".zst", ".parquet")  # which are read as files, by their names
_BAD_EVENT = "fix the {place} and import again; nothing of this file was imported"
_DAMAGED = "fetch the file again and import it; nothing of it was imported"


class _Imported(NamedTuple):
    """The result of one file."""

    file: str
    events: int
    added: int
    seconds: float


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@project_options
@format_option
@click.option("--new-ids", is_flag=True, help="Also import into a store that assigns its own ids.")
def import_command(files: tuple[str, ...], options: ProjectOptions, *, new_ids: bool, as_json: bool) -> None:
    """Import CloudEvents from FILE, or from standard input (-).

    A FILE is NDJSON (also .gz and .zst), Parquet, or a folder of them. Order is kept. If a line is bad, nothing of its
    file is imported. Events whose source and id are known already are left out, so importing twice adds nothing, and
    after an interruption the same command resumes. EventSourcingDB does not do that: it assigns its own ids and
    recognises no event, so an import there needs --new-ids.
    """
    names = _expanded(files)
    done = []
    with writable_store(options.application()) as store:
        if gives_ids(store) and not new_ids:
            raise _new_ids_required()
        for name in names:
            done.append(_import(store, name, ProgressReport("read")))
            if len(names) > 1 and not as_json:
                _say(done[-1])
    _print(done, as_json=as_json)


def _say(file: _Imported) -> None:
    """Print what a file has added; where that cannot be written, the other files are still imported."""
    with suppress(OSError):  # the last line, which is for all of them, fails in the same way
        print_result(f"{file.file}: {summed_up(file.added, file.events, 'imported')}")


def _new_ids_required() -> EventStoreError:
    what = "this event store assigns its own ids, so what is imported twice is stored twice"
    fix = (
        "with --new-ids each event is added under a new id and time; after an interruption, import only the files "
        "that are still missing. Or set event-store.url to a SQL database, which keeps ids and times "
        "and recognises events"
    )
    return EventStoreError("OCQ-337", what, "event-store.url", fix)


def _import(store: EventStore, name: str, progress: ProgressReport | None) -> _Imported:
    began = time.monotonic()
    with _at_hand(name) as stream, closing(_events_of(name, stream)) as events:
        given, added = store.append(events, progress=progress)
    return _Imported(name, given, added, time.monotonic() - began)


def _expanded(files: Sequence[str]) -> list[str]:
    """Return the files, with those of each folder in its place; what cannot be read is refused before any is."""
    names: list[str] = []
    if list(files) == sorted(files):  # as a shell gives the files of a pattern
        warn_of_order(Path(files[0]).parent, map(Path, files))
    for file in files:
        if file == _STANDARD_INPUT:
            names.append(file)
            continue
        if not file:  # as of a variable that is not set; as a path it would be the current folder
            raise click.UsageError("the name of a FILE is empty: name a file, a folder (. is the current one) or -")
        try:
            if Path(file).is_dir():
                found, others = listing(Path(file))
                warn_of_ignored(Path(file), others)
                warn_of_order(Path(file), found)
                names += map(str, found)
                if not (found or others):
                    print_line(f"{file} holds no file of events", "yellow")
                continue
            names.append(file)
            if not Path(file).is_fifo():  # closing a pipe would end the program that writes to it
                Path(file).open("rb").close()
        except (OSError, ValueError) as error:
            raise click.UsageError(f"cannot read {file}: {getattr(error, 'strerror', error)}") from None
    return names


@contextmanager
def _at_hand(name: str) -> Iterator[BinaryIO | None]:
    """Open a stream of lines after its writer has sent everything: no lock is held while waiting for it.

    It is ``None`` for a file.
    """
    if name != _STANDARD_INPUT and not _is_pipe(name):
        yield None
        return
    with ExitStack() as opened:
        stream = standard_input() if name == _STANDARD_INPUT else opened.enter_context(Path(name).open("rb"))
        if _is_file(stream):
            yield stream
            return
        with _explained(_label(name)):
            kept = opened.enter_context(TemporaryFile())
            for block in blocks_of(stream, _label(name)):  # whose own errors are already explained
                kept.write(block)
            kept.seek(0)  # which writes what is left
        yield kept


def _is_pipe(name: str) -> bool:
    return Path(name).is_fifo() and not name.lower().endswith(_PACKED)


def _is_file(stream: BinaryIO) -> bool:
    try:
        return S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # of a stream that a program has put in the place of standard input
        return False


@contextmanager
def _explained(label: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"{label} cannot be kept in a temporary file ({error.strerror or error})"
        where = "the folder of temporary files (TMPDIR)"
        fix = "make room there, or name another folder, and import again; nothing of it was imported"
        raise EventStoreError("OCQ-345", what, where, fix) from error


def _label(name: str) -> str:
    return "standard input" if name == _STANDARD_INPUT else name


def _events_of(name: str, stream: BinaryIO | None = None) -> Generator[Event, None, None]:
    events = events_of_file(Path(name)) if stream is None else events_of_lines(stream, _label(name))
    try:
        with closing(events):
            yield from events
    except UnreadableFileError as error:
        fix = f"{error.fix}, and import again; nothing of this file was imported"
        raise type(error)(error.code, error.what, error.where, fix) from error
    except EventFormatError as error:
        place = "file" if ", row " in error.where or error.what.startswith("the file is ") else "line"
        fix = _DAMAGED if isinstance(error, DamagedFileError) else _BAD_EVENT.format(place=place)
        raise type(error)(error.code, error.what, error.where, fix) from error


def _print(done: Sequence[_Imported], *, as_json: bool) -> None:
    events, added, seconds = (sum(column) for column in list(zip(*done, strict=True))[1:]) if done else (0, 0, 0.0)
    if as_json:
        files = [{**each._asdict(), "seconds": round(each.seconds, 3)} for each in done]
        name = done[0].file if len(done) == 1 else None
        print_json({"file": name, "events": events, "added": added, "seconds": round(seconds, 3), "files": files})
    else:
        stdout().print(summed_up(added, events, "imported") + rate(events, seconds), markup=False)
