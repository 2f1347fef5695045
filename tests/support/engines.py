"""The engines that tests run on."""

from __future__ import annotations

import pytest

ENGINES = ["thread", pytest.param("spark", marks=pytest.mark.spark)]
"""Values of a parameter ``engine``."""
