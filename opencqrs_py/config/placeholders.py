"""Placeholders: ``${key}`` and ``${key:default}``, nested, resolved against all sources."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from opencqrs_py.config.entries import Entry, Nothing, OriginKind, text_items
from opencqrs_py.config.keys import PREFIX, SettingKind, split_key
from opencqrs_py.config.problems import MOST_CHAINED, MOST_CHARACTERS, MOST_PLACEHOLDERS, Code, Findings
from opencqrs_py.model.masking import holds_secret
from opencqrs_py.model.naming import canonical, letters_and_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opencqrs_py.config.binding import Merged
    from opencqrs_py.config.entries import Origin, Value

_MARK = re.compile(r"\\\$\{|\$\{|[{}:]")


@dataclass(frozen=True, slots=True)
class Found:
    """The value of a placeholder."""

    text: str
    secret: bool = False  # by its place, a folder of secrets, or by its name
    values: frozenset[str] = frozenset()  # the secret parts of it


class PlaceholderError(Exception):
    """A placeholder cannot be resolved; the message names it, and never a value."""


def has_placeholder(text: str) -> bool:
    """Return whether ``text`` holds a placeholder, or one that is escaped."""
    return "${" in text


@dataclass(slots=True)
class Resolver:
    """Replaces the placeholders in the values of a load."""

    lookup: Callable[[str], Found | None]  # the unresolved text of a key
    left: int = MOST_PLACEHOLDERS  # how many may still be replaced, in all values together

    def value(self, value: object) -> tuple[object, frozenset[str]]:
        """Return a text, or each text of a tuple, with placeholders replaced, and the secret parts of it."""
        if isinstance(value, tuple):
            parts = [self.value(item) for item in value]
            return tuple(item for item, _ in parts), frozenset[str]().union(*(secrets for _, secrets in parts))
        found = self.text(value) if isinstance(value, str) and "${" in value else None
        return (found.text, found.values) if found else (value, frozenset())

    def text(self, text: str, stack: tuple[str, ...] = ()) -> Found:
        r"""Return ``text`` with its placeholders replaced; ``\${`` stands for ``${`` itself.

        The stack has the keys that are being resolved, and an empty name for surrounding text.

        Raises:
            PlaceholderError: A key is unknown and has no default, refers to itself, or its brace is not closed; or more
                would have to be replaced than is plausible.
        """
        if "${" not in text:
            return Found(text)
        if len(stack) >= MOST_CHAINED:
            raise PlaceholderError(f"more than {MOST_CHAINED} placeholders refer to each other in a chain")
        parts: list[str] = []
        found: list[Found] = []
        position = length = 0
        while (start := text.find("${", position)) >= 0:
            if start > 0 and text[start - 1] == "\\":
                parts += [text[position : start - 1], "${"]
                position = start + 2
                continue
            end, colon = _end_of(text, start)
            found.append(self._replaced(text[start + 2 : colon], text[colon + 1 : end] if colon < end else None, stack))
            parts += [text[position:start], found[-1].text]
            position, length = end + 1, length + len(found[-1].text)
            if length > MOST_CHARACTERS:
                raise PlaceholderError(f"it expands to more than {MOST_CHARACTERS:,} characters")
        values = frozenset[str]().union(*(each.values for each in found))
        return Found("".join((*parts, text[position:])), any(each.secret for each in found), values)

    def _replaced(self, written: str, default: str | None, stack: tuple[str, ...]) -> Found:
        """Return the value of a placeholder, with ``written`` in its braces before the colon of its default."""
        self.left -= 1
        if self.left < 0:
            raise PlaceholderError(f"more than {MOST_PLACEHOLDERS:,} placeholders have to be replaced")
        name = self.text(written, (*stack, "")).text.strip()
        if name in stack:
            raise PlaceholderError(f"${{{written}}} refers to itself")
        found = self.lookup(name)
        if found is not None:
            inner = self.text(found.text, (*stack, name))
        elif default is None:
            raise PlaceholderError(f"there is no value for ${{{written}}}")
        else:
            inner = self.text(default, (*stack, ""))
        is_secret = found.secret if found is not None else bool(inner.text) and holds_secret(name)
        return Found(inner.text, secret=True, values=inner.values | {inner.text}) if is_secret else inner


def _end_of(text: str, start: int) -> tuple[int, int]:
    """Return the end of the placeholder that starts at ``start``, and the place of its colon, else its end again."""
    depth, colon = 0, len(text)
    for match in _MARK.finditer(text, start):
        mark, at = match.group(), match.start()
        if mark == ":":
            colon = min(colon, at) if depth == 1 else colon
        else:
            depth += -1 if mark == "}" else 1
        if depth == 0:
            return at, min(colon, at)
    raise PlaceholderError("a placeholder that begins with ${ is not closed by }")


@dataclass(slots=True)
class Lookup:
    """Looks up placeholders: settings, variables and the user's own keys."""

    environ: Mapping[str, str]  # by exact name
    merged: Merged  # whose own entries are found by the letters and digits of their names
    _by_letters: dict[str, Found] | None = None

    def __call__(self, name: str) -> Found | None:
        """Return the unresolved text of ``name``; ``None`` if there is none."""
        if name == "random.uuid":
            return Found(str(uuid4()))
        if name in self.environ:
            return Found(self.environ[name], holds_secret(name))
        if canonical(split_key(name)[0]) == PREFIX:
            path = self.merged.index.path_of(name, self.merged.names)
            bound = self.merged.winner(path) if path else None
            return _found(bound.value, bound.origin, bound.path[-1]) if bound else None
        if self._by_letters is None:
            found = [(entry, _found(entry.value, entry.origin, ".".join(entry.key))) for entry in self.merged.own]
            self._by_letters = {letters_and_digits("".join(entry.key)): each for entry, each in found if each}
        return self._by_letters.get(letters_and_digits(name))


def _found(value: Value, origin: Origin, key: str) -> Found | None:
    if value is None or isinstance(value, Nothing):
        return None
    text = ",".join(str(item) for item in value if item is not None) if isinstance(value, tuple) else str(value)
    return Found(text, origin.is_secret or holds_secret(key))


def resolve(merged: Merged, environ: Mapping[str, str], findings: Findings) -> None:
    """Resolve the winning value of each setting; one that cannot be resolved is reported and left out."""
    resolver = Resolver(Lookup(environ, merged))
    for bound in merged.winners():
        try:
            value, secrets = resolver.value(bound.value)
        except PlaceholderError as error:
            _report(error, merged.index.display(bound.path), bound.origin, findings)
            continue
        is_list = isinstance(value, str | tuple) and merged.index.at(bound.path).kind is SettingKind.LIST
        merged.values[bound.path] = list(text_items(value)) if is_list else value
        if bound.origin.kind is OriginKind.SECRET:
            secrets |= {str(value)}
        if secrets:
            merged.secrets[bound.path] = secrets


def resolved_items(
    entry: Entry, key: str, lookup: Callable[[str], Found | None], findings: Findings
) -> tuple[str, ...]:
    """Return the items of the list ``key``, before all sources are known; report those that cannot be resolved."""
    items: list[str] = []
    for item in entry.value if isinstance(entry.value, tuple) else (entry.value,):
        try:
            items += text_items(Resolver(lookup).value(item)[0])
        except PlaceholderError as error:
            _report(error, key, entry.origin, findings)
    return tuple(items)


def _report(error: PlaceholderError, key: str, origin: Origin, findings: Findings) -> None:
    fix = r"set it, give it a default (${key:default}), or write \${ for the text itself"
    findings.profiles_unknown(Code.PLACEHOLDER, f"{key} cannot be resolved: {error}", origin, fix)
