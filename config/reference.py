# ruff: noqa: INP001 a script
"""The reference of all settings, written from the models: sample file, JSON Schema, and a page for the documents.

``python config/reference.py [FOLDER]`` writes the three files, into this repository if no folder is given; a test says
when that is needed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from opencqrs_py.config.inheritance import Family
from opencqrs_py.config.keys import (
    FAMILIES,
    GROUPS,
    INLINE_JSON,
    JOBS,
    PREFIX,
    Index,
    Setting,
    SettingKind,
    index_of,
    kebab,
)
from opencqrs_py.config.schema import json_schema
from opencqrs_py.config.settings import Settings
from opencqrs_py.config.value_types import written

_NAMES = {GROUPS: "<group>", JOBS: "<job>"}
_YAML_HEAD = """\
# yaml-language-server: $schema=application.schema.json
#
# Every setting with its built-in default: a file to copy from; every setting is optional.
# Made by: python config/reference.py
"""
_YAML_GROUPS = """\
    # Settings of single groups, by group name: all those of standard, each of them instead of the standard.
    groups: {}
    #  books:
    #    fetch: {subject: /books}
    #    life-cycle: {partitions: 2}
"""
_YAML_JOBS = """\
    # Settings of single jobs stand here by their name: all those of standard, each of them instead of the standard.
    #cleanup:
    #  triggers: {cron: 0 3 * * *, zone: Europe/Berlin}
    #  retry: {max-attempts: 5}
"""
_PAGE_HEAD = """\
# Settings

<!-- Made by: python config/reference.py -->

All keys are below `opencqrs`, in kebab, snake or camel case. Each setting of a group is looked up in this order: the
group's own (`event-handling.groups.<group>.…`), the standard (`event-handling.standard.…`), the built-in default.
`null` restores the built-in default. The same applies to jobs: `jobs.<job>.…`, then
`jobs.standard.…`, then the built-in default.

"""
_VALUES = """\
## Values

| kind | how it is written |
| --- | --- |
| true or false | `true` or `false`; also `yes`, `no`, `on`, `off`, `1`, `0` |
| whole number | digits, without a leading zero: `017` could be octal and is refused |
| number | digits, with a point if necessary: `1.5` |
| duration | with units (`2s`, `500ms`, `1m30s`; d, h, m, s, ms, us, ns) or in ISO-8601 (`PT10S`) |
| no limit | `infinite`, where it is allowed; also `unlimited`, `inf` |
| one of several words | in every spelling: `per_subject`, `per-subject`, `perSubject`, `PER_SUBJECT` |
| list | in YAML a list; elsewhere texts with commas, numbered keys (`import[0]`, `…__IMPORT__0`), or JSON |
| provider | the name that it has in its container; `Container.name` when several containers have that name |
| secret | as any value; it is shown as `***` |

A duration without a unit is refused, because it could mean seconds or milliseconds. `P1M`, which is a
month, and clock times such as `1:30` are refused, too. No setting is a size, so there is no kind of value for one.

Secrets are the password in a URL, values of keys whose name mentions a password, secret or token, and everything in
a folder of secrets. Names of groups and jobs are strings, even if YAML parses them as something else (`no`, `2024`).
A duplicate key is an error.
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
_JOBS_HEAD = """\
## Jobs

Below `jobs.standard` and below `jobs.<job>`. No job can be called `standard`.

| key | default | meaning |
| --- | --- | --- |
"""
_JOBS_FOOT = """\
At most one of `triggers.fixed-rate`, `triggers.fixed-delay` and `triggers.cron` applies. Two of them on one level, such
as two for one job, are refused; a job's own trigger replaces the standard's. A cron expression has five fields
(`0 3 * * *`: every day at three), or six with seconds first, or is one of `@hourly`, `@daily`, `@weekly`, `@monthly`,
`@yearly`; `-` means none. The seventh field of Quartz, for the year, is refused.
"""
_VARIABLES_HEAD = """\
## Variables

Each setting has a variable in two styles. The first separates names with `__`, which makes it unambiguous. The second,
the style of Spring Boot, drops the dashes. Write the name of a group or job in upper case,
with `_` for every character that is not a letter or digit. A whole section or list may be JSON.
An empty variable counts as unset.

In a key of `spark.conf` or `events.types`, `_` means a dot and capitals mean lower case, unless a lower source
names a key with these letters in full. So a variable in capitals cannot name a new key with a capital, a hyphen or an
underscore, such as `spark.sql.session.timeZone`: use a file, `--set`, or JSON
(`OPENCQRS__SPARK__CONF='{"spark.sql.session.timeZone": "UTC"}'`). A key that is not all in capitals keeps its letters
(`OPENCQRS__SPARK__CONF__spark_sql_session_timeZone`), and if it has a dot, its `-` and `_`, too.

| setting | variable | variable in the style of Spring Boot |
| --- | --- | --- |
"""


