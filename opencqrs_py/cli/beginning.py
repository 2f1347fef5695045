"""What a run says before it handles anything: which settings it uses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opencqrs_py.config.profiles import DEFAULT_PROFILE

if TYPE_CHECKING:
    from opencqrs_py.config import Configuration

__all__ = ["used"]


def used(configuration: Configuration, project: Path) -> str:
    """Return a line that names the files of settings that were read, and the active profiles."""
    files = [str(file.relative_to(project) if file.is_relative_to(project) else file) for file in configuration.files]
    profiles = ", ".join(configuration.profiles) or DEFAULT_PROFILE
    return f"settings: {', '.join(files) or f'no file in {project}'}; profiles: {profiles}"
