from __future__ import annotations

import pytest

from opencqrs_py.cli.events.store_file import FileGoneError, StoreFile
from opencqrs_py.errors import EventStoreError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "größe 1.db"
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite"])
def test_a_file_that_is_gone_may_come_back(path, scheme):
    file = StoreFile(f"{scheme}:///{path}?timeout=5")
    file.check()
    path.rename(path.with_suffix(".away"))
    with pytest.raises(FileGoneError, match="OCQ-342") as gone:
        file.check()
    assert gone.value.where == str(path)
    path.with_suffix(".away").rename(path)
    path.write_bytes(b"more")
    file.check()


def test_another_file_in_its_place_is_refused(path):
    file = StoreFile(f"sqlite:///{path}")
    other = path.with_name("other")
    other.write_bytes(b"")
    other.rename(path)
    with pytest.raises(EventStoreError, match="another file is in the place") as replaced:
        file.check()
    assert not isinstance(replaced.value, FileGoneError)


def test_a_file_that_cannot_be_looked_at_for_now_is_left_to_the_store(path, monkeypatch):
    file = StoreFile(f"sqlite:///{path}")
    monkeypatch.setattr(type(path), "stat", lambda _self: (_ for _ in ()).throw(PermissionError("no")))
    file.check()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@h/d",
        "file:///log/1.ndjson",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:/x?vfs=memdb&uri=true",
        "eventsourcingdb://h:3000",
    ],
)
def test_stores_without_a_file_of_sqlite_have_nothing_to_check(url):
    StoreFile(url).check()


def test_a_file_that_never_was_is_no_file_of_the_store(tmp_path):
    file = StoreFile(f"sqlite:///{tmp_path / 'none.db'}")
    file.check()
    (tmp_path / "none.db").write_bytes(b"")
    file.check()
