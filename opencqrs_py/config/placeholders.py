"""Placeholders: ``${key}`` and ``${key:default}``, nested, resolved against all sources."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from opencqrs_py.config.entries import Entry, Nothing, text_items
from opencqrs_py.config.keys import PREFIX, FreeNames, SettingKind, split_key
from opencqrs_py.config.problems import MOST_CHAINED, MOST_CHARACTERS, MOST_PLACEHOLDERS, Code, Findings
from opencqrs_py.model.masking import holds_secret
from opencqrs_py.model.naming import canonical, letters_and_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opencqrs_py.config.binding import Merged
    from opencqrs_py.config.entries import Origin, Value
    from opencqrs_py.config.keys import Index, Path

_MARK = re.compile(r"\\\$\{|\$\{|[{}:]")


@dataclass(frozen=True, slots=True)
class Found:
    """The text that a placeholder stands for.

    Args:
        text: The text.
        secret: Whether it is secret by where it stands, a folder of secrets, or by its name.
        values: The secret parts of it.
    """

    text: str
    secret: bool = False
    values: frozenset[str] = frozenset()


class PlaceholderError(Exception):
    """A placeholder cannot be resolved; the message names it, and never a value."""


def has_placeholder(text: str) -> bool:
    """Return whether ``text`` holds a placeholder, or one that is escaped."""
    return "${" in text


@dataclass(slots=True)
class Resolver:
    """Replaces the placeholders in the values of a load.

    Args:
        lookup: Returns the unresolved text of a key, ``None`` when there is no such key.
        left: How many placeholders may still be replaced, in all values together.
    """

    lookup: Callable[[str], Found | None]
    left: int = MOST_PLACEHOLDERS

    def value(self, value: object) -> tuple[object, frozenset[str]]:
        """Return a text, or each text of a tuple, with placeholders replaced, and the secret parts of it.

        Raises:
            PlaceholderError: As by :meth:`text`.
        """
        match value:
            case str(text) if has_placeholder(text):
                found = self.text(text)
                return found.text, found.values
            case tuple(items):
                parts = [self.value(item) for item in items]
                return tuple(item for item, _ in parts), frozenset[str]().union(*(secrets for _, secrets in parts))
            case _:
                return value, frozenset()

    def text(self, text: str, stack: tuple[str, ...] = ()) -> Found:
        r"""Return ``text`` with its placeholders replaced; ``\${`` stands for ``${`` itself.

        Args:
            text: Any text.
            stack: Keys that are being resolved, and what stands around in the text, as an empty name.

        Raises:
            PlaceholderError: A key is unknown and has no default, refers to itself, or its brace is not closed; or more
                would have to be replaced than can be wanted.
        """
        if len(stack) > MOST_CHAINED:
            msg = f"more than {MOST_CHAINED} placeholders refer to each other in a chain"
            raise PlaceholderError(msg)
        parts: list[str] = []
        secret, values, position, length = False, frozenset[str](), 0, 0
        while (start := text.find("${", position)) >= 0:
            if start > 0 and text[start - 1] == "\\":
                parts += [text[position : start - 1], "${"]
                position = start + 2
                continue
            end, colon = _end_of(text, start)
            found = self._replaced(text[start + 2 : end], colon - start - 2 if colon >= 0 else -1, stack)
            parts += [text[position:start], found.text]
            secret, values = secret or found.secret, values | found.values
            position, length = end + 1, length + len(found.text)
            if length > MOST_CHARACTERS:
                msg = f"it comes to more than {MOST_CHARACTERS:,} characters"
                raise PlaceholderError(msg)
        return Found("".join((*parts, text[position:])), secret, values)

    def _replaced(self, content: str, colon: int, stack: tuple[str, ...]) -> Found:
        """Return what a placeholder stands for, with ``content`` in its braces and its default after ``colon``."""
        self.left -= 1
        if self.left < 0:
            msg = f"more than {MOST_PLACEHOLDERS:,} placeholders have to be replaced"
            raise PlaceholderError(msg)
        written = content if colon < 0 else content[:colon]
        name = self._inside(written, stack).text.strip()
        if name in stack:
            msg = f"${{{written}}} refers to itself"
            raise PlaceholderError(msg)
        found = self.lookup(name)
        if found is not None:
            inner = self.text(found.text, (*stack, name))
            return Found(inner.text, secret=True, values=inner.values | {inner.text}) if found.secret else inner
        if colon >= 0:
            return self._inside(content[colon + 1 :], stack)
        msg = f"nothing is known of ${{{written}}}"
        raise PlaceholderError(msg)

    def _inside(self, text: str, stack: tuple[str, ...]) -> Found:
        return self.text(text, (*stack, "")) if has_placeholder(text) else Found(text)


def _end_of(text: str, start: int) -> tuple[int, int]:
    """Return the end of the placeholder that starts at ``start``, and the place of its colon, or -1."""
    depth, colon = 0, -1
    for match in _MARK.finditer(text, start):
        match match.group():
            case "${" | "\\${" | "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return match.start(), colon
            case ":" if depth == 1 and colon < 0:
                colon = match.start()
            case _:
                pass
    msg = "a placeholder that begins with ${ is not closed by }"
    raise PlaceholderError(msg)


@dataclass(slots=True)
class Lookup:
    """Looks up placeholders: settings, variables and the user's own keys.

    Args:
        environ: Environment variables, by exact name.
        own: The user's own keys and variables, the highest last; found by the letters and digits of their names.
        index: All settings.
        names: Free names in use.
        merged: The settings; ``None`` while they are not known.
    """

    environ: Mapping[str, str]
    own: Iterable[Entry]
    index: Index
    names: FreeNames = field(default_factory=FreeNames)
    merged: Merged | None = None
    _texts: dict[str, Found] | None = None

    def __call__(self, name: str) -> Found | None:
        """Return the unresolved text of ``name``; ``None`` if there is none."""
        if name == "random.uuid":
            return Found(str(uuid4()))
        if name in self.environ:
            return Found(self.environ[name], holds_secret(name))
        if canonical(split_key(name)[0]) == PREFIX:
            return self._setting(name)
        if self._texts is None:
            self._texts = {_letters(entry): found for entry in self.own if (found := _found(entry)) is not None}
        return self._texts.get(letters_and_digits(name))

    def _setting(self, name: str) -> Found | None:
        path = self.index.path_of(name, self.names)
        bound = self.merged.winner(path) if path and self.merged else None
        text = _text(bound.value) if bound else None
        return (
            None
            if bound is None or text is None
            else Found(text, bound.origin.is_secret or holds_secret(bound.path[-1]))
        )


def _letters(entry: Entry) -> str:
    return letters_and_digits(".".join(".".join(pieces) for pieces in entry.pieces))


def _found(entry: Entry) -> Found | None:
    text = _text(entry.value)
    return None if text is None else Found(text, entry.origin.is_secret or holds_secret(".".join(entry.key)))


def _text(value: Value) -> str | None:
    match value:
        case None | Nothing():
            return None
        case tuple():
            return ",".join(str(item) for item in value if item is not None)
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The values that were set, ready to be validated.

    Args:
        values: Final value by path.
        secrets: What of a value is secret since a placeholder or a folder of secrets has brought it in, by path.
    """

    values: dict[Path, object] = field(default_factory=dict)
    secrets: dict[Path, frozenset[str]] = field(default_factory=dict)


def resolved_values(merged: Merged, lookup: Lookup, findings: Findings) -> Resolved:
    """Return the resolved value of each setting; one that cannot be resolved is reported and left out."""
    result, resolver = Resolved(), Resolver(lookup)
    for bound in merged.winners():
        try:
            value, secrets = resolver.value(bound.value)
        except PlaceholderError as error:
            _report(error, lookup.index.display(bound.path), bound.origin, findings)
            continue
        is_list = isinstance(value, str | tuple) and lookup.index.at(bound.path).kind is SettingKind.LIST
        result.values[bound.path] = list(text_items(value)) if is_list else value
        if bound.origin.is_secret:
            secrets |= {str(value)}
        if secrets:
            result.secrets[bound.path] = secrets
    return result


def resolved_items(
    entry: Entry, key: str, lookup: Callable[[str], Found | None], findings: Findings
) -> tuple[str, ...]:
    """Return the items of the list ``key``, before all sources are known; report those that cannot be resolved."""
    items: list[str] = []
    for item in entry.value if isinstance(entry.value, tuple) else (entry.value,):
        try:
            value, _ = Resolver(lookup).value(item)
        except PlaceholderError as error:
            _report(error, key, entry.origin, findings)
        else:
            items.extend(text_items(value))
    return tuple(items)


def _report(error: PlaceholderError, key: str, origin: Origin, findings: Findings) -> None:
    fix = r"set it, give it a default (${key:default}), or write \${ for the text itself"
    findings.error(Code.PLACEHOLDER, f"{key} cannot be resolved: {error}", origin, fix)
