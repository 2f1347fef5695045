"""The servers that tests and benchmarks start: waiting for their start and forcing their end."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


def test_starting_a_server_waits_until_it_listens(
    servers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(servers, "PATIENCE", 100)
    monkeypatch.setattr(servers.time, "sleep", waits.append)
    monkeypatch.setattr(servers.time, "monotonic", lambda: 49.0 * len(waits))
    place = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(place))  # the file exists, but no process listens
        with pytest.raises(TimeoutError, match="did not start within 100 seconds"):
            servers._wait_for(str(place))
    assert len(waits) == 3


def test_a_server_that_ignores_sigterm_is_killed(servers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "PATIENCE", 0.01)
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        servers._end(server)
        assert server.wait() == -9
