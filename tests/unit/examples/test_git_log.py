"""The parser of git's output in the git history example."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader.git_log import Change, Commit, FileChange, Kind, commits_in, tokens_in

SHA = "a" * 40
HEADER = [
    b"\x01" + SHA.encode(),
    b"",
    b"Ann@Example.org",
    b"Ann",
    b"2024-05-01T10:00:00+02:00",
    b"2024-05-02T00:00:00Z",
]


def raw(old: bytes, new: bytes, status: bytes, *paths: bytes) -> list[bytes]:
    return [b":%b %b %b %b %b" % (old, new, b"0" * 40, b"1" * 40, status), *paths]


def the_commit(*tokens: bytes) -> Commit:
    (commit,) = commits_in([*HEADER, *tokens])
    return commit


def test_a_header_gives_hash_times_and_author() -> None:
    assert the_commit() == Commit(SHA, 0, b"ann@example.org", "2024-05-01T10:00:00+02:00", "2024-05-02T00:00:00Z")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param(
            [*raw(b"000000", b"100644", b"A", b"a.py"), b"3\t0\ta.py"],
            FileChange(Change.ADDED, Kind.FILE, b"a.py", None, 3, 0),
            id="added",
        ),
        pytest.param(
            [*raw(b"100644", b"100644", b"M", b"a.py"), b"3\t2\ta.py"],
            FileChange(Change.CHANGED, Kind.FILE, b"a.py", None, 3, 2),
            id="changed",
        ),
        pytest.param(
            [*raw(b"100644", b"000000", b"D", b"a.py"), b"0\t12\ta.py"],
            FileChange(Change.DELETED, Kind.FILE, b"a.py", None, 0, 12),
            id="deleted",
        ),
        pytest.param(
            [*raw(b"120000", b"000000", b"D", b"link"), b"0\t1\tlink"],
            FileChange(Change.DELETED, Kind.SYMLINK, b"link", None, 0, 1),
            id="deleted-symlink-is-what-it-was",
        ),
        pytest.param(
            [*raw(b"100644", b"100644", b"R087", b"old", b"new"), b"1\t1\t", b"old", b"new"],
            FileChange(Change.RENAMED, Kind.FILE, b"new", b"old", 1, 1),
            id="renamed",
        ),
        pytest.param(
            [*raw(b"100644", b"100644", b"C100", b"old", b"new"), b"0\t0\t", b"old", b"new"],
            FileChange(Change.ADDED, Kind.FILE, b"new", None, 0, 0),
            id="copied-is-added",
        ),
        pytest.param(
            [*raw(b"100644", b"100755", b"M", b"run.sh"), b"0\t0\trun.sh"],
            FileChange(Change.CHANGED, Kind.EXECUTABLE, b"run.sh", None, 0, 0),
            id="mode-only",
        ),
        pytest.param(
            [*raw(b"100644", b"120000", b"T", b"a"), b"1\t9\ta"],
            FileChange(Change.CHANGED, Kind.SYMLINK, b"a", None, 1, 9),
            id="file-becomes-symlink",
        ),
        pytest.param(
            [*raw(b"000000", b"100644", b"A", b"x.png"), b"-\t-\tx.png"],
            FileChange(Change.ADDED, Kind.FILE, b"x.png"),
            id="binary",
        ),
        pytest.param(
            [*raw(b"160000", b"160000", b"M", b"vendor"), b"1\t1\tvendor"],
            FileChange(Change.CHANGED, Kind.SUBMODULE, b"vendor"),
            id="submodule-has-no-lines",
        ),
        pytest.param(
            [*raw(b"000000", b"100644", b"A", b'a\tb\n\xff" -'), b'1\t0\ta\tb\n\xff" -'],
            FileChange(Change.ADDED, Kind.FILE, b'a\tb\n\xff" -', None, 1, 0),
            id="odd-name",
        ),
        pytest.param(
            [*raw(b"100644", b"100644", b"R100", b":1 2 3 4 M", b"\x01sha"), b"0\t0\t", b":1 2 3 4 M", b"\x01sha"],
            FileChange(Change.RENAMED, Kind.FILE, b"\x01sha", b":1 2 3 4 M", 0, 0),
            id="names-that-look-like-entries",
        ),
    ],
)
def test_a_changed_path_is_read_with_its_lines(tokens: list[bytes], expected: FileChange) -> None:
    first, *others = tokens
    assert the_commit(b"\n" + first, *others).changes == (expected,)


def test_a_path_without_line_counts_has_none() -> None:
    (change,) = the_commit(*raw(b"100644", b"100644", b"M", b"a")).changes

    assert (change.added, change.deleted) == (None, None)


def test_line_counts_find_their_path_in_any_order() -> None:
    entries = [*raw(b"0", b"100644", b"A", b"a"), *raw(b"0", b"100644", b"A", b"b"), b"2\t0\tb", b"1\t0\ta"]

    assert [(change.path, change.added) for change in the_commit(*entries).changes] == [(b"a", 1), (b"b", 2)]


def test_commits_keep_their_own_changes() -> None:
    merge = [HEADER[0], b"p1 p2", *HEADER[2:]]
    changed = [*HEADER, *raw(b"0", b"100644", b"A", b"a"), b"1\t0\ta"]

    commits = list(commits_in([*HEADER, *changed, *merge]))

    assert [(commit.parents, len(commit.changes)) for commit in commits] == [(0, 0), (0, 1), (2, 0)]


def test_a_commit_is_yielded_as_soon_as_the_next_begins() -> None:
    taken = []

    def tokens() -> Iterator[bytes]:
        for number in range(3):
            taken.append(number)
            yield from HEADER

    next(commits_in(tokens()))

    assert taken == [0, 1]


@pytest.mark.parametrize(
    ("email", "name", "author"),
    [
        (b" Ann@EXAMPLE.org ", b"Ann", b"ann@example.org"),
        (b"", b"Ann ", b"Ann"),
        (b"", b"", b""),
        (b"\xff\xfe", b"x", b"\xff\xfe"),
    ],
)
def test_the_author_is_the_address_or_else_the_name(email: bytes, name: bytes, author: bytes) -> None:
    (commit,) = commits_in([*HEADER[:2], email, name, *HEADER[4:]])

    assert commit.author == author


@pytest.mark.parametrize(
    ("authored", "committed", "times"),
    [
        (b"2024-05-01T10:00:00+02:00", b"2024-05-02T00:00:00Z", ("2024-05-01T10:00:00+02:00", "2024-05-02T00:00:00Z")),
        (b"", b"2024-05-02T00:00:00Z", ("2024-05-02T00:00:00Z", "2024-05-02T00:00:00Z")),
        (b"2024-05-01T10:00:00+51:80", b"2024-05-02T00:00:00Z", ("2024-05-02T00:00:00Z", "2024-05-02T00:00:00Z")),
        (b"12024-05-01T10:00:00Z", b"", ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z")),
    ],
    ids=["both", "no-author-date", "offset-of-days", "neither"],
)
def test_a_time_that_rfc_3339_cannot_express_is_replaced(
    authored: bytes, committed: bytes, times: tuple[str, str]
) -> None:
    (commit,) = commits_in([*HEADER[:4], authored, committed])

    assert (commit.authored_at, commit.committed_at) == times


@pytest.mark.parametrize(
    "tokens",
    [
        HEADER[:3],
        [*HEADER, *raw(b"0", b"100644", b"A")],
        [*HEADER, *raw(b"0", b"100644", b"R100", b"old")],
        [*HEADER, *raw(b"0", b"100644", b"R100", b"old", b"new"), b"0\t0\t", b"old"],
        [*HEADER, b"1\t1\tnever-listed"],
        [*HEADER, b"nonsense"],
    ],
)
def test_input_that_git_never_prints_is_refused(tokens: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(commits_in(tokens))


@given(st.lists(st.binary(max_size=9)), st.integers(min_value=1, max_value=7))
def test_tokens_do_not_depend_on_how_the_stream_is_split(tokens: list[bytes], size: int) -> None:
    tokens = [token.replace(b"\0", b"") for token in tokens]
    stream = b"".join(token + b"\0" for token in tokens)
    blocks = [stream[start : start + size] for start in range(0, len(stream), size)]

    assert list(tokens_in(blocks)) == tokens
