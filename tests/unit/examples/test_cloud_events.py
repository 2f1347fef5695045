"""The events of the git history example."""

from urllib.parse import unquote_to_bytes

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader.cloud_events import author_hash, cloud_events, path_text
from loader.git_log import Change, Commit, FileChange, Kind

COMMIT = Commit(
    sha="c0ffee",
    parents=1,
    author=b"ann@example.org",
    authored_at="2024-05-01T10:00:00+02:00",
    committed_at="2024-05-02T00:00:00Z",
    changes=(
        FileChange(Change.CHANGED, Kind.FILE, b"src/a.py", None, 3, 2),
        FileChange(Change.RENAMED, Kind.EXECUTABLE, b"src/b c.py", b"old\n.py", 1, 0),
        FileChange(Change.ADDED, Kind.FILE, b"logo.png"),
    ),
)
HIDDEN = author_hash(b"salt of the test")(b"ann@example.org")


def test_a_commit_gives_one_event_and_one_for_each_path() -> None:
    events = list(cloud_events(COMMIT, "urn:git:1", author_hash(b"salt of the test")))

    assert [(event["id"], event["subject"], event["type"]) for event in events] == [
        ("c0ffee", "/commits/c0ffee", "git.commit-authored.v1"),
        ("c0ffee.1", "/files/src/a.py", "git.file-changed.v1"),
        ("c0ffee.2", "/files/src/b c.py", "git.file-renamed.v1"),
        ("c0ffee.3", "/files/logo.png", "git.file-added.v1"),
    ]
    assert {(event["source"], event["time"], event["specversion"]) for event in events} == {
        ("urn:git:1", "2024-05-01T10:00:00+02:00", "1.0")
    }


def test_the_commit_event_carries_the_totals() -> None:
    event = next(cloud_events(COMMIT, "urn:git:1", author_hash(b"salt of the test")))

    assert event["data"] == {
        "author": HIDDEN,
        "parents": 1,
        "committed_at": "2024-05-02T00:00:00Z",
        "files": 3,
        "lines_added": 4,
        "lines_deleted": 2,
    }


def test_a_file_event_carries_everything_a_handler_needs() -> None:
    _, changed, renamed, binary = cloud_events(COMMIT, "urn:git:1", author_hash(b"salt of the test"))

    common = {"commit": "c0ffee", "author": HIDDEN}
    lines = {"lines_added": 3, "lines_deleted": 2}
    assert changed["data"] == {**common, "path": "src/a.py", "kind": "file", **lines}
    assert renamed["data"]["previous_path"] == "old%0A.py"
    assert renamed["data"]["kind"] == "executable"
    assert (binary["data"]["lines_added"], binary["data"]["lines_deleted"]) == (None, None)


def test_an_author_is_hidden_behind_a_salted_hash() -> None:
    line = orjson.dumps(list(cloud_events(COMMIT, "urn:git:1", author_hash(b"salt of the test"))))

    assert b"ann" not in line
    assert len(HIDDEN) == 16
    assert author_hash(b"salt of the test")(b"ann@example.org") == HIDDEN
    assert author_hash(b"another salt")(b"ann@example.org") != HIDDEN
    assert author_hash(b"salt of the test")(b"bob@example.org") != HIDDEN


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"src/a b.py", "src/a b.py"),
        ("bücher/größe".encode(), "bücher/größe"),
        (b"a\tb\nc\x7f", "a%09b%0Ac%7F"),
        (b"caf\xe9", "caf%E9"),
        (b"100%", "100%25"),
        (b"-rf", "-rf"),
        (b'quote".txt', 'quote".txt'),
        ("next\u0085line".encode(), "next%C2%85line"),
        (b"\xed\xa0\x80", "%ED%A0%80"),
    ],
)
def test_a_path_becomes_text_without_control_characters(path: bytes, text: str) -> None:
    assert path_text(path) == text


@given(st.binary())
def test_the_bytes_of_a_path_can_be_restored(path: bytes) -> None:
    text = path_text(path)

    assert unquote_to_bytes(text) == path
    assert text.encode().decode() == text
