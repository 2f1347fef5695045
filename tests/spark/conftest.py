from __future__ import annotations

import pytest


@pytest.fixture
def kind() -> str:
    """The kind of database of a log, where a test does not name others."""
    return "sqlite"
