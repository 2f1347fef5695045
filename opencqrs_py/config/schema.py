"""The JSON Schema of configuration files, for editors.

It offers kebab-case names, and accepts what the loader accepts: other spellings, dotted keys, ``null``, placeholders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter

from opencqrs_py.config.choices import SYNONYMS
from opencqrs_py.config.keys import PREFIX, Index, Kind, Setting, index_of, kebab
from opencqrs_py.config.settings import Settings
from opencqrs_py.config.value_types import written

if TYPE_CHECKING:
    pass

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
    writer = _Writer()
    whole = writer.section(index_of(settings_class), index_of(settings_class).root)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Settings of opencqrs_py",
        "type": "object",
        "properties": {PREFIX: whole},
        "definitions": {**_DEFINITIONS, **writer.sections},
    }


class _Writer:
    """Writes the schema of each setting, that of a section once."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, Any]] = {}

    def section(self, index: Index, section: Setting) -> dict[str, Any]:
        """Return a reference to the schema of a section, which is in ``sections``."""
        name = section.model.__name__ if section.model else ""
        reference = f"#/definitions/{name}"
        if name not in self.sections:
            children = [index.at((*section.path, each)) for each in section.names]
            several_words = [each for each in section.names if "_" in each.rstrip("_")]
            former = [old for child in children for old in child.fact.formerly]
            self.sections[name] = {
                "type": ["object", "null"],
                "properties": {kebab(child.path[-1]): self._child(index, child) for child in children},
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

    def _child(self, index: Index, child: Setting) -> dict[str, Any]:
        said = {"description": _described(child)} if child.info and child.info.description else {}
        match child.kind:
            case Kind.SECTION:
                return {"allOf": [self.section(index, child)], **said}
            case Kind.MAP:
                return {"allOf": [self._names(child.below)], **said}
            case Kind.LIST:
                return {"allOf": [{"$ref": "#/definitions/list"}], **said, **_default(child)}
            case Kind.VALUE:
                options = [*_alternatives(child), {"$ref": "#/definitions/placeholder"}, {"type": "null"}]
                return {"anyOf": options, **said, **_default(child)}

    def _names(self, below: Index | None) -> dict[str, Any]:
        if below is not None and below.root.kind is Kind.SECTION:
            return {"type": ["object", "null"], "additionalProperties": self.section(below, below.root)}
        return {"$ref": "#/definitions/texts"}


def _default(setting: Setting) -> dict[str, Any]:
    value = setting.default
    if value is None and setting.fact.none == "null":
        return {}
    return {"default": value if isinstance(value, bool | int | list) else written(value, setting.fact)}


def _alternatives(setting: Setting) -> list[dict[str, Any]]:
    """Return what a single value can be."""
    if setting.choices:
        words = [*setting.choices, *(other for other, choice in SYNONYMS.items() if choice in setting.choices)]
        others = [spelling for word in words for spelling in (word.replace("_", "-"), _camel(word), word.upper())]
        return [
            {"enum": list(setting.choices)},
            {"enum": [word for word in dict.fromkeys(others) if word not in setting.choices]},
        ]
    info: Any = setting.info
    annotation: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    schema = TypeAdapter(annotation).json_schema()
    return [
        {_LIMITS.get(key, key): value for key, value in option.items() if key not in {"title", "default"}}
        for option in schema.get("anyOf", [schema])
        if option != {"type": "null"}
    ]


def _described(setting: Setting) -> str:
    description = setting.info.description if setting.info else ""
    return f"{description} ({setting.fact.unit})" if setting.fact.unit else str(description)


def _camel(word: str) -> str:
    first, *rest = word.split("_")
    return first + "".join(part.title() for part in rest)


def _other_spellings(name: str) -> str:
    """Return a pattern of the spellings of a name of several words that are common in files."""
    first, *rest = name.rstrip("_").split("_")
    return f"^{''.join([first, *(f'[-_]?[{word[0]}{word[0].upper()}]{word[1:]}' for word in rest)])}$"
