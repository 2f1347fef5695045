"""Parts that other packages bring: their entry points, loaded and called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from opencqrs_py.errors import ExplainedError
from opencqrs_py.model.naming import listed
from opencqrs_py.processing.exceptions import one_line, raise_interrupt


@dataclass(frozen=True, slots=True)
class Registry:
    """A group of entry points.

    Attributes:
        group: Its name.
        setting: The setting that names an entry.
        protocol: What entries have to make: a protocol, or a class whose methods it must have.
        several: What messages call several entries of one name.
        unusable: Message for an entry that raises, with ``{}`` for its name.
        takes: What entries are called with.
        fix: What an entry that makes something else has to do.
        error: Makes the error of a code, what is wrong, where and how to fix it.
        code: The error's code.
    """

    group: str
    setting: str
    protocol: type
    several: str
    unusable: str
    takes: str
    fix: str
    error: Callable[[str, str, str, str], ExplainedError]
    code: str

    def make(self, entries: Sequence[EntryPoint], *arguments: object) -> Any:
        """Return what the only one of a name's entries makes, called with the arguments.

        Raises:
            ExplainedError: The registry's, if there are several entries, or if the entry cannot be used.
        """
        entry, *others = entries
        if others:
            what = f"{len(entries)} packages register {self.several} '{entry.name}'"
            shown = listed([each.value for each in entries])
            where = f"{self.setting}, entry points {shown}"
            raise self.error(self.code, what, where, "uninstall all but one of them")
        try:
            made = entry.load()(*arguments)
        except ExplainedError:
            raise
        except BaseException as error:
            raise_interrupt(error)
            what = f"{self.unusable.format(repr(entry.name))}: {one_line(error)}"
            fix = f"check that its package is complete, and that what it registers takes {self.takes}"
            raise self.refused(entry, what, fix) from error
        if missing := missing_methods(made, self.protocol):
            what = f"what '{entry.name}' registers returned {type(made).__name__}, which has no {listed(missing)}"
            raise self.refused(entry, what, self.fix)
        return made

    def refused(self, entry: EntryPoint, what: str, fix: str) -> ExplainedError:
        """Return the error of an entry that cannot be used."""
        place = f"{self.setting}, entry point {entry.name} = {entry.value} of {self.group}"
        return self.error(self.code, what, place, fix)


def missing_methods(part: object, protocol: type) -> list[str]:
    """Return the methods of a protocol that ``part``, an object or a class, does not have."""
    methods = (name for name, value in vars(protocol).items() if inspect.isfunction(value))
    return [name for name in methods if (not name.startswith("_") or name == "__call__") and not hasattr(part, name)]
