"""Print the history of a git repository as CloudEvents, one JSON object per line, the oldest commit first.

    python load.py ~/src/flask | opencqrs events import -

Authors appear only as salted hashes. The salt is a random number that is kept in a file, so the same repository
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
from loader.repository import IncompleteLogError, Repository, RepositoryError

DATA = Path(__file__).resolve().parent / ".data"
"""Where the example keeps the data of each repository: its salt and, with demo.py, its databases."""

SALT_LENGTH = 16
"""The minimum length of a salt, in characters."""


class Counts(NamedTuple):
    """How many commits and file changes were written."""

    commits: int
    files: int


def data_folder(repository: Repository) -> Path:
    """Return the folder for the data of a repository: the same for clones with the same name and root."""
    name = re.sub(r"[^\w.-]+", "_", repository.name)
    return DATA / f"{name}-{repository.root[:8]}"


def salt_in(file: Path) -> bytes:
    """Return the salt in a file; create the file with a random salt if it does not exist.

    Raises:
        RepositoryError: If the file contains no salt, or cannot be written or read.
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

    The commits at the boundary of a shallow clone have no file events, because their changes are unknown.
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
    """Yield reasons why the numbers may be wrong or take long."""
    if repository.boundary:
        yield (
            "this clone is shallow: commits before its boundary are missing, and the changes of the "
            "commits at the boundary are unknown; git fetch --unshallow fetches the whole history"
        )
    if repository.partial:
        yield (
            "this clone is partial: to count lines git fetches file contents one by one, which takes long; "
            "git fetch --refetch --no-filter fetches all at once"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the loader and return its exit code: 0 done, 1 incomplete, 2 nothing to read, 130 interrupted."""
    options = _options(arguments)
    repository = Repository(options.repository)
    try:
        salt = salt_in(options.salt_file or data_folder(repository) / "salt")
        for warning in warnings_about(repository):
            _print(f"warning: {warning}")
        with _output(options.output) as out:
            counts = write_events(repository, salt, out)
    except RepositoryError as error:
        _print(f"error: {error}")
        return 1 if isinstance(error, IncompleteLogError) else 2
    except BrokenPipeError:  # the reader has ended, so nothing must be flushed to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    _print(f"{counts.commits:,} commits and {counts.files:,} file changes of {repository.name}")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="load.py", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    here = "any folder of it (default: the current one)"
    parser.add_argument("repository", nargs="?", default=".", type=Path, help=here)
    output = "write to a file instead of standard output"
    parser.add_argument("--output", type=Path, metavar="FILE", help=output)
    salt = "the salt of the hashes, created if missing (default: .data/<repository>/salt beside this program)"
    parser.add_argument("--salt-file", type=Path, metavar="FILE", help=salt)
    return parser.parse_args(arguments)


@contextmanager
def _output(file: Path | None) -> Iterator[BinaryIO]:
    """Open the stream to write to; a file gets its name once it is complete."""
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


def _print(text: str) -> None:
    sys.stderr.write(f"load.py: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
