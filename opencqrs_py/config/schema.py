"""The JSON Schema of configuration files, for editors.

It offers kebab-case names, and accepts what the loader accepts: other spellings, dotted keys, ``null``, placeholders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from typing_extensions import override

from opencqrs_py.config.keys import PREFIX, SettingKind, index_of, kebab
from opencqrs_py.config.settings import Settings
from opencqrs_py.config.value_types import written
from opencqrs_py.model.choices import SYNONYMS

if TYPE_CHECKING:
    from pydantic_core import core_schema

    from opencqrs_py.config.keys import Setting

_MODEL = "x-model"
_REFERENCE = "#/definitions/{model}"
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
    """Return the JSON Schema (draft 07) of configuration files, with the sections that a user's class adds."""
    whole = settings_class.model_json_schema(ref_template=_REFERENCE, schema_generator=_SettingsSchema)
    generated = {**whole.pop("$defs", {}), settings_class.__name__: whole}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Settings of opencqrs_py",
        "type": "object",
        "properties": {PREFIX: {"$ref": _REFERENCE.format(model=settings_class.__name__)}},
        "definitions": {**_DEFINITIONS, **{name: _section(name, each) for name, each in generated.items()}},
    }


class _SettingsSchema(GenerateJsonSchema):
    """Pydantic's generator, with sections and values as files may have them."""

    @override
    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])  # defaults are written as in files, by `_property`

    @override
    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        words = [str(member.value) for member in schema["members"]]
        words += getattr(schema["cls"], "registered", tuple)()
        every = [*words, *(other for other, choice in SYNONYMS.items() if choice in words)]
        snakes = [word.replace("-", "_") for word in every]
        others = [other for word in snakes for other in (word, word.replace("_", "-"), _camel(word), word.upper())]
        return {"anyOf": [{"enum": words}, {"enum": [word for word in dict.fromkeys(others) if word not in words]}]}

    @override
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return {**super().model_schema(schema), _MODEL: schema["cls"]}

    @override
    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return {**super().dataclass_schema(schema), _MODEL: schema["cls"]}


def _section(name: str, generated: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a section as pydantic has generated it from its model; of a choice, the same."""
    model = generated.pop(_MODEL, None)
    if model is None:
        return generated
    settings = [index_of(model).at((name,)) for name in index_of(model).root.names]
    several_words = [each.path[0] for each in settings if "_" in each.path[0].rstrip("_")]
    former = [old for each in settings for old in each.fact.formerly]
    reference = f"{_REFERENCE.format(model=name)}/properties"
    return {
        "type": ["object", "null"],
        "properties": {each.key: _property(each, generated["properties"][each.path[0]]) for each in settings},
        "patternProperties": {
            **{_other_spellings(each): {"$ref": f"{reference}/{kebab(each)}"} for each in several_words},
            **{f"^{old}$": {"deprecated": True} for old in former},
            r"[.\[]": {},
        },
        "additionalProperties": _named(generated.get("additionalProperties")),
    }


def _named(generated: object) -> JsonSchemaValue | bool:
    """Return the schema of a section's entries with names of the user's choice: mostly none."""
    return {"anyOf": [generated, {"type": "null"}]} if isinstance(generated, dict) else False


def _property(setting: Setting, generated: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a setting, from what pydantic has generated for its field."""
    unit = f" ({setting.fact.unit})" if setting.fact.unit else ""
    said = {"description": f"{setting.info.description}{unit}"} if setting.info.description else {}
    generated = {name: value for name, value in generated.items() if name not in {"title", "description"}}
    match setting.kind:
        case SettingKind.SECTION:
            return {"allOf": [generated], **said}
        case SettingKind.MAP if "$ref" in generated.get("additionalProperties", {}):
            return {"allOf": [{**generated, "type": ["object", "null"]}], **said}
        case SettingKind.MAP:
            return {"allOf": [{"$ref": "#/definitions/texts"}], **said}
        case SettingKind.LIST:
            return {"allOf": [{"$ref": "#/definitions/list"}], **said, **_default(setting)}
        case SettingKind.VALUE:
            options = [
                {_LIMITS.get(name, name): value for name, value in option.items()}
                for option in generated.get("anyOf", [generated])
                if option != {"type": "null"}
            ]
            null = {"type": "null"}
            return {"anyOf": [*options, {"$ref": "#/definitions/placeholder"}, null], **said, **_default(setting)}


def _default(setting: Setting) -> dict[str, Any]:
    value = setting.default
    if value is None and setting.fact.none == "null":
        return {}
    return {"default": value if isinstance(value, bool | int | list) else written(value, setting.fact)}


def _camel(word: str) -> str:
    first, *rest = word.split("_")
    return first + "".join(part.title() for part in rest)


def _other_spellings(name: str) -> str:
    """Return a pattern of the spellings of a name of several words that are common in files."""
    first, *rest = name.rstrip("_").split("_")
    return f"^{''.join([first, *(f'[-_]?[{word[0]}{word[0].upper()}]{word[1:]}' for word in rest)])}$"
