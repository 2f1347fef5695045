"""The JSON Schema of configuration files, for editors.

It offers kebab-case names, and accepts what the loader accepts: other spellings, dotted keys, ``null``, placeholders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter

from opencqrs_py.config.choices import SYNONYMS
from opencqrs_py.config.defaults import built_in
from opencqrs_py.config.names import PREFIX, kebab
from opencqrs_py.config.settings import Settings
from opencqrs_py.config.tree import Child, FreeNames, Leaf, ListLeaf, Node, Path, Section, fields_of, tree_of
from opencqrs_py.config.writing import written

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = ["json_schema"]

_DEFINITIONS = {
    "placeholder": {"type": "string", "pattern": r"\$\{"},
    "text": {"type": ["string", "number", "boolean", "null"]},
    "list": {"anyOf": [{"type": "array", "items": {"$ref": "#/definitions/text"}}, {"type": ["string", "null"]}]},
    "texts": {
        "type": ["object", "null"],
        "additionalProperties": {"type": ["string", "number", "boolean", "null", "object"]},
    },
}
_LIMITS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def json_schema(settings_class: type[Settings] = Settings) -> dict[str, Any]:
    """Return the JSON Schema (draft 07) of configuration files.

    Args:
        settings_class: Class of the settings, for users who add sections.
    """
    root = tree_of(settings_class)
    writer = _Writer(root)
    whole = writer.section(root, ())
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Settings of opencqrs_py",
        "type": "object",
        "properties": {PREFIX: whole},
        "definitions": {**_DEFINITIONS, **writer.sections},
    }


class _Writer:
    """Writes the schema of each node, that of a section once."""

    def __init__(self, root: Section) -> None:
        self._root = root
        self.sections: dict[str, dict[str, Any]] = {}

    def section(self, section: Section, path: Path) -> dict[str, Any]:
        """Return a reference to the schema of a section, which is in ``sections``."""
        name = section.model.__name__
        reference = f"#/definitions/{name}"
        if name not in self.sections:
            children = [child for child in section.children.values() if not child.former]
            several_words = [child.name for child in children if "_" in child.name.rstrip("_")]
            former = [child.former for child in section.children.values() if child.former]
            self.sections[name] = {
                "type": ["object", "null"],
                "properties": {
                    kebab(child.name): self._child(section, child, (*path, child.name)) for child in children
                },
                "patternProperties": {
                    **{
                        _other_spellings(name): {"$ref": f"{reference}/properties/{kebab(name)}"}
                        for name in several_words
                    },
                    **{f"^{name}$": {"deprecated": True} for name in former},
                    r"[.\[]": {},
                },
                "additionalProperties": False,
            }
        return {"$ref": reference}

    def _child(self, section: Section, child: Child, path: Path) -> dict[str, Any]:
        info = fields_of(section.model)[child.name]
        said = {"description": _described(child.node, info)} if info.description else {}
        match child.node:
            case Leaf() | ListLeaf() as node:
                return {**self._value(node, info), **said, **self._default(node, path)}
            case node:
                return {"allOf": [self._names(node, path)], **said}

    def _names(self, node: Section | FreeNames, path: Path) -> dict[str, Any]:
        if isinstance(node, Section):
            return self.section(node, path)
        if isinstance(node.value, Section):
            return {"type": ["object", "null"], "additionalProperties": self.section(node.value, (*path, "*"))}
        return {"$ref": "#/definitions/texts"}

    def _value(self, node: Leaf | ListLeaf, info: FieldInfo) -> dict[str, Any]:
        if isinstance(node, ListLeaf):
            return {"allOf": [{"$ref": "#/definitions/list"}]}
        return {"anyOf": [*_alternatives(node, info), {"$ref": "#/definitions/placeholder"}, {"type": "null"}]}

    def _default(self, node: Leaf | ListLeaf, path: Path) -> dict[str, Any]:
        value = built_in(self._root, path)
        if value is None and node.fact.none == "null":
            return {}
        return {"default": value if isinstance(value, bool | int | list) else written(value, node.fact)}


def _alternatives(node: Leaf, info: FieldInfo) -> list[dict[str, Any]]:
    """Return what a single value can be."""
    if node.choices:
        words = [*node.choices, *(other for other, choice in SYNONYMS.items() if choice in node.choices)]
        others = [spelling for word in words for spelling in (word.replace("_", "-"), _camel(word), word.upper())]
        return [
            {"enum": list(node.choices)},
            {"enum": [word for word in dict.fromkeys(others) if word not in node.choices]},
        ]
    annotation: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    schema = TypeAdapter(annotation).json_schema()
    return [
        {_LIMITS.get(key, key): value for key, value in option.items() if key not in {"title", "default"}}
        for option in schema.get("anyOf", [schema])
        if option != {"type": "null"}
    ]


def _described(node: Node, info: FieldInfo) -> str:
    unit = node.fact.unit if isinstance(node, Leaf | ListLeaf) else ""
    return f"{info.description} ({unit})" if unit else str(info.description)


def _camel(word: str) -> str:
    first, *rest = word.split("_")
    return first + "".join(part.title() for part in rest)


def _other_spellings(name: str) -> str:
    """Return a pattern of the spellings of a name of several words that are common in files."""
    first, *rest = name.rstrip("_").split("_")
    return f"^{''.join([first, *(f'[-_]?[{word[0]}{word[0].upper()}]{word[1:]}' for word in rest)])}$"
