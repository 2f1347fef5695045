"""What the end of ``opencqrs run`` shows."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py.assembly.status import GroupStatus
from opencqrs_py.cli.run import _interrupted
from opencqrs_py.cli.signals import INTERRUPTED, signals
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState


@pytest.mark.parametrize(
    ("cut_off", "last"),
    [
        ((), "stopped; each partition continues from here:"),
        (
            ["books 0/2", "books 1/2"],
            "a handler did not return; the next start repeats its event: books 0/2, books 1/2",
        ),
    ],
)
def test_an_interrupted_run_says_whose_handlers_did_not_return(
    cut_off: Sequence[str], last: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "said", False)
    status = PartitionStatus("books", Partition(1, 0), 3, ProcessorState.STOPPED)
    application: Any = SimpleNamespace(status=lambda _: [GroupStatus("books", 5, (status,))])
    assert _interrupted(application, (), cut_off=cut_off, as_json=False) == INTERRUPTED
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].split() == ["books", "0/1", "3", "2", "stopped"]
    assert shown.err.splitlines()[-1] == last
