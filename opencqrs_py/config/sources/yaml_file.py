"""YAML files: entries with line and column, and every value as the text that stands there.

YAML's own guesses about types are switched off: ``no`` is the text ``no``, ``1:30`` is no number and ``2024-01-01`` no
date; what a text means is decided by the setting that it is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import yaml

from opencqrs_py.config.entries import Entry, Nothing, Value
from opencqrs_py.config.origin import Origin
from opencqrs_py.config.problems import Code, Findings

__all__ = ["yaml_documents"]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = frozenset({"~", "null", "Null", "NULL"})
_YAML_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_PLAIN_STYLES = frozenset({"", None})
_BLOCK_STYLES = frozenset({"|", ">"})


_Pair: TypeAlias = tuple[yaml.ScalarNode, yaml.Node]


class _TextLoader(_Loader):  # type: ignore[misc]
    """A loader that takes every plain scalar for text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


def yaml_documents(text: str, file: Origin, findings: Findings) -> list[list[Entry]]:
    """Return the entries of each document in ``text``.

    Args:
        text: Content of the file.
        file: The file, without a line.
        findings: Takes the problems; a broken file has no documents.
    """
    reader = _Reader(file, findings)
    try:
        roots = list(yaml.compose_all(text, Loader=_TextLoader))
    except yaml.MarkedYAMLError as error:
        reader.broken(error, text)
        return []
    except yaml.reader.ReaderError as error:
        place = replace(file, line=text.count("\n", 0, error.position) + 1)
        findings.error(Code.FILE_UNREADABLE, f"it is no YAML: {error.reason}", place, "remove the character")
        return []
    return [list(reader.document(root)) for root in roots]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns the nodes of one file into entries."""

    file: Origin
    findings: Findings

    def broken(self, error: yaml.MarkedYAMLError, text: str) -> None:
        """Note that the file is no YAML, with a hint where a known trap was stepped into."""
        mark = error.problem_mark or error.context_mark
        place = self.at(mark) if mark else self.file
        line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
        if "${" in line and "{" in line.replace("${", ""):
            fix = "put the text with ${…} in quotes"
        elif "\t" in line:
            fix = "indent with spaces, not with tabs"
        else:
            fix = "check indentation, colons and quotes there"
        what = "; ".join(filter(None, (error.problem, error.context)))
        self.findings.error(Code.FILE_UNREADABLE, f"it is no YAML: {what}", place, fix)

    def at(self, mark: Any) -> Origin:
        """Return the place of a mark in the file."""
        return Origin(self.file.kind, self.file.place, mark.line + 1, mark.column + 1)

    def document(self, root: yaml.Node) -> Iterator[Entry]:
        """Yield the entries of a document."""
        if isinstance(root, yaml.MappingNode):
            yield from self._mapping(root, (), (), ())
        elif not (isinstance(root, yaml.ScalarNode) and _scalar(root) in {None, Nothing.EMPTY}):
            fix = "begin with a key, as in opencqrs:"
            self.findings.error(Code.WRONG_SHAPE, "the file holds no keys", self.at(root.start_mark), fix)

    def _mapping(
        self, node: yaml.MappingNode, key: tuple[str, ...], places: tuple[Origin, ...], ancestors: tuple[int, ...]
    ) -> Iterator[Entry]:
        if not node.value and key:
            yield Entry(key, Nothing.SECTION, self.at(node.start_mark), places)
        inside = (*ancestors, id(node))
        for name, value in self._pairs(node, ancestors):
            yield from self._node(value, (*key, name.value), (*places, self.at(name.start_mark)), inside)

    def _pairs(self, node: yaml.MappingNode, ancestors: tuple[int, ...]) -> list[_Pair]:
        """Return the keys with their values, those of ``<<`` where the mapping does not have them itself."""
        if id(node) in ancestors:
            what = "an alias refers to what it stands in"
            self.findings.error(Code.WRONG_SHAPE, what, self.at(node.start_mark), "remove the alias")
            return []
        pairs: dict[str, _Pair] = {}
        inherited: list[yaml.Node] = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                what = "a key is a list or a section"
                self.findings.error(Code.WRONG_SHAPE, what, self.at(key.start_mark), "write a text as key")
            elif key.value == _MERGE and key.style in _PLAIN_STYLES:
                inherited.extend(value.value if isinstance(value, yaml.SequenceNode) else [value])
            elif key.value in pairs:
                first = pairs[key.value][0].start_mark.line + 1
                what = f"the key {key.value} stands there twice, first in line {first}"
                fix = "remove one of them, or put them together"
                self.findings.error(Code.SET_TWICE, what, self.at(key.start_mark), fix)
            else:
                pairs[key.value] = (key, value)
        for mapping in inherited:
            if isinstance(mapping, yaml.MappingNode):
                more = self._pairs(mapping, (*ancestors, id(node)))
                pairs = {key.value: (key, value) for key, value in more} | pairs
        return list(pairs.values())

    def _node(
        self, node: yaml.Node, key: tuple[str, ...], places: tuple[Origin, ...], ancestors: tuple[int, ...]
    ) -> Iterator[Entry]:
        if not node.tag.startswith(_YAML_TAG):
            what, fix = f"the YAML tag {node.tag} is not known", "remove the tag, or put the text in quotes"
            self.findings.error(Code.FILE_UNREADABLE, what, self.at(node.start_mark), fix)
        elif isinstance(node, yaml.MappingNode):
            yield from self._mapping(node, key, places, ancestors)
        elif isinstance(node, yaml.SequenceNode):
            yield Entry(key, _items(node), self.at(node.start_mark), places)
        else:
            yield Entry(key, _scalar(node), self.at(node.start_mark), places)


def _items(node: yaml.SequenceNode) -> Value:
    if all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return tuple(_scalar(item) for item in node.value)
    return Nothing.NESTED_LIST


def _scalar(node: Any) -> Value:
    """Return the text of a scalar node; only what is plain can be nothing or null."""
    if node.style in _PLAIN_STYLES and not node.value:
        return Nothing.EMPTY
    if node.style in _PLAIN_STYLES and node.value in _NULLS:
        return None
    return node.value.rstrip("\n") if node.style in _BLOCK_STYLES else node.value
