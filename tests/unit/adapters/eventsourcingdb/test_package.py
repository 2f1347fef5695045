"""The package imports the client only when the store is used, and reports a missing client."""

from __future__ import annotations

import subprocess
import sys

import pytest

import opencqrs_py.adapters.eventsourcingdb as package
from opencqrs_py.errors import EventStoreError


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(package, name).__name__ == name for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = package.Nothing


def test_an_address_is_read_without_the_client() -> None:
    work = (
        "import sys; from opencqrs_py.adapters.eventsourcingdb import Address; Address.parse('eventsourcingdb://h');"
        "print(sorted({'aiohttp', 'eventsourcingdb'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_missing_client_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(f"{package.__name__}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "eventsourcingdb", None)
    with pytest.raises(EventStoreError, match=r"OCQ-303[\s\S]*pip install 'opencqrs-py\[eventsourcingdb\]'"):
        _ = package.EventSourcingDbEventStore
