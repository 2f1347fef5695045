"""The file of an event store on SQLite, while it is followed."""

from __future__ import annotations

from pathlib import Path

from opencqrs_py.errors import EventStoreError

__all__ = ["FileGoneError", "StoreFile"]

_NO_FILES = (":memory:", "file:")


class FileGoneError(EventStoreError):
    """The file of the event store is gone for now (OCQ-342)."""

    def __init__(self, where: str) -> None:
        super().__init__("OCQ-342", "the file of the event store is gone", where, "put it back, or start again")

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.where,)


class StoreFile:
    """Notices that a file is not any more the one that a connection has open, which SQLite itself does not.

    Args:
        url: URL of the event store, absolute. All but files of SQLite, and those that are not there, are let pass.
    """

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition(":///")
        path = rest.partition("?")[0]
        is_file = scheme.partition("+")[0] == "sqlite" and path and not path.startswith(_NO_FILES)
        self._path = Path(path) if is_file else None
        self._followed = None if self._path is None or not self._path.is_file() else _identity(self._path)

    def check(self) -> None:
        """See that the file is in its place.

        Raises:
            FileGoneError: If no file is there.
            EventStoreError: OCQ-342, if another file is there.
        """
        if self._path is None or self._followed is None:
            return
        try:
            found = _identity(self._path)
        except FileNotFoundError:
            raise FileGoneError(str(self._path)) from None
        except OSError:  # the store meets it as well, and says whether it passes
            return
        if found != self._followed:
            what = "another file is in the place of the one that was followed"
            fix = "start again to follow it, positions begin anew; or put the file back that was there"
            raise EventStoreError("OCQ-342", what, str(self._path), fix)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
