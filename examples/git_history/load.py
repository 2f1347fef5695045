"""Print the history of a git repository as CloudEvents, one JSON object a line, the oldest commit first.

    python load.py ~/src/flask | opencqrs events import -

Authors appear as salted hashes only. The salt is a random number, kept in a file, so that the same repository
gives the same events each time; see --salt-file.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson
from loader.cloud_events import author_hash, cloud_events
from loader.git_log import commits_in, tokens_in
from loader.repository import BrokenOffError, Repository, RepositoryError

DATA = Path(__file__).resolve().parent / ".data"
"""Where the example keeps what belongs to a repository: its salt and, with demo.py, its databases."""

SALT_LENGTH = 16
"""The least number of characters of a salt."""


class Counts(NamedTuple):
    """How much was printed."""

    commits: int
    files: int


def data_folder(repository: Repository) -> Path:
    """Return the folder for what belongs to a repository: the same for clones of the same name and root."""
    name = re.sub(r"[^\w.-]+", "_", repository.name)
    return DATA / f"{name}-{repository.root[:8]}"


def salt_in(file: Path) -> bytes:
    """Return the salt in a file, which is made with a new random one if there is none.

    Raises:
        RepositoryError: If the file holds no salt, or cannot be written or read.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.touch(mode=0o600)
            file.write_text(secrets.token_hex(32) + "\n", "ascii")
        salt = file.read_bytes().strip()
    except OSError as error:
        fix = "name another with --salt-file"
        what = f"the salt cannot be kept in {file} ({error.strerror}): {fix}"
        raise RepositoryError(what) from error
    if len(salt) < SALT_LENGTH:
        what = f"{file} holds no salt of {SALT_LENGTH} or more characters: delete it, and a new one is made"
        raise RepositoryError(what)
    return salt


def write_events(repository: Repository, salt: bytes, out: BinaryIO) -> Counts:
    """Write the events of a repository as NDJSON.

    The commits at which a shallow clone breaks off come without file events: what they changed is not known.
    """
    source, hidden, boundary = f"urn:git:{repository.root}", author_hash(salt), repository.boundary
    commits = files = 0
    for commit in commits_in(tokens_in(repository.log())):
        known = replace(commit, changes=()) if commit.sha in boundary else commit
        out.writelines(map(_line, cloud_events(known, source, hidden)))
        commits, files = commits + 1, files + len(known.changes)
    out.flush()
    return Counts(commits, files)


def warnings_about(repository: Repository) -> Iterator[str]:
    """Yield what a person should know before they trust the numbers."""
    if repository.boundary:
        yield (
            "this clone is shallow: commits before its boundary are missing, and what the commits at the "
            "boundary changed is not known; git fetch --unshallow brings the whole history"
        )
    if repository.partial:
        yield (
            "this clone is partial: to count lines git fetches file contents bit by bit, which takes long; "
            "git fetch --refetch --no-filter brings all at once"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the loader and return its exit code: 0 done, 1 broken off, 2 nothing to read, 130 interrupted."""
    options = _options(arguments)
    repository = Repository(options.repository)
    try:
        salt = salt_in(options.salt_file or data_folder(repository) / "salt")
        for warning in warnings_about(repository):
            _say(f"warning: {warning}")
        with _output(options.output) as out:
            counts = write_events(repository, salt, out)
    except RepositoryError as error:
        _say(f"error: {error}")
        return 1 if isinstance(error, BrokenOffError) else 2
    except BrokenPipeError:  # the reader went away; nothing may be flushed to it any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    _say(f"{counts.commits:,} commits and {counts.files:,} file changes of {repository.name}")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="load.py", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    here = "any folder of it (default: where you stand)"
    parser.add_argument("repository", nargs="?", default=".", type=Path, help=here)
    output = "write to a file instead of standard output"
    parser.add_argument("--output", type=Path, metavar="FILE", help=output)
    salt = "the salt of the hashes, made if missing (default: .data/<repository>/salt beside this program)"
    parser.add_argument("--salt-file", type=Path, metavar="FILE", help=salt)
    return parser.parse_args(arguments)


@contextmanager
def _output(file: Path | None) -> Iterator[BinaryIO]:
    """Give the stream to write to; a file appears under its name when it is complete."""
    if file is None:
        yield sys.stdout.buffer
        return
    unfinished = file.with_name(f"{file.name}.part")
    try:
        with unfinished.open("wb") as out:
            try:
                yield out
            except BaseException:
                unfinished.unlink()
                raise
        unfinished.replace(file)
    except OSError as error:
        fix = "name another file with --output"
        what = f"cannot write {file} ({error.strerror}): {fix}"
        raise RepositoryError(what) from error


def _line(event: dict[str, Any]) -> bytes:
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)


def _say(text: str) -> None:
    sys.stderr.write(f"load.py: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
