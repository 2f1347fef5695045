"""YAML files: entries with line and column, and every value as the text that stands there.

YAML's own guesses about types are switched off: ``no`` is the text ``no``, ``1:30`` is no number and ``2024-01-01`` no
date; what a text means is decided by the setting that it is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

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
        return replace(self.file, line=mark.line + 1, column=mark.column + 1)

    def document(self, root: yaml.Node) -> Iterator[Entry]:
        """Yield the entries of a document."""
        if isinstance(root, yaml.MappingNode):
            yield from self._mapping(root, Entry((), None, self.file), ())
        elif not (isinstance(root, yaml.ScalarNode) and _scalar(root) in {None, Nothing.EMPTY}):
            fix = "begin with a key, as in opencqrs:"
            self.findings.error(Code.WRONG_SHAPE, "the file holds no keys", self.at(root.start_mark), fix)

    def _mapping(self, node: yaml.MappingNode, at: Entry, ancestors: tuple[int, ...]) -> Iterator[Entry]:
        if id(node) in ancestors:
            fix = "remove the alias"
            self.findings.error(Code.WRONG_SHAPE, "an alias refers to what it stands in", at.origin, fix)
            return
        for key, value in self._pairs(node):
            place = self.at(key.start_mark)
            below = Entry((*at.key, key.value), None, self.at(value.start_mark), (*at.key_origins, place))
            yield from self._node(value, below, (*ancestors, id(node)))
        if not node.value and at.key:
            yield replace(at, value=Nothing.SECTION)

    def _pairs(self, node: yaml.MappingNode) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        """Return the keys with their values, those of ``<<`` last, where the mapping does not have them itself."""
        pairs: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        inherited: list[yaml.MappingNode] = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                what = "a key is a list or a section"
                self.findings.error(Code.WRONG_SHAPE, what, self.at(key.start_mark), "write a text as key")
            elif key.value == _MERGE and key.style in _PLAIN_STYLES:
                inherited.extend(value.value if isinstance(value, yaml.SequenceNode) else [value])
            elif key.value in pairs:
                first = pairs[key.value][0].start_mark
                what = f"the key {key.value} stands there twice, first in line {first.line + 1}"
                self.findings.error(
                    Code.SET_TWICE, what, self.at(key.start_mark), "remove one of them, or put them together"
                )
            else:
                pairs[key.value] = (key, value)
        for mapping in inherited:
            if isinstance(mapping, yaml.MappingNode):
                pairs = {key.value: (key, value) for key, value in self._pairs(mapping)} | pairs
        return list(pairs.values())

    def _node(self, node: yaml.Node, at: Entry, ancestors: tuple[int, ...]) -> Iterator[Entry]:
        if not node.tag.startswith(_YAML_TAG):
            what = f"the YAML tag {node.tag} is not known"
            self.findings.error(Code.FILE_UNREADABLE, what, at.origin, "remove the tag, or put the text in quotes")
        elif isinstance(node, yaml.MappingNode):
            yield from self._mapping(node, at, ancestors)
        elif isinstance(node, yaml.SequenceNode):
            yield replace(at, value=_items(node))
        elif isinstance(node, yaml.ScalarNode):
            yield replace(at, value=_scalar(node))


def _items(node: yaml.SequenceNode) -> Value:
    if all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return tuple(_scalar(item) for item in node.value)
    return Nothing.NESTED_LIST


def _scalar(node: yaml.ScalarNode) -> Value:
    """Return the text of a scalar; only what is plain can be nothing or null."""
    if node.style in _PLAIN_STYLES and not node.value:
        return Nothing.EMPTY
    if node.style in _PLAIN_STYLES and node.value in _NULLS:
        return None
    return node.value.rstrip("\n") if node.style in _BLOCK_STYLES else node.value
