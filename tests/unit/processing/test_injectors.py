"""Injectors without a container."""

from __future__ import annotations

import pytest

from opencqrs_py.processing.binding import NothingProvided


def test_without_a_container_nothing_is_provided() -> None:
    assert not NothingProvided().provides(str)
    with pytest.raises(LookupError):
        NothingProvided().provide(str)
