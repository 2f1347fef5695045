"""YAML files: entries with line and column, and every value as its text.

YAML's own guesses about types are switched off: ``no`` is the text ``no``, ``1:30`` is not a number and ``2024-01-01``
not a date; its setting decides what a text means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

import yaml

from opencqrs_py.config.entries import Entry, Nothing, Origin, Value
from opencqrs_py.config.problems import MOST_LEVELS, MOST_NODES, Code, Findings
from opencqrs_py.model.masking import holds_secret

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = frozenset({"~", "null", "Null", "NULL"})
_YAML_TAG = "tag:yaml.org,2002:"
_PLAIN_STYLES = frozenset({"", None})
_BRACKETS = re.compile(r"[\[{]")
_MARGIN = re.compile(rf"^[ \t?:-]{{{MOST_LEVELS}}}", re.MULTILINE)

_Pair: TypeAlias = tuple[yaml.ScalarNode, yaml.Node]


class _TooMuchError(Exception):
    """A file exceeds a limit, at a mark."""


class _TextLoader(_Loader):  # type: ignore[misc]
    """A loader that treats every plain scalar as text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


def yaml_documents(text: str, file: Origin, findings: Findings) -> list[list[Entry]]:
    """Return the entries of each document in ``text``; a broken file has none."""
    reader = _Reader(file, findings)
    try:
        if (mark := _too_deep(text)) is not None:
            what = f"it is nested deeper than {MOST_LEVELS} levels"
            findings.error(Code.TOO_MUCH, what, reader.at(mark), "write fewer levels")
            return []
        return [[*reader.document(root)] for root in [*yaml.compose_all(text, Loader=_TextLoader)]]
    except yaml.MarkedYAMLError as error:
        reader.broken(error, text)
    except yaml.reader.ReaderError as error:
        place = replace(file, line=text.count("\n", 0, error.position) + 1)
        findings.error(Code.FILE_UNREADABLE, f"it is not YAML: {error.reason}", place, "remove the character")
    except _TooMuchError as error:
        what, mark = error.args
        findings.error(Code.TOO_MUCH, what, reader.at(mark), "remove aliases, or divide the file")
    return []


