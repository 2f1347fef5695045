"""A project folder before anything is imported: its settings, its source files, and which of them to import."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from opencqrs_py.assembly.discovery.hidden_declarations import hides_declarations
from opencqrs_py.assembly.discovery.source_text import SourceText, read_source
from opencqrs_py.config import Configuration, ConfigurationWarning, load
from opencqrs_py.config.problems import Code, GroupWithoutHandlerWarning, JobWithoutCodeWarning
from opencqrs_py.config.profiles import DEFAULT_PROFILE
from opencqrs_py.config.unread_files import has_settings
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.naming import canonical

MOST_ENTRIES = 20_000  # files and folders that are searched: 12,000 files took 0.8 s
_SKIPPED = {
    "build": "what a build has made",
    "dist": "what a build has made",
    "node_modules": "packages of JavaScript",
    "tests": "tests",
    "venv": "a virtual environment",
}
_SETTINGS = ("application.yaml", "application.yml", "application.toml", "application.properties", "pyproject.toml")
_USES_NOTHING = "it uses no decorator of opencqrs_py and no dependency_injector, and imports no file that does"


@dataclass(frozen=True, slots=True)
class SourceModule:
    """A Python file of the project.

    Attributes:
        name: Dotted module name.
        path: The file; of a module that lies elsewhere, its name.
        root: Folder that must be on ``sys.path`` to import it.
    """

    name: str
    path: Path
    root: Path


@dataclass(frozen=True, slots=True)
class SkippedPath:
    """A file or folder that is not imported, and why."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class Scan:
    """What lies in a project folder.

    Attributes:
        modules: The modules to import, in the order in which their handlers run.
        skipped: Everything that was skipped.
        files: Every Python file that a handler may import; they travel to the executors of a cluster.
        groups: Groups that handlers name as literals or constants of their file, each with its first place.
        all_named: Whether that is every group; else some names are known by an import only.
        containers: Whether the project uses dependency-injector.
        unmatched: Patterns of ``discovery.exclude`` that match nothing.
        lost: Files with handlers, jobs or the like that are not imported and probably should be, each with the reason.
        settings: Files in folders of modules that are named and look like files of settings.
        complete: Whether everything was searched; ``False`` if there is too much.
        may_have_jobs: Whether a module may have jobs; an import tells.
    """

    modules: tuple[SourceModule, ...] = ()
    skipped: tuple[SkippedPath, ...] = ()
    files: tuple[SourceModule, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    all_named: bool = True
    containers: bool = False
    unmatched: tuple[str, ...] = ()
    lost: tuple[SkippedPath, ...] = ()
    settings: tuple[Path, ...] = ()
    complete: bool = True
    may_have_jobs: bool = True

    @property
    def roots(self) -> tuple[str, ...]:
        """Folders that must be on ``sys.path``."""
        return tuple(dict.fromkeys(str(module.root) for module in (*self.modules, *self.files)))

    @property
    def passed_over(self) -> tuple[SkippedPath, ...]:
        """The files that were skipped although they have handlers, jobs or the like."""
        files = (each for each in self.skipped if each.path.suffix == ".py" and each.path.is_file())
        return tuple(each for each in files if read_source(each.path, "").has_code_to_run)

    def check(self, project: Path) -> None:
        """Refuse what an import would silently get wrong.

        Raises:
            AssemblyError: OCQ-518, if two files are one module; OCQ-527, if the project was too large to search.
        """
        if not self.complete:
            what = f"the project folder holds more than {MOST_ENTRIES:,} files and folders, so not all were scanned"
            fix = "name the modules with handlers in discovery.modules, or folders to leave out in discovery.exclude"
            raise AssemblyError("OCQ-527", what, str(project), fix)
        first: dict[str, Path] = {}
        for module in self.modules:
            if (known := first.setdefault(module.name, module.path)) != module.path:
                what = f"two files of the project are module '{module.name}', and only one of them can be imported"
                fix = "rename one, or name the one that is not meant in discovery.exclude"
                raise AssemblyError("OCQ-518", what, f"{known} and {module.path}", fix)


def scan_project(project: Path, modules: Sequence[str] = (), exclude: Sequence[str] = ()) -> Scan:
    """Search a project folder.

    All Python files are searched, except hidden folders, virtual environments, builds, tests, folders that are
    projects of their own, and what is excluded. A file counts that uses a decorator of this package or
    dependency-injector, or imports a file that counts. Its module name is its path below ``src``, else below the
    project folder; folders need no ``__init__.py``.

    Args:
        project: The folder.
        modules: Names of the modules to import, instead of those that count.
        exclude: Patterns of paths below the project folder, or of module names.
    """
    look = _Look(project, tuple(exclude))
    files = tuple(look.files())
    texts = {file.path: read_source(file.path, file.name) for file in files}
    if modules:
        known = {file.name: file for file in files}
        chosen = [known.get(name, SourceModule(name, Path(name), project)) for name in modules]
        why = "discovery.modules does not name it"
    else:
        using = _using(files, texts)
        chosen = [file for file in files if file.path in using]
        why = _USES_NOTHING
    paths = {module.path for module in chosen}
    used = [texts[path] for path in dict.fromkeys(module.path for module in chosen) if path in texts]
    rest = [SkippedPath(file.path, why) for file in files if file.path not in paths]
    is_partial = len(used) != len(paths) or hides_declarations(used, texts.values())
    groups: dict[str, str] = {}
    for text in used:
        for name, line in text.groups:
            groups.setdefault(name, f"{text.path}:{line}")
    return Scan(
        tuple(chosen),
        tuple(sorted((*look.skipped, *rest), key=lambda each: each.path)),
        (*files, *look.left_out),
        groups,
        all_named=all(text.all_named for text in used) and not is_partial,
        containers=any(text.containers for text in used) or len(used) != len(paths),
        unmatched=tuple(pattern for pattern in exclude if pattern not in look.matched),
        lost=(*_below_named(modules, files, texts), *_in_no_package(project)),
        settings=tuple(look.settings),
        complete=look.complete,
        may_have_jobs=any(text.may_have_jobs for text in used) or is_partial,
    )


def _below_named(
    names: Sequence[str], files: Sequence[SourceModule], texts: Mapping[Path, SourceText]
) -> Iterator[SkippedPath]:
    """Yield the files with handlers or the like below each named package without any, unless they are named, too."""
    idle = {file.name for file in files if file.path.name == "__init__.py" and not texts[file.path].counts}
    for file in files:
        above = next((name for name in names if name in idle and file.name.startswith(f"{name}.")), "")
        if above and file.name not in names and texts[file.path].has_code_to_run:
            yield SkippedPath(file.path, f"discovery.modules names {above}, and not {file.name}")


def _in_no_package(project: Path) -> Iterator[SkippedPath]:
    file = project / "__init__.py"
    if _holds(project, file.name) and read_source(file, "").has_code_to_run:
        yield SkippedPath(file, "the folder of the project is not a package")


def _using(files: Sequence[SourceModule], texts: Mapping[Path, SourceText]) -> set[Path]:
    """Return the files that count."""
    new = [file for file in files if texts[file.path].counts]
    using: set[Path] = set()
    while new:
        using.update(file.path for file in new)
        names = {file.name for file in new}
        new = [f for f in files if f.path not in using and texts[f.path].imports_one_of(names)]
    return using


class _Look:
    """One walk through a project folder."""

    def __init__(self, project: Path, exclude: tuple[str, ...]) -> None:
        self.skipped: list[SkippedPath] = []
        self.left_out: list[SourceModule] = []
        self.matched: set[str] = set()
        self.settings: list[Path] = []
        self.complete = True
        self._project = project
        self._exclude = exclude
        self._entries = 0
        self._seen: set[str] = set()

    def files(self) -> Iterator[SourceModule]:
        """Yield the Python files to search: those of the project folder, then those of its ``src``."""
        source = self._project / "src"
        separate = source.is_dir() and not _holds(source, "__init__.py")
        yield from self._below(self._project, "", self._project, source if separate else None)
        if separate and not self._is_excluded(source, "src"):
            yield from self._below(source, "", source, None)

    def _below(self, folder: Path, package: str, root: Path, without: Path | None) -> Iterator[SourceModule]:
        for entry in self._listed(folder):
            path = Path(entry.path)
            if entry.name in _SETTINGS[:-1] and folder not in (self._project, self._project / "config"):
                self.settings.append(path)
            if path == without or not (entry.name.endswith(".py") or entry.is_dir()):
                continue
            stem = "" if entry.name == "__init__.py" else entry.name.removesuffix(".py")
            name = ".".join(filter(None, (package, stem)))
            if entry.is_dir():
                if not self._is_skipped(path, name):
                    yield from self._below(path, name, root, None)
            elif name:
                yield from self._file(SourceModule(name, path, root))

    def _listed(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                found = list(islice(entries, MOST_ENTRIES - self._entries + 1))
        except (FileNotFoundError, NotADirectoryError):  # which Path.is_dir() says of more since Python 3.14
            return []
        except OSError as error:
            self.skipped.append(SkippedPath(folder, f"it cannot be read ({error.strerror})"))
            return []
        self._entries += len(found)
        self.complete = self.complete and self._entries <= MOST_ENTRIES
        return sorted(found, key=lambda entry: entry.name) if self.complete else []

    def _file(self, file: SourceModule) -> Iterator[SourceModule]:
        if file.path.name.startswith((".", "test_")) or file.path.name in ("conftest.py", "setup.py"):
            self.skipped.append(SkippedPath(file.path, "it is hidden, a test or setup.py"))
        elif self._is_excluded(file.path, file.name):
            self.left_out.append(file)
            self.skipped.append(SkippedPath(file.path, "discovery.exclude names it"))
        else:
            yield file

    def _is_skipped(self, folder: Path, name: str) -> bool:
        if folder.name == "__pycache__":
            return True
        why = self._why_not(folder)
        if not why and self._is_excluded(folder, name):
            why = "discovery.exclude names it"
        if why:
            self.skipped.append(SkippedPath(folder, why))
        return bool(why)

    def _why_not(self, folder: Path) -> str:
        """Return why a folder is not searched, nothing if it is."""
        if folder.name.startswith("."):
            return "it is hidden"
        if (real := os.path.realpath(folder)) in self._seen:
            return "a link to a folder that is scanned"
        self._seen.add(real)
        if _holds(folder, "pyvenv.cfg"):
            return _SKIPPED["venv"]
        is_project = any(_holds(folder, name) for name in _SETTINGS) and folder.name != "config"
        if is_project and not _holds(folder, "__init__.py"):
            return "a separate project: it has settings"
        return _SKIPPED.get(folder.name, "")

    def _is_excluded(self, path: Path, name: str) -> bool:
        below = path.relative_to(self._project).as_posix()
        found = [p for p in self._exclude if fnmatchcase(below, p.rstrip("/")) or fnmatchcase(name, p)]
        self.matched.update(found)
        return bool(found)


def _holds(folder: Path, name: str) -> bool:
    """Return whether a folder holds a file; not if it cannot be listed, which is reported when it is listed."""
    try:
        return (folder / name).is_file()
    except PermissionError:
        return False


@dataclass(frozen=True, slots=True)
class Project:
    """What is known of a project without importing its modules.

    The settings are bound for the groups that its files name.
    """

    folder: Path
    configuration: Configuration
    scan: Scan

    @property
    def named_at(self) -> str:
        """Place of the setting that names the modules; empty if they were found."""
        key = "discovery.modules"
        return f"{key} ({self.configuration.origin(key)})" if self.configuration.settings.discovery.modules else ""


def read_project(
    folder: Path,
    *,
    profiles: Sequence[str] = (),
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Project:
    """Read the settings of a project folder and search its files; for the arguments see ``config.load``.

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
    unsure = () if scan.all_named else (GroupWithoutHandlerWarning, JobWithoutCodeWarning)
    known = [each for each in loaded.warnings if not isinstance(each, unsure) and not _may_be_of_a_job(each, scan)]
    warnings = (*known, *_unmatched(loaded, scan), *_lost(scan), *_unread(loaded, scan, folder))
    return Project(folder, replace(loaded, warnings=warnings), scan)


def _may_be_of_a_job(warning: ConfigurationWarning, scan: Scan) -> bool:
    """Return whether a group without handlers may be that of a job which events start; an import tells."""
    if not isinstance(warning, GroupWithoutHandlerWarning):
        return False
    from opencqrs_py.jobs.binding import GROUP_PREFIX  # noqa: PLC0415 only where such a group is warned of

    return warning.group.startswith(GROUP_PREFIX) and scan.may_have_jobs


def _unmatched(configuration: Configuration, scan: Scan) -> list[ConfigurationWarning]:
    where = str(configuration.origin("discovery.exclude"))
    fix = "write a path below the project folder, or the name of a module; * stands for any text"
    return [
        ConfigurationWarning("OCQ-529", f"discovery.exclude: '{pattern}' matches no file, folder or module", where, fix)
        for pattern in scan.unmatched
    ]


def _lost(scan: Scan) -> Iterator[ConfigurationWarning]:
    for file in scan.lost:
        what = f"a file with handlers, jobs or the like is not imported: {file.why}"
        fix = "name that module in discovery.modules, too; or move what it has to one that is imported"
        yield ConfigurationWarning("OCQ-529", what, str(file.path), fix)


def _unread(configuration: Configuration, scan: Scan, project: Path) -> Iterator[ConfigurationWarning]:
    """Yield a warning for each file of settings that lies beside modules, and not where settings are read."""
    for file in scan.settings:
        if file not in configuration.files and has_settings(file):
            shown = file.relative_to(project)
            what = f"{shown} is not read: settings are in the project's folder, or in its folder config"
            fix = f"move it there, name it in config.import, or run with --project {shown.parent}"
            yield ConfigurationWarning(Code.UNREAD_FILE.value, what, str(shown), fix)


def sources_line(configuration: Configuration, project: Path) -> str:
    """Return a line that names the files of settings that were read, and the active profiles."""
    files = (Path(file) for file in configuration.files)
    names = [str(file.relative_to(project) if file.is_relative_to(project) else file) for file in files]
    profiles = ", ".join(configuration.profiles) or DEFAULT_PROFILE
    return f"settings: {', '.join(names) or f'no file in {project}'}; profiles: {profiles}"
