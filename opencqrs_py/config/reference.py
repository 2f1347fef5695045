"""The reference of all settings, written from the models: sample file, JSON Schema, and a page for the documents.

``python -m opencqrs_py.config.reference FOLDER`` writes the three files anew; a test says when that is needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from opencqrs_py.config.defaults import built_in
from opencqrs_py.config.names import PREFIX, canonical, kebab
from opencqrs_py.config.schema import json_schema
from opencqrs_py.config.settings import Settings
from opencqrs_py.config.sources.variables import INLINE_JSON
from opencqrs_py.config.tree import Child, FreeNames, Leaf, ListLeaf, Path, Section, fields_of, leaves, node_at, tree_of
from opencqrs_py.config.value_types import NO_FACT
from opencqrs_py.config.writing import written

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["application_yaml", "reference_files", "settings_page", "write"]

_STANDARD: Path = ("event_handling", "standard")
_OF_GROUP: Path = ("event_handling", "groups", "<group>")

_YAML_HEAD = """\
# yaml-language-server: $schema=application.schema.json
#
# Every setting with its built-in default: a file to copy from, in which nothing needs to stand.
# Made by: python -m opencqrs_py.config.reference .
"""
_YAML_GROUPS = """\
    # Settings of single groups, by group name: all those of standard, each of them instead of the standard.
    groups: {}
    #  books:
    #    fetch: {subject: /books}
    #    life-cycle: {partitions: 2}
"""
_PAGE_HEAD = """\
# Settings

<!-- Made by: python -m opencqrs_py.config.reference . -->

All keys stand below `opencqrs` and may be written in kebab, snake or camel case. A group's setting is its own
(`event-handling.groups.<group>.…`), else the standard (`event-handling.standard.…`), else the built-in default,
setting by setting; `null` brings the built-in default back.

"""
_VALUES = """\
## Values

| kind | how it is written |
| --- | --- |
| true or false | `true` or `false`; also `yes`, `no`, `on`, `off`, `1`, `0` |
| whole number | digits, without a leading zero: `017` could be octal and is refused |
| number | digits, with a point if need be: `1.5` |
| duration | with units (`2s`, `500ms`, `1m30s`; d, h, m, s, ms, us, ns) or in ISO-8601 (`PT10S`) |
| no limit | `infinite`, where it is allowed; also `unlimited`, `inf` |
| one of several words | in every spelling: `per_subject`, `per-subject`, `perSubject`, `PER_SUBJECT` |
| list | in YAML a list; elsewhere texts with commas, numbered keys (`import[0]`, `…__IMPORT__0`), or JSON |
| provider | the name that it has in its container; `Container.name` when several containers have that name |
| secret | as any value; it is shown as `***` |

A duration without a unit is refused: some would take it for seconds, others for milliseconds. So are `P1M`, which is a
month, and clock times such as `1:30`. No setting is a size, so there is no kind of value for one.

Secrets are the password in a URL, values under keys that speak of a password, secret or token, and all that comes from
a folder of secrets. Group names are texts, whatever YAML takes them for (`no`, `2024`). A key that
stands twice in one place is an error.
"""
_GENERAL_HEAD = """\
## General

| key | default | meaning |
| --- | --- | --- |
"""
_GROUPS_HEAD = """\
## Processing groups

Below `event-handling.standard` and below `event-handling.groups.<group>`.

| key | default | meaning |
| --- | --- | --- |
"""
_VARIABLES_HEAD = """\
## Variables

Each setting has a variable in two styles. In the first, `__` stands between the names, so that nothing has to be
guessed; in the second, the style of Spring Boot, names lose their dashes. A group's name is in upper case, with `_` for
every character that is no letter and no digit; in a key of `spark.conf`, `_` stands for a dot. A whole section or list
may be JSON, and an empty variable is as good as none.