def _too_deep(text: str) -> Any:
    """Return where ``text`` is nested too deeply, ``None`` if nowhere: the parser in C would overflow its stack.

    Most files are passed at a glance: each level needs a bracket, or a column of its line's margin.
    """
    if sum(1 for _ in islice(_BRACKETS.finditer(text), MOST_LEVELS)) < MOST_LEVELS and not _MARGIN.search(text):
        return None
    level = 0
    for event in yaml.parse(text, Loader=_TextLoader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            return event.start_mark
    return None


@dataclass(slots=True)
class _Reader:
    """Turns the nodes of one file into entries."""

    file: Origin
    findings: Findings
    _nodes: int = 0

    def broken(self, error: yaml.MarkedYAMLError, text: str) -> None:
        """Report that the file is not YAML, with a hint for known traps."""
        mark = error.problem_mark or error.context_mark
        line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
        if "${" in line and "{" in line.replace("${", ""):
            fix = "put the text with ${…} in quotes"
        elif "\t" in line:
            fix = "indent with spaces, not with tabs"
        else:
            fix = "check indentation, colons and quotes there"
        what = f"it is not YAML: {'; '.join(filter(None, (error.problem, error.context)))}"
        self.findings.error(Code.FILE_UNREADABLE, what, self.at(mark) if mark else self.file, fix)

    def at(self, mark: Any) -> Origin:
        """Return the place of a mark in the file."""
        return Origin(self.file.kind, self.file.place, mark.line + 1, mark.column + 1)

    def document(self, root: yaml.Node) -> Iterator[Entry]:
        """Yield the entries of a document."""
        if isinstance(root, yaml.MappingNode):
            yield from self._entries(root, (), (), ())
        elif not (isinstance(root, yaml.ScalarNode) and _scalar(root) in {None, Nothing.EMPTY}):
            fix = "begin with a key, as in opencqrs:"
            self.findings.error(Code.WRONG_SHAPE, "the file holds no keys", self.at(root.start_mark), fix)

    def _entries(
        self, node: yaml.Node, key: tuple[str, ...], places: tuple[Origin, ...], ancestors: tuple[int, ...]
    ) -> Iterator[Entry]:
        origin = self.at(node.start_mark)
        if key and not node.tag.startswith(_YAML_TAG):
            self._refuse_tag(node, key)
            return
        if isinstance(node, yaml.ScalarNode):
            yield Entry(key, _scalar(node), origin, places)
        elif isinstance(node, yaml.SequenceNode):
            self._count(node)
            if tagged := [item for item in node.value if not item.tag.startswith(_YAML_TAG)]:
                for item in tagged:
                    self._refuse_tag(item, key)
                return
            is_flat = all(isinstance(item, yaml.ScalarNode) for item in node.value)
            yield Entry(key, tuple(map(_scalar, node.value)) if is_flat else Nothing.NESTED_LIST, origin, places)
        elif len(key) > MOST_LEVELS or (not node.value and key):  # a key that is too long is refused when it is bound
            yield Entry(key, Nothing.SECTION, origin, places)
        else:
            for name, value in self._pairs(node, ancestors).values():
                inside = (*key, name.value), (*places, self.at(name.start_mark)), (*ancestors, id(node))
                yield from self._entries(value, *inside)

    def _refuse_tag(self, node: yaml.Node, key: tuple[str, ...]) -> None:
        """Report a tag that is not known; one alone is a text without quotes, which may be secret."""
        what, fix = f"the YAML tag {node.tag} is not known", "remove the tag, or put the text in quotes"
        if holds_secret(key[-1]) or not node.value:
            what, fix = "a text that begins with ! is not in quotes", "put it in quotes"
        self.findings.error(Code.FILE_UNREADABLE, what, self.at(node.start_mark), fix)

    def _pairs(self, node: yaml.Node, ancestors: tuple[int, ...]) -> dict[str, _Pair]:
        """Return the keys with their values, those of ``<<`` where the mapping does not have them itself."""
        if id(node) in ancestors:
            what = "an alias refers to the node that contains it"
            self.findings.error(Code.WRONG_SHAPE, what, self.at(node.start_mark), "remove the alias")
            return {}
        self._count(node)
        if len(ancestors) > MOST_LEVELS:
            raise _TooMuchError(f"more than {MOST_LEVELS} sections merge each other with <<", node.start_mark)
        pairs: dict[str, _Pair] = {}
        inherited: list[yaml.Node] = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                what = "a key is a list or a section"
                self.findings.error(Code.WRONG_SHAPE, what, self.at(key.start_mark), "write a text as key")
            elif key.value == "<<" and key.style in _PLAIN_STYLES:
                inherited += self._merged(value.value if isinstance(value, yaml.SequenceNode) else [value])
            elif key.value in pairs:
                first = pairs[key.value][0].start_mark.line + 1
                what = f"the key {key.value} appears twice, first in line {first}"
                fix = "remove one of them, or put them together"
                self.findings.error(Code.SET_TWICE, what, self.at(key.start_mark), fix)
            else:
                pairs[key.value] = (key, value)
        for mapping in inherited:
            pairs = self._pairs(mapping, (*ancestors, id(node))) | pairs
        return pairs

    def _merged(self, nodes: list[yaml.Node]) -> Iterator[yaml.MappingNode]:
        """Yield the sections among the values of ``<<``; report a text or a list, but not a section left empty."""
        for node in nodes:
            if isinstance(node, yaml.MappingNode):
                yield node
            elif not (isinstance(node, yaml.ScalarNode) and _scalar(node) in {None, Nothing.EMPTY}):
                is_name = isinstance(node, yaml.ScalarNode)
                what = f"<< is followed by {f'the text {node.value}' if is_name else 'a list'}, not by a section"
                fix = f"put a * before the name of an anchor{', without quotes' if is_name else ''}"
                self.findings.error(Code.WRONG_SHAPE, what, self.at(node.start_mark), fix)

    def _count(self, node: yaml.Node) -> None:
        """Count what is in a collection, as often as it is used, up to the limit."""
        self._nodes += 1 + len(node.value)
        if self._nodes > MOST_NODES:
            what = f"it holds more than {MOST_NODES:,} keys and values, those that aliases repeat included"
            raise _TooMuchError(what, node.start_mark)


def _scalar(node: Any) -> Value:
    """Return the text of a scalar node; only plain scalars can be empty or null."""
    if node.style in _PLAIN_STYLES and not node.value:
        return Nothing.EMPTY
    if node.style in _PLAIN_STYLES and node.value in _NULLS:
        return None
    return node.value.rstrip("\n") if node.style in {"|", ">"} else node.value
