"""A project folder whose configuration is loaded without any of the machine's own variables."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from opencqrs_py.config import load
from opencqrs_py.errors import ConfigurationErrors

if TYPE_CHECKING:
    from pathlib import Path

    from opencqrs_py.config import Configuration
    from opencqrs_py.errors import ConfigurationError


@dataclass(frozen=True)
class Project:
    folder: Path

    def write(self, name: str, text: str | bytes) -> Project:
        """Write a file of the project; indentation that all lines share is taken off."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
        return self

    def yaml(self, text: str) -> Project:
        return self.write("application.yaml", text)

    def load(self, **given: Any) -> Configuration:
        return load(self.folder, **{"environ": {}, **given})

    def errors(self, **given: Any) -> tuple[ConfigurationError, ...]:
        with pytest.raises(ConfigurationErrors) as caught:
            self.load(**given)
        return caught.value.errors

    def error(self, **given: Any) -> ConfigurationError:
        (only,) = self.errors(**given)
        return only


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
