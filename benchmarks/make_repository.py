"""Make a git repository with a long invented history, the same for the same seed.

    python benchmarks/make_repository.py 100000 1 /tmp/big.git

A few people change the files of a growing tree, mostly the same few files. Occasionally a file is renamed, deleted or
made binary. Side branches are merged, and some file names are as odd as git allows. ``git fast-import`` writes the
history into a bare repository.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from math import sin, tau
from pathlib import Path
from random import Random

START = 1_262_304_000
"""Time of the first commit: 2010-01-01, in seconds since 1970."""

SPAN = 15 * 365 * 86_400
"""Time from the first commit to the last, in seconds."""

SEASONS = 40
"""Number of busy and quiet periods."""

OFFSETS = ("+0000", "+0100", "+0200", "-0500", "-0800", "+0530")
FOLDERS = tuple(b"src src/core src/core/io src/web tests tests/unit docs docs/guide tools".split())
ODD_NAMES = (
    b"a space",
    b"a\ttab",
    b"two\nlines",
    b'a"quote',
    b"caf\xe9",
    b"-dash",
    b"100%",
    "größe".encode(),
)
FILES_A_FOLDER = 40
"""Approximate number of files per folder in the end; new folders are added, so that none becomes huge."""

SIDE = 0.03
"""Fraction of the commits that are made on a side branch and merged."""


class History:
    """An invented history, in the format of ``git fast-import``.

    Args:
        commits: Number of commits, 1 or more.
        seed: The same seed gives the same history.
    """

    def __init__(self, commits: int, seed: int) -> None:
        self._commits = commits
        self._chance = Random(seed)
        self._people = max(3, min(500, commits // 200))
        self._files: dict[bytes, list[bytes]] = {}
        self._paths: list[bytes] = []
        self._number = 0
        self._named = 0

    def stream(self) -> Iterator[bytes]:
        """Yield the history, commit by commit."""
        while self._number < self._commits:
            if 1 < self._number < self._commits - 1 and self._chance.random() < SIDE:
                yield from self._merge_of_a_side_branch(base=self._number)
            else:
                yield self._header(b"main")
                for _ in range(min(int(self._chance.paretovariate(1.2)), 20)):
                    yield self._change()

    def _header(self, branch: bytes) -> bytes:
        self._number += 1
        person = min(int(self._chance.paretovariate(0.9)), self._people)
        progress = self._number / self._commits
        when = START + int(SPAN * (progress + sin(progress * SEASONS * tau) / (SEASONS * 9)))
        who = f"Person {person} <person{person}@example.org> {when} {self._chance.choice(OFFSETS)}".encode()
        head = b"commit refs/heads/%b\nmark :%d\nauthor %b\ncommitter %b\n" % (branch, self._number, who, who)
        return head + _data(b"Change number %d\n" % self._number)

    def _merge_of_a_side_branch(self, base: int) -> Iterator[bytes]:
        """Yield a commit on a side branch that adds a file, and the merge of that branch."""
        added = self._modified(self._listed_path(), self._some_lines())
        yield self._header(b"side") + b"from :%d\n" % base + added
        side = self._number
        yield self._header(b"main") + b"merge :%d\n" % side + added

    def _change(self) -> bytes:
        dice = self._chance.random()
        if not self._paths or dice < 0.08:
            return self._modified(self._listed_path(), self._some_lines())
        place = min(int(self._chance.paretovariate(0.35)) - 1, len(self._paths) - 1)
        path = self._paths[place]
        if dice < 0.10 and place > 20:
            del self._files[self._paths.pop(place)]
            return b"D %b\n" % _quoted(path)
        if dice < 0.12:
            return self._renamed(place)
        if dice < 0.13:
            return b"M 100644 inline %b\n" % _quoted(path) + _data(b"\0" + self._chance.randbytes(200))
        return self._modified(path, self._edited(self._files[path]))

    def _renamed(self, place: int) -> bytes:
        before, after = self._paths[place], self._free_path()
        self._paths[place] = after
        self._files[after] = self._files.pop(before)
        return b"R %b %b\n" % (_quoted(before), _quoted(after))

    def _modified(self, path: bytes, lines: list[bytes]) -> bytes:
        self._files[path] = lines
        return b"M 100644 inline %b\n" % _quoted(path) + _data(b"".join(lines))

    def _edited(self, lines: list[bytes]) -> list[bytes]:
        place, size = self._chance.randrange(len(lines) + 1), self._chance.randrange(1, 6)
        kept = lines[: max(place - size // 2, 1)] + [self._line() for _ in range(size)] + lines[place:]
        return kept[:80]

    def _some_lines(self) -> list[bytes]:
        return [self._line() for _ in range(self._chance.randrange(5, 40))]

    def _line(self) -> bytes:
        return b"line %x\n" % self._chance.getrandbits(40)

    def _listed_path(self) -> bytes:
        path = self._free_path()
        self._paths.append(path)
        return path

    def _free_path(self) -> bytes:
        self._named += 1
        name = self._chance.choice(ODD_NAMES) if self._named % 500 == 0 else b"file"
        module = self._chance.randrange(1 + self._named // FILES_A_FOLDER)
        return b"%b/m%d/%b-%d.txt" % (FOLDERS[module % len(FOLDERS)], module, name, self._named)


def _data(content: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(content), content)


def _quoted(path: bytes) -> bytes:
    """Quote a path as in C; ``git fast-import`` accepts every path in this form."""
    plain = range(0x20, 0x7F)
    text = "".join(chr(byte) if byte in plain and byte not in b'"\\' else f"\\{byte:03o}" for byte in path)
    return b'"%b"' % text.encode()


def make_repository(commits: int, seed: int, folder: Path) -> None:
    """Make the repository in ``folder``, which must not exist yet.

    Raises:
        subprocess.CalledProcessError: If git fails.
    """
    init = ["git", "init", "--quiet", "--bare", "--initial-branch=main", "--", str(folder)]
    subprocess.run(init, check=True)
    command = ["git", "-C", str(folder), "fast-import", "--quiet"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as git:
        assert git.stdin is not None
        for part in History(commits, seed).stream():
            git.stdin.write(part)
        git.stdin.close()
    if git.returncode:
        raise subprocess.CalledProcessError(git.returncode, command)


def main() -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("commits", type=int, help="number of commits, 1 or more")
    parser.add_argument("seed", type=int, help="the same seed gives the same history")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the repository to make; must not exist yet")
    options = parser.parse_args()
    if options.commits < 1 or options.folder.exists():
        parser.error("DIR exists already" if options.folder.exists() else "COMMITS must be 1 or more")
    make_repository(options.commits, options.seed, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