_PAGE_FOOT = f"""\
`{INLINE_JSON}` can hold any number of settings as one JSON object, in the environment, in `.env` or as a secret.
"""


def reference_files() -> dict[str, str]:
    """Return the content of each file of the reference by its path in the repository."""
    return {
        "config/application.yaml": application_yaml(),
        "config/application.schema.json": json.dumps(json_schema(), indent=2) + "\n",
        "docs/reference/settings.md": settings_page(),
    }


def write(folder: Path) -> None:
    """Write the files of the reference into the repository at ``folder``."""
    for name, text in reference_files().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def application_yaml() -> str:
    """Return a YAML file with every setting, its default, its unit, and one comment."""
    index = index_of(Settings)
    return f"{_YAML_HEAD}{PREFIX}:\n" + "".join(_yaml_section(index, index.root))


def settings_page() -> str:
    """Return the page of all settings and variables, in Markdown."""
    every = list(index_of(Settings).settings())
    general = [each for each in every if each.path[0] not in {GROUPS[0], JOBS[0]}]
    variables = [(each.path, each.kind) for each in general if not each.fact.in_documents_only]
    rows = {}
    for family in FAMILIES:
        inherited = [each for each in every if family.of_standard(each.path)]
        rows[family.named] = "".join(_setting_row(each, len(family.standard)) for each in inherited)
        for level in _levels(family):
            variables += [((*level, *family.of_standard(each.path)), each.kind) for each in inherited]
    return "\n".join(
        (
            _PAGE_HEAD + _VALUES,
            _GENERAL_HEAD + "".join(_setting_row(each, 0) for each in general),
            _GROUPS_HEAD + rows[GROUPS],
            _JOBS_HEAD + rows[JOBS],
            _JOBS_FOOT,
            _VARIABLES_HEAD + "".join(_variable_row(*each) for each in variables),
            _PAGE_FOOT,
        )
    )


def _levels(family: Family) -> tuple[tuple[str, ...], ...]:
    """Return the paths below which the settings of a family stand."""
    return family.standard, (*family.named, _NAMES[family.named])


def _yaml_section(index: Index, section: Setting) -> Iterator[str]:
    pad = "  " * (len(section.path) + 1)
    for child in (index.at((*section.path, name)) for name in section.names):
        name = kebab(child.path[-1])
        if child.path == GROUPS:
            yield _YAML_GROUPS
            continue
        yield f"{pad}# {_meaning(child)}\n"
        if child.kind is SettingKind.SECTION:
            yield f"{pad}{name}:\n"
            yield from _yaml_section(index, child)
        elif child.fact.in_documents_only:
            yield f"{pad}# {name}: prod and not (eu or us)\n"
        else:
            yield f"{pad}{name}: {_default(child)}\n"
    if section.path == JOBS:
        yield _YAML_JOBS


def _setting_row(setting: Setting, level: int) -> str:
    key = ".".join(map(kebab, setting.path[level:]))
    default = _default(setting)
    return f"| `{key}` | {'' if default == 'null' else f'`{default}`'} | {_meaning(setting)} |\n"


def _variable_row(path: tuple[str, ...], kind: SettingKind) -> str:
    names = [name.rstrip("_").upper() for name in path]
    if kind is SettingKind.MAP:
        names.append("<KEY>")
    first = "__".join([PREFIX.upper(), *names])
    second = "_".join([PREFIX.upper(), *(name.replace("_", "") for name in names)])
    return f"| `{'.'.join(map(kebab, path))}` | `{first}` | `{second}` |\n"


def _default(setting: Setting) -> str:
    return "{}" if setting.kind is SettingKind.MAP else written(setting.default, setting.fact)


def _meaning(setting: Setting) -> str:
    """Return what a setting is for, with its unit or its choices."""
    unit = f"One of {', '.join(setting.choices)}" if setting.choices else setting.fact.unit
    description = str(setting.info.description)
    return f"{description} {unit[0].upper()}{unit[1:]}." if unit else description


if __name__ == "__main__":
    write(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1])
