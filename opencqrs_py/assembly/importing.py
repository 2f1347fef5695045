"""Importing the user's modules: all of them, and everything that is wrong with them together."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from opencqrs_py.assembly.conditions import raise_together
from opencqrs_py.errors import AssemblyError, ExplainedError
from opencqrs_py.processing.exceptions import message_of, one_line, raise_interrupt, type_name

__all__ = ["import_modules"]


_IMPORT_FIX = "fix the line named, install what it imports, or name the module in discovery.exclude"
_UNTANGLE = "let one of the two modules not import the other: put what both need into a third one"
_OURS = Path(__file__).parents[1]


def import_modules(
    names: Sequence[str], roots: Iterable[Path], expected: Mapping[str, str] | None = None
) -> list[ModuleType]:
    """Import the user's modules.

    Args:
        names: Their names.
        roots: Folders from which they are imported.
        expected: The file of each, where it is known on this machine.

    Raises:
        HandlerSignatureError: If a decorator refuses what it is given.
        AssemblyError: OCQ-501, if one cannot be imported or ends the program; names the file and line that raised.
            OCQ-512, if another module of the same name stands in its way.
        AssemblyErrors: All of these, if there are several.
        KeyboardInterrupt: If Ctrl-C was pressed.
    """
    unique = list(dict.fromkeys(str(root) for root in roots))
    for root in unique:
        if root not in sys.path:
            sys.path.insert(0, root)
    importlib.invalidate_caches()
    modules: list[ModuleType] = []
    errors: dict[tuple[str, str], ExplainedError] = {}
    for name in names:
        try:
            modules.append(_imported(name, unique))
            _check_place(modules[-1], unique, (expected or {}).get(name, ""))
        except ExplainedError as error:
            where = error.where
            cause = one_line(error.__cause__) if error.__cause__ else error.what
            if error.fix == _UNTANGLE:  # each module of the circle fails, in a line of the other
                cause = where = _UNTANGLE
            errors.setdefault((cause, where), error)  # who imports a broken module fails like it
    raise_together(errors.values())
    return modules


def _imported(name: str, roots: Sequence[str]) -> ModuleType:
    try:
        return importlib.import_module(name)
    except SystemExit as error:
        what = f"module '{name}' ends the program when it is imported (SystemExit: {message_of(error)})"
        fix = 'put what is to run below if __name__ == "__main__":, or name the module in discovery.exclude'
        raise AssemblyError("OCQ-501", what, _raised_at(error, roots), fix) from error
    except ExplainedError as error:  # of a decorator, which does not know its line
        raise type(error)(error.code, error.what, error.where or _raised_at(error, roots), error.fix) from error
    except BaseException as error:  # an import runs the user's code; everything but Ctrl-C is that module's error
        raise_interrupt(error)
        what = f"module '{name}' cannot be imported ({type_name(error)}: {message_of(error)})"
        fix = _UNTANGLE if "circular import" in str(error) else _IMPORT_FIX
        raise AssemblyError("OCQ-501", what, _raised_at(error, roots), fix) from error


def _raised_at(error: BaseException, roots: Sequence[str]) -> str:
    """Return the innermost line of the project, else of anybody, that raised ``error``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    trace = error.__traceback__
    frames = [frame for frame in inspect.getinnerframes(trace) if "importlib" not in frame.filename] if trace else []
    if len(frames) <= 1:
        return str(getattr(error, "filename", None) or "")
    own = [frame for frame in frames if any(Path(frame.filename).is_relative_to(root) for root in roots)]
    ours = Path(frames[-1].filename).is_relative_to(_OURS)
    frame = own[-1] if own and (ours or isinstance(error, SystemExit)) else frames[-1]
    return f"{frame.filename}:{frame.lineno}"


def _check_place(module: ModuleType, roots: Sequence[str], expected: str) -> None:
    """Refuse a module that another of the same name hides, such as ``calendar``."""
    file = getattr(module, "__file__", None)
    if expected and Path(expected).exists():
        hidden = not file or Path(file).resolve() != Path(expected).resolve()
    else:
        hidden = any(roots) and not any(_lies_in(file, root) for root in roots)
    if hidden:
        what = f"module '{module.__name__}' of the project is hidden by another one of that name"
        raise AssemblyError("OCQ-512", what, file or "built in", "give the project's file another name")


def _lies_in(file: str | None, root: str) -> bool:
    return Path(file or "/").resolve().is_relative_to(Path(root).resolve())
