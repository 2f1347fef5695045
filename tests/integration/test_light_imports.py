"""What must not be loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = "import sys; print(sorted({'pyspark', 'sqlalchemy', 'pandas', 'pyarrow'} & set(sys.modules)))"
HANDLERS = (
    "from sqlalchemy import Connection\nfrom opencqrs_py import event_handling\n"
    "@event_handling('catalog')\ndef f(event: dict, connection: Connection) -> None: ...\n"
)


@pytest.mark.parametrize(
    "work",
    [
        "import opencqrs_py",
        "from opencqrs_py import Event, Metadata, event_handling, event_type, on_start",
        "from opencqrs_py import EventHandlingProcessor, InMemoryEventStore, InMemoryProgressTracker, PerSubject",
        "from opencqrs_py.testing import FakeClock; import opencqrs_py.testing.plugin",
        "from opencqrs_py.cli.main import cli; cli.main(['config'], standalone_mode=False)",
    ],
)
def test_importing_the_package_loads_neither_pyspark_nor_sqlalchemy(work, tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    done = subprocess.run(
        [sys.executable, "-c", f"{work}\n{HEAVY}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    if "config" in work:
        assert "group catalog" in done.stdout
