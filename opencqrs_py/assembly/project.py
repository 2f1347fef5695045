"""A project folder before anything of it is imported: its settings and its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opencqrs_py.assembly.sources import Scan, scan_project
from opencqrs_py.config import Configuration, ConfigurationWarning, load
from opencqrs_py.config.problems import GroupWithoutHandlerWarning
from opencqrs_py.model.naming import canonical

__all__ = ["Project", "read_project"]


@dataclass(frozen=True, slots=True)
class Project:
    """What is known of a project without importing its modules.

    Attributes:
        folder: The project folder.
        configuration: Its settings; bound for the groups that its files name.
        scan: Its Python files.
    """

    folder: Path
    configuration: Configuration
    scan: Scan


def read_project(
    folder: Path,
    *,
    profiles: Sequence[str] = (),
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Project:
    """Read the settings of a project folder and look through its files.

    Args:
        folder: The folder.
        profiles: Active profiles.
        overrides: ``key=value`` pairs that win over everything else.
        environ: Environment variables; ``None`` for the process's own.

    Raises:
        ConfigurationErrors: With all that is wrong in the settings.
    """
    scans: list[Scan] = []

    def groups(modules: Sequence[str], exclude: Sequence[str]) -> Mapping[str, str]:
        scans.append(scan_project(folder, modules, exclude))
        spelled: dict[str, str] = {}  # two spellings of one name are refused when it is known that both are handlers
        return {
            name: place for name, place in scans[-1].groups.items() if spelled.setdefault(canonical(name), name) == name
        }

    loaded = load(folder, profiles=profiles, overrides=overrides, environ=environ, groups=groups)
    scan = scans[-1]
    known = [w for w in loaded.warnings if scan.all_named or not isinstance(w, GroupWithoutHandlerWarning)]
    return Project(folder, replace(loaded, warnings=(*known, *_unmatched(loaded, scan))), scan)


def _unmatched(configuration: Configuration, scan: Scan) -> list[ConfigurationWarning]:
    where = str(configuration.origin("discovery.exclude"))
    fix = "write a path below the project folder, or the name of a module; * stands for any text"
    return [
        ConfigurationWarning("OCQ-529", f"discovery.exclude: '{pattern}' matches no file, folder or module", where, fix)
        for pattern in scan.unmatched
    ]
