"""The loader of the git history example, on real small repositories."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

LOADER = Path(__file__).parents[2] / "examples" / "git_history" / "load.py"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

Loaded = subprocess.CompletedProcess[str]


@dataclass
class Git:
    """A repository under construction, with dates and names that do not depend on the machine."""

    folder: Path
    seconds: int = 1_700_000_000
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.folder), *arguments]
        done = subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def write(self, path: str | bytes, content: str | bytes = "one\ntwo\n") -> None:
        file = self.folder / os.fsdecode(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, *options: str, author: str = "Ann <Ann@Example.org>", offset: str = "+0100") -> str:
        self.seconds += 60
        moment = f"{self.seconds} {offset}"
        self.environment |= {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment}
        self("add", "--all")
        self("commit", "--quiet", "--message", "m", "--author", author, *options)
        return self("rev-parse", "HEAD")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Git without the settings of the user who runs the test, and without the variables of a git hook."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    names = {"NAME": "Ann", "EMAIL": "ann@example.org"}
    people = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in names.items()}
    own = {"HOME": str(tmp_path), "GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"), "GIT_CONFIG_NOSYSTEM": "1"}
    return {**kept, **own, **people}


@pytest.fixture
def git(tmp_path: Path, environment: dict[str, str]) -> Git:
    folder = tmp_path / "repository"
    folder.mkdir()
    git = Git(folder, environment=environment)
    git("init", "--quiet", "--initial-branch=main")
    return git


@dataclass
class Loader:
    """Runs the loader as a user does, with a fixed salt."""

    salt: Path
    environment: dict[str, str]

    def __call__(self, *arguments: str | Path, **variables: str) -> Loaded:
        command = [sys.executable, str(LOADER), "--salt-file", str(self.salt), *map(str, arguments)]
        environment = {**self.environment, **variables}
        return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)

    def events(self, git: Git) -> list[dict[str, Any]]:
        loaded = self(git.folder)
        assert loaded.returncode == 0, loaded.stderr
        return [json.loads(line) for line in loaded.stdout.splitlines()]

    def files(self, git: Git) -> list[tuple[str, str, int | None, int | None]]:
        """Return the change of each path, with the lines added and deleted."""
        return [
            (
                event["type"].removeprefix("git.file-").removesuffix(".v1"),
                event["subject"].removeprefix("/files/"),
                event["data"]["lines_added"],
                event["data"]["lines_deleted"],
            )
            for event in self.events(git)
            if event["type"].startswith("git.file-")
        ]


@pytest.fixture
def load(tmp_path: Path, environment: dict[str, str]) -> Loader:
    return Loader(tmp_path / "salt", environment)


def test_history_comes_oldest_first_with_a_commit_before_its_files(git: Git, load: Loader) -> None:
    git.write("a.txt")
    first = git.commit()
    git.write("src/b.txt")
    git.write("a.txt", "one\nthree\n")
    second = git.commit(offset="-0730")

    events = load.events(git)

    assert [event["subject"] for event in events] == [
        f"/commits/{first}",
        "/files/a.txt",
        f"/commits/{second}",
        "/files/a.txt",
        "/files/src/b.txt",
    ]
    assert [event["id"] for event in events] == [first, f"{first}.1", second, f"{second}.1", f"{second}.2"]
    assert {event["source"] for event in events} == {f"urn:git:{first}"}
    assert [event["time"] for event in events[::2]] == ["2023-11-14T23:14:20+01:00", *["2023-11-14T14:45:20-07:30"] * 2]
    assert (events[2]["data"]["files"], events[2]["data"]["lines_added"]) == (2, 3)


def test_each_kind_of_change_has_its_event(git: Git, load: Loader) -> None:
    git.write("kept", "".join(f"{number}\n" for number in range(20)))
    git.write("gone")
    git.write("image", b"\0\1\2")
    git.commit()
    git("mv", "kept", "folder with space")
    git.write("folder with space", "".join(f"{number}\n" for number in range(1, 20)))
    (git.folder / "gone").unlink()
    git.write("image", b"\0\1\2\3")
    git.write("new", "other\nlines\n")
    git.commit()

    assert sorted(load.files(git)[3:]) == [
        ("added", "new", 2, 0),
        ("changed", "image", None, None),
        ("deleted", "gone", 0, 2),
        ("renamed", "folder with space", 0, 1),
    ]


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "subject"),
    [
        (b"with space", "with space"),
        (b"tab\there", "tab%09here"),
        (b"line\nbreak", "line%0Abreak"),
        (b"'quotes\"", "'quotes\""),
        (b"caf\xe9", "caf%E9"),
        ("größe".encode(), "größe"),
        (b"-dash", "-dash"),
        (b":100644 000000 x", ":100644 000000 x"),
        (b"\x01begin", "%01begin"),
        (b"100%", "100%25"),
        (b"back\\slash", "back\\slash"),
    ],
)
def test_all_file_names_are_preserved(git: Git, load: Loader, name: bytes, subject: str) -> None:
    git.write(name)
    git.commit()
    git.write(b"folder/" + name, "one\ntwo\nthree\n")
    (git.folder / os.fsdecode(name)).unlink()
    git.commit()

    assert load.files(git) == [("added", subject, 2, 0), ("renamed", f"folder/{subject}", 1, 0)]


def test_modes_links_and_submodules_are_distinguished(git: Git, load: Loader) -> None:
    git.write("script")
    git.write("becomes link")
    (git.folder / "link").symlink_to("script")
    first = git.commit()
    (git.folder / "script").chmod(0o755)
    (git.folder / "becomes link").unlink()
    (git.folder / "becomes link").symlink_to("script")
    git("add", "--all")
    git("update-index", "--add", "--cacheinfo", f"160000,{first},vendor")
    git("commit", "--quiet", "--message", "m")

    kinds = {event["subject"]: event["data"]["kind"] for event in load.events(git) if "path" in event["data"]}

    assert kinds == {
        "/files/script": "executable",
        "/files/becomes link": "symlink",
        "/files/link": "symlink",
        "/files/vendor": "submodule",
    }
    assert ("changed", "script", 0, 0) in load.files(git)
    assert ("added", "vendor", None, None) in load.files(git)


def test_a_merge_is_a_commit_without_files(git: Git, load: Loader) -> None:
    git.write("a")
    git.commit()
    git("checkout", "--quiet", "-b", "side")
    git.write("b")
    git.commit()
    git("checkout", "--quiet", "main")
    git.write("c")
    git.commit()
    git("merge", "--quiet", "--no-edit", "side")

    events = load.events(git)

    assert [event["data"]["parents"] for event in events if "parents" in event["data"]] == [0, 1, 1, 2]
    assert events[-1]["data"]["parents"] == 2
    assert [path for _, path, _, _ in load.files(git)] == ["a", "b", "c"]


def test_empty_commits_and_several_roots_are_history_too(git: Git, load: Loader) -> None:
    git.write("a")
    root = git.commit()
    git.commit("--allow-empty")
    git("checkout", "--quiet", "--orphan", "other")
    git("rm", "--quiet", "-r", "--force", ".")
    git.write("b")
    git.commit()
    git("checkout", "--quiet", "main")
    git("merge", "--quiet", "--no-edit", "--allow-unrelated-histories", "other")

    events = load.events(git)

    assert [event["data"]["parents"] for event in events if "parents" in event["data"]] == [0, 1, 0, 2]
    assert {event["source"] for event in events} == {f"urn:git:{root}"}
    assert [path for _, path, _, _ in load.files(git)] == ["a", "b"]


def test_names_and_addresses_are_not_exported(git: Git, load: Loader) -> None:
    git.write("a")
    git.commit(author="Ann Smith <ann.smith@example.org>")
    git.write("b")
    git.commit(author="A. Smith <Ann.Smith@Example.org>")
    git.write("c")
    git.commit(author="Bob <bob@example.org>")

    loaded = load(git.folder)
    authors = [json.loads(line)["data"]["author"] for line in loaded.stdout.splitlines()]

    for word in ("ann", "smith", "bob", "example"):
        assert word not in loaded.stdout.lower() + loaded.stderr.lower().replace(str(git.folder), "")
    assert authors[0] == authors[2]
    assert len(set(authors)) == 2


def test_the_same_repository_gives_the_same_events_again(git: Git, load: Loader, tmp_path: Path) -> None:
    git.write("a")
    git.commit()
    before = load(git.folder).stdout
    git.write("b")
    git.commit()
    clone = tmp_path / "clone"
    git("clone", "--quiet", "--bare", ".", str(clone))

    after = load(git.folder).stdout

    assert after.startswith(before)
    assert load(clone).stdout == after


def test_another_salt_gives_other_hashes_and_the_same_ids(git: Git, load: Loader, tmp_path: Path) -> None:
    git.write("a")
    git.commit()
    first, *_ = load.events(git)
    load.salt = tmp_path / "another"

    second, *_ = load.events(git)

    assert first["id"] == second["id"]
    assert first["data"]["author"] != second["data"]["author"]
    assert load.salt.stat().st_mode & 0o077 == 0


HOSTILE_SETTINGS = """
[core]\n quotePath = true\n pager = false
[color]\n ui = always
[log]\n showRoot = false\n showSignature = true\n mailmap = true\n diffMerges = combined\n follow = true
[log]\n date = relative\n decorate = full
[format]\n pretty = fuller\n notes = true
[diff]\n renames = false\n renameLimit = 1\n noPrefix = true\n relative = true\n algorithm = patience
[diff]\n ignoreSubmodules = all\n submodule = log\n external = false\n colorMoved = zebra\n wordRegex = .
"""


def test_the_users_git_settings_change_nothing(git: Git, load: Loader, tmp_path: Path) -> None:
    git.write("src/a", "".join(f"{number}\n" for number in range(20)))
    git.write("src/b", "b\n" * 20)
    git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},vendor")
    git.commit()
    git("mv", "src/a", "c")
    git("mv", "src/b", "d")
    git.write("c", "".join(f"{number}\n" for number in range(1, 20)))
    git.commit()
    plain = load(git.folder).stdout

    (tmp_path / "gitconfig").write_text(HOSTILE_SETTINGS)
    (git.folder / ".mailmap").write_text("Eve <eve@example.org> <ann@example.org>\n")

    hook = {"GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere/index", "GIT_WORK_TREE": "/nowhere"}
    assert load(git.folder / "src" / "..", **hook).stdout == plain
    assert plain.count("file-renamed") == 2


def test_a_folder_inside_the_repository_gives_the_whole_history(git: Git, load: Loader) -> None:
    git.write("a")
    git.write("src/b")
    git.commit()

    assert load(git.folder / "src").stdout == load(git.folder).stdout


def test_the_boundary_of_a_shallow_clone_has_no_files_and_is_warned_of(git: Git, load: Loader, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        git.write(name)
        git.commit()
    clone = Git(tmp_path / "clone", environment=git.environment)
    git("clone", "--quiet", "--depth", "2", f"file://{git.folder}", str(clone.folder))

    loaded = load(clone.folder)

    assert "warning: this clone is shallow" in loaded.stderr
    assert "git fetch --unshallow" in loaded.stderr
    assert load.files(clone) == [("added", "c", 2, 0)]
    assert len(load.events(clone)) == 3


def test_a_partial_clone_is_warned_about(git: Git, load: Loader, tmp_path: Path) -> None:
    git.write("a")
    git.commit()
    git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    git("clone", "--quiet", "--bare", "--filter=blob:none", f"file://{git.folder}", str(clone))

    loaded = load(clone)

    assert "warning: this clone is partial" in loaded.stderr
    assert loaded.stdout.count("\n") == 2


@pytest.mark.release
def test_thousands_of_renames_in_one_commit_stay_cheap(git: Git, load: Loader) -> None:
    for number in range(1500):
        git.write(f"old/{number}", f"{number}\n" * 10)
    git.commit()
    git("mv", "old", "exact")
    git.commit()
    for number in range(1500):
        git.write(f"other/new-{number}", f"{number}\n" * 10 + "more\n")
    shutil.rmtree(git.folder / "exact")
    git.commit()

    changes = [change for change, *_ in load.files(git)]

    assert changes[1500:3000] == ["renamed"] * 1500
    assert sorted(changes[3000:]) == ["added"] * 1500 + ["deleted"] * 1500


def test_the_output_file_appears_only_when_complete(git: Git, load: Loader, tmp_path: Path) -> None:
    git.write("a")
    git.commit()
    file = tmp_path / "events.ndjson"

    loaded = load(git.folder, "--output", file)

    assert loaded.stdout == ""
    assert loaded.stderr == "load.py: 1 commits and 1 file changes of repository\n"
    assert file.read_text() == load(git.folder).stdout
    assert [path.name for path in tmp_path.glob("events*")] == ["events.ndjson"]


def test_a_closed_output_pipe_ends_the_loader_quietly(git: Git, load: Loader) -> None:
    for number in range(300):
        git.write("a" * 200 + "/" + str(number))
    git.commit()
    command = [sys.executable, str(LOADER), "--salt-file", str(load.salt), str(git.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as loader:
        assert loader.stdout is not None
        assert loader.stderr is not None
        loader.stdout.readline()
        loader.stdout.close()

        assert loader.stderr.read() == b""

    assert loader.returncode == 1


def test_a_broken_repository_is_reported_with_the_message_of_git(git: Git, load: Loader, tmp_path: Path) -> None:
    git.write("a")
    git.commit()
    git.write("a", "another\n")
    git.commit()
    blob = git("rev-parse", "HEAD:a")
    (git.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    file = tmp_path / "events.ndjson"

    loaded = load(git.folder, "--output", file)

    assert loaded.returncode == 1
    assert loaded.stderr.startswith("load.py: error: git log failed: ")
    assert blob in loaded.stderr
    assert not list(tmp_path.glob("events*"))


def no_folder(git: Git) -> Path:
    return git.folder / "missing"


def no_repository(git: Git) -> Path:
    folder = git.folder.parent / "plain"
    folder.mkdir()
    return folder


def no_commits(git: Git) -> Path:
    return git.folder


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (no_folder, "missing is not a folder: name the folder of a git repository"),
        (no_repository, "plain is not a git repository: name the folder of one"),
        (no_commits, "repository/.git points to no commit yet: commit something, check out another branch or"),
    ],
)
def test_an_unreadable_repository_is_reported_in_one_line(
    git: Git, load: Loader, place: Callable[[Git], Path], message: str
) -> None:
    loaded = load(place(git), GIT_CEILING_DIRECTORIES=str(git.folder.parent))

    assert loaded.returncode == 2
    assert loaded.stdout == ""
    assert loaded.stderr.startswith("load.py: error: ")
    assert message in loaded.stderr
    assert loaded.stderr.count("\n") == 1


def test_without_git_the_message_says_where_to_get_it(git: Git, load: Loader, tmp_path: Path) -> None:
    loaded = load(git.folder, PATH=str(tmp_path))

    assert loaded.returncode == 2
    assert loaded.stderr == (
        "load.py: error: git was not found: install it (https://git-scm.com/downloads) or put its folder on the PATH\n"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [("short", "holds no salt of 16 or more characters"), (None, "the salt cannot be kept in")],
    ids=["too short", "a folder"],
)
def test_an_unusable_salt_is_refused(git: Git, load: Loader, content: str | None, message: str) -> None:
    git.write("a")
    git.commit()
    if content is None:
        load.salt.mkdir()
    else:
        load.salt.write_text(content)

    loaded = load(git.folder)

    assert (loaded.returncode, loaded.stdout) == (2, "")
    assert message in loaded.stderr


def test_an_output_that_cannot_be_written_is_refused(git: Git, load: Loader, tmp_path: Path) -> None:
    git.write("a")
    git.commit()

    loaded = load(git.folder, "--output", tmp_path / "missing" / "file")

    assert loaded.returncode == 2
    assert "(No such file or directory): name another file with --output" in loaded.stderr


def test_the_benchmark_makes_the_same_history_for_the_same_seed(load: Loader, tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        command = [sys.executable, str(BENCHMARKS / "make_repository.py"), "300", "7", str(folder)]
        subprocess.run(command, env=load.environment, check=True)

    first, second = (load(folder) for folder in folders)

    assert first.stdout == second.stdout
    assert first.stdout.count("git.commit-authored.v1") == 300
