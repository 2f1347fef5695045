"""Which compressed files of events are unpacked to their end."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

import pytest
from typing_extensions import override

from opencqrs_py.adapters.files import lines


def note_ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each compressed file of lines whenever it was unpacked to its end."""
    ended: list[str] = []
    unpacked = lines.unpacked
    monkeypatch.setattr(
        lines, "unpacked", lambda path, how: io.BufferedReader(_Noted(path, unpacked(path, how), ended))
    )
    return ended


class _Noted(io.RawIOBase):
    def __init__(self, path: Path, file: BinaryIO, ended: list[str]) -> None:
        self._path = path
        self._file = file
        self._ended = ended
        self._at_end = False

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # typeshed has no name for it
        data = self._file.read(len(buffer))
        if not data and not self._at_end:
            self._at_end = True
            self._ended.append(self._path.name)
        buffer[: len(data)] = data
        return len(data)

    @override
    def close(self) -> None:
        self._file.close()
        super().close()