| setting | variable | variable in the style of Spring Boot |
| --- | --- | --- |
"""


_PAGE_FOOT = f"""\
`{INLINE_JSON}` holds any number of settings as one JSON object.
"""


def reference_files() -> dict[str, str]:
    """Return the content of each file of the reference by its path in the repository."""
    return {
        "config/application.yaml": application_yaml(),
        "config/application.schema.json": json.dumps(json_schema(), indent=2) + "\n",
        "docs/reference/settings.md": settings_page(),
    }


def write(folder: FilePath) -> None:
    """Write the files of the reference into the repository at ``folder``."""
    for name, text in reference_files().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def application_yaml() -> str:
    """Return a YAML file with every setting, its default, its unit, and one comment."""
    root = tree_of(Settings)
    return f"{_YAML_HEAD}{PREFIX}:\n" + "".join(_yaml_section(root, root, ()))


def settings_page() -> str:
    """Return the page of all settings and variables, in Markdown."""
    root = tree_of(Settings)
    paths = [path for path, _ in leaves(root)]
    general = [path for path in paths if path[0] != "event_handling"]
    of_groups = [path for path in paths if path[:2] == _STANDARD]
    variables = [path for path in general if not _is_of_documents(root, path)]
    variables += [(*level, *path[2:]) for level in (_STANDARD, _OF_GROUP) for path in of_groups]
    return "\n".join(
        (
            _PAGE_HEAD + _VALUES,
            _GENERAL_HEAD + "".join(_setting_row(root, path, 0) for path in general),
            _GROUPS_HEAD + "".join(_setting_row(root, path, 2) for path in of_groups),
            _VARIABLES_HEAD + "".join(_variable_row(root, path) for path in variables),
            _PAGE_FOOT,
        )
    )


def _yaml_section(root: Section, section: Section, path: Path) -> Iterator[str]:
    pad = "  " * (len(path) + 1)
    for child in section.children.values():
        below = (*path, child.name)
        if below == _OF_GROUP[:2]:
            yield _YAML_GROUPS
            continue
        yield f"{pad}# {_meaning(section, child)}\n"
        if isinstance(child.node, Section):
            yield f"{pad}{kebab(child.name)}:\n"
            yield from _yaml_section(root, child.node, below)
        elif _is_of_documents(root, below):
            yield f"{pad}# {kebab(child.name)}: prod and not (eu or us)\n"
        else:
            yield f"{pad}{kebab(child.name)}: {_default(root, below)}\n"


def _setting_row(root: Section, path: Path, level: int) -> str:
    section = node_at(root, path[:-1])
    child = section.children[canonical(path[-1])] if isinstance(section, Section) else None
    meaning = _meaning(section, child) if isinstance(section, Section) and child else ""
    key = ".".join(map(kebab, path[level:]))
    default = _default(root, path)
    return f"| `{key}` | {'' if default == 'null' else f'`{default}`'} | {meaning} |\n"


def _variable_row(root: Section, path: Path) -> str:
    names = [name.rstrip("_").upper() for name in path]
    if isinstance(node_at(root, path), FreeNames):
        names.append("<KEY>")
    first = "__".join([PREFIX.upper(), *names])
    second = "_".join([PREFIX.upper(), *(name.replace("_", "") for name in names)])
    return f"| `{'.'.join(map(kebab, path))}` | `{first}` | `{second}` |\n"


def _default(root: Section, path: Path) -> str:
    node = node_at(root, path)
    if isinstance(node, FreeNames):
        return "{}"
    return written(built_in(root, path), node.fact if isinstance(node, Leaf | ListLeaf) else NO_FACT)


def _meaning(section: Section, child: Child) -> str:
    """Return what a setting is for, with its unit or its choices."""
    node = child.node
    unit = node.fact.unit if isinstance(node, Leaf | ListLeaf) else ""
    unit = f"One of {', '.join(node.choices)}" if isinstance(node, Leaf) and node.choices else unit
    description = str(fields_of(section.model)[child.name].description)
    return f"{description} {unit[0].upper()}{unit[1:]}." if unit else description


def _is_of_documents(root: Section, path: Path) -> bool:
    node = node_at(root, path)
    return isinstance(node, ListLeaf) and node.fact.in_documents_only


if __name__ == "__main__":
    write(FilePath(sys.argv[1]))
