"""A git repository, read through git's command line."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, cast

__all__ = ["IncompleteLogError", "Repository", "RepositoryError"]

BLOCK = 1 << 18
"""Maximum number of bytes read from git at a time."""

RENAME_LIMIT = 1000
"""Up to this many deleted and added paths of a commit, git compares all pairs by content.

The cost grows with the square: 1,000 take a few seconds, 10,000 would take minutes. Beyond the limit git still
finds renames that kept a file's content or the last part of its path.
"""

FIELDS = ("%x01%H", "%P", "%ae", "%an", "%aI", "%cI")
"""The fields that ``git log`` prints for a commit. The first begins with a byte with which no file entry begins."""

LOG = (
    *("-c", "log.showRoot=true", "-c", "diff.relative=false"),
    *("log", "--date-order", "--reverse", "--no-color", "--no-show-signature", "--encoding=UTF-8"),
    *("-z", "--format=" + "%x00".join(FIELDS), "--raw", "--numstat", "--no-abbrev"),
    *("--find-renames=50%", f"-l{RENAME_LIMIT}", "--no-rename-empty"),
    *("--diff-algorithm=myers", "-O/dev/null", "--no-ext-diff", "--no-textconv", "--ignore-submodules=none"),
)
"""One ``git log`` for everything, oldest commit first, with all options set that a user's git settings could change."""

INHERITED = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX"})
"""Variables that git sets for its hooks, which would select another repository than the given one."""


class RepositoryError(Exception):
    """A repository cannot be read. The message is one line that says what to do."""


class IncompleteLogError(RepositoryError):
    """Git failed after it had begun to print the history."""


@dataclass(frozen=True)
class Repository:
    """A git repository, by any path in it.

    Attributes:
        path: The repository, a folder in it, or a bare repository.
    """

    path: Path

    @cached_property
    def git_folder(self) -> Path:
        """The folder with git's own files, the same for every worktree of a clone.

        Raises:
            RepositoryError: If there is no repository, or git refuses to read it.
        """
        if not self.path.is_dir():
            what = f"{self.path} is not a folder: name the folder of a git repository"
            raise RepositoryError(what)
        answer = self._ask("rev-parse", "--git-common-dir")
        if answer.returncode != 0:
            raise RepositoryError(self._refusal(answer.stderr))
        return (self.path / os.fsdecode(answer.stdout.removesuffix(b"\n"))).resolve()

    @property
    def name(self) -> str:
        """Name of the repository's folder, without ``.git``."""
        folder = self.git_folder.parent if self.git_folder.name == ".git" else self.git_folder
        return folder.name.removesuffix(".git") or "repository"

    @cached_property
    def root(self) -> str:
        """Hash of the first commit on the line of first parents: the same in every full clone.

        Raises:
            RepositoryError: If there is no commit.
        """
        folder = self.git_folder
        answer = self._ask("rev-list", "--first-parent", "--max-parents=0", "HEAD", "--")
        if answer.returncode != 0 or not answer.stdout:
            fix = "commit something, check out another branch or name another repository"
            what = f"HEAD of {folder} points to no commit yet: {fix}"
            raise RepositoryError(what)
        return answer.stdout.split()[0].decode()

    @cached_property
    def boundary(self) -> frozenset[str]:
        """The commits at the boundary of a shallow clone; empty for a full clone."""
        shallow = self.git_folder / "shallow"
        return frozenset(shallow.read_text("ascii").split()) if shallow.is_file() else frozenset()

    @property
    def partial(self) -> bool:
        """Whether git left file contents on the server, and fetches them on demand."""
        return self._ask("config", "--get-regexp", r"^remote\..*\.promisor$", "true").returncode == 0

    def log(self) -> Iterator[bytes]:
        """Yield the output of ``git log`` in blocks, from the oldest commit on.

        Raises:
            IncompleteLogError: If git fails.
        """
        command, environment = self._command(*LOG, "HEAD", "--")
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors) as git,
        ):
            output = cast("IO[bytes]", git.stdout)
            try:
                while block := output.read(BLOCK):
                    yield block
            except BaseException:
                git.terminate()
                raise
            if git.wait() != 0:
                errors.seek(0)
                what = f"git log failed: {_last_line(errors.read())}"
                raise IncompleteLogError(what)

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command, environment = self._command(*arguments)
        try:
            return subprocess.run(command, env=environment, capture_output=True, check=False)
        except FileNotFoundError as error:
            what = "git was not found: install it (https://git-scm.com/downloads) or put its folder on the PATH"
            raise RepositoryError(what) from error

    def _command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        kept = {name: value for name, value in os.environ.items() if name not in INHERITED}
        environment = {**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
        return ["git", "-C", os.fspath(self.path), *arguments], environment

    def _refusal(self, errors: bytes) -> str:
        if b"dubious ownership" in errors:
            fix = f"git config --global --add safe.directory {self.path.resolve()}"
            return f"{self.path} belongs to another user and git does not trust it; if you do: {fix}"
        if b"not a git repository" in errors:
            return f"{self.path} is not a git repository: name the folder of one"
        return f"git cannot read {self.path}: {_last_line(errors)}"


def _last_line(errors: bytes) -> str:
    lines = errors.decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
