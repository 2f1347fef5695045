"""The project's code as a process has loaded it: by it a worker sees that it would handle events by other code.

Workers import the project's files when they start, which may be days after the run did. The modules are compared by
name and by what their source does, not by place or file: a cluster has them in an archive.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from opencqrs_py.assembly.blueprint import UserModules
from opencqrs_py.assembly.code.fingerprint import OwnModules
from opencqrs_py.assembly.code.normalised_source import imports_in, normalised, parsed
from opencqrs_py.errors import CodeChangedError

_DIGITS = 16  # hexadecimal ones of a hash that are kept

_digests: dict[str, tuple[ModuleSpec, str]] = {}
"""The code of each module as of its first check, soon after its import; a reload gives another spec."""


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """What the modules of a project do, as far as a process had loaded them.

    Attributes:
        digests: Name and digest of each.
    """

    digests: tuple[tuple[str, str], ...] = ()

    def check(self) -> None:
        """Compare the modules that this process has loaded, too. Runs once per worker and group, or job.

        Raises:
            CodeChangedError: OCQ-545, if one of them does something else here.
        """
        others = [sys.modules[name] for name, digest in self.digests if _digest_of(name) not in ("", digest)]
        if not others:
            return
        files = [str(module.__file__) for module in others]
        names = ", ".join(Path(file).name for file in files)
        what = f"files of the project changed since the run started, and this worker has loaded the new ones: {names}"
        fix = "restart the process; on a cluster, have the same version of the project on all executors"
        raise CodeChangedError("OCQ-545", what, ", ".join(files), fix)


NO_CODE = LoadedCode()
"""Of a process whose code is compared with that of no other."""


def loaded_code(modules: UserModules) -> LoadedCode:
    """Return what the modules of a project do that this process has loaded."""
    found = ((name, _digest_of(name)) for name in sorted(_own_names(modules)))
    return LoadedCode(tuple((name, digest) for name, digest in found if digest))


def _own_names(modules: UserModules) -> Iterator[str]:
    own, tops = OwnModules(modules.names, modules.roots), {name.partition(".")[0] for name in modules.names}
    roots = tuple({place for root in modules.roots if root for place in (root, str(Path(root).resolve()))})
    for name, module in tuple(sys.modules.items()):
        spec = _spec_of(name, module)
        if spec is None or not spec.origin:
            continue
        if (name.partition(".")[0] in tops or spec.origin.startswith(roots)) and own.include(name, spec):
            yield name


def _spec_of(name: str, module: ModuleType) -> ModuleSpec | None:
    """Return how a module was found by its name, ``None`` for one that was not, such as the program's main one."""
    spec: ModuleSpec | None = getattr(module, "__spec__", None)
    return spec if isinstance(spec, ModuleSpec) and spec.name == name else None


def _digest_of(name: str) -> str:
    """Return what identifies what a module does; empty if it is not loaded, or has no source."""
    spec = _spec_of(name, sys.modules[name]) if name in sys.modules else None
    if spec is None:
        return ""
    known = _digests.get(name)
    if known is None or known[0] is not spec:
        _digests[name] = known = (spec, _digest(_texts_of(name, spec)))
    return known[1]


def _texts_of(name: str, spec: ModuleSpec) -> Sequence[str]:
    """Return the texts of what a module does, none if there is no source, or it is not what was imported."""
    loader: Any = spec.loader
    try:
        tree = parsed(loader.get_source(name))
    except Exception:  # of any loader
        return ()
    return [normalised(tree), *sorted(map(ast.unparse, imports_in(tree)))]


def _digest(texts: Sequence[str]) -> str:
    return sha256(chr(0).join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS] if texts else ""
