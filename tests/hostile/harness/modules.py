"""Modules of handlers, written from attacks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from attacks.attack import Attack, Firing

from opencqrs_py.adapters.sql import Database

__all__ = ["AT", "SIZE", "TYPE", "Target", "expected_rows", "source_of"]

SIZE = 12
"""Events in the log, at positions 1 to 12, all of them wanted."""

AT = 5
"""Position of the event at which attacks fire: events of its chunk come before it and after it."""

TYPE = "counted.v1"

_ANNOTATIONS = {
    "raw": "Event",
    "metadata": "Metadata",
    "context": "ProcessingContext",
    "connection": "Connection",
    "session": "Session",
    "after_commit": "AfterCommit",
}
_DECORATED = "@event_handling(GROUP, types=TYPES)\n"
_PER_EVENT = ("raw", "metadata")

_HEAD = '''
"""Handlers of the group {group}."""

import asyncio
import contextlib
import contextvars
import decimal
import gc
import locale
import os
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy
from dependency_injector import containers, providers
from opencqrs_py import (
    AfterCommit, Event, Invocation, Metadata, NonTransientError, PerSubjectLevel, ProcessingContext, TransientError,
    around_event, around_handler, event_handling, event_type, on_start,
)
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, exc, insert, text
from sqlalchemy.orm import Session, registry

FOLDER = Path({folder!r})
NAME, GROUP, TYPES, URL = {name!r}, {group!r}, [{type!r}], {url!r}
AT, ONCE = {at}, {once}
MODEL = Table(
    {table!r}, MetaData(), Column("number", Integer, primary_key=True), Column("position", Integer),
    Column("what", String(200)),
)
OTHER = Table({other!r}, MetaData(), Column("id", Integer, primary_key=True))
ENTITIES = registry()


@dataclass
class Counted:
    n: int
    tags: list


class Row:
    def __init__(self, position, what):
        self.position, self.what = position, what


ENTITIES.map_imperatively(Row, MODEL)


def first(name):
    """Say whether this is the first call with the name, also in another process."""
    try:
        (FOLDER / f"{{NAME}}.{{name}}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def corrected():
    return (FOLDER / f"{{NAME}}.corrected").exists()


def hostile(n):
    return n == AT and not corrected() and (not ONCE or first("fired"))


def row(event, metadata=None):
    n, tags = (event["n"], event["tags"]) if isinstance(event, dict) else (event.n, event.tags)
    tenant = "t" if metadata is None else metadata.get("tenant")
    return {{"position": n, "what": f"{{n}} {{tenant}} {{tags}}"}}


def number(event):
    return event["n"] if isinstance(event, dict) else event.n

'''


@dataclass(frozen=True)
class Target:
    """What an attack is aimed at.

    Attributes:
        attack: The attack.
        kind: Kind of the handler.
        url: URL of the database.
        schema: Schema of our own tables, empty for none.
        group: Name of the group.
        table: Name of the read model's table.
        folder: Where the module and its notes are.
        module: Name of the module.
    """

    attack: Attack
    kind: str
    url: str
    group: str
    table: str
    folder: Path
    module: str
    schema: str = ""

    def opened(self) -> Database:
        """Open the database."""
        return Database(self.url, self.schema)

    def correct(self) -> None:
        """Correct the handler: from now on it is not hostile any more."""
        (self.folder / f"{self.module}.corrected").touch()


def expected_rows() -> list[tuple[int, str]]:
    """Return the read model as it should be."""
    return [(n, f"{n} t {['a', {'deep': [n]}]}") for n in range(1, SIZE + 1)]


def source_of(target: Target) -> str:
    """Return the source of a module with the attack in it."""
    attack = target.attack
    head = _HEAD.format(
        folder=str(target.folder),
        name=target.module,
        group=target.group,
        type=TYPE,
        url=target.url,
        at=AT,
        once=attack.firing is Firing.ONCE,
        table=target.table,
        other=f"{target.table}_other",
    )
    body = attack.whole or f"{attack.extra}\n\n\n{_handler(attack, target.kind)}"
    return head.lstrip() + body + "\n"


def _handler(attack: Attack, kind: str) -> str:
    code = f"{attack.before}\n{attack.after}\n{attack.write}"
    write = attack.write or (
        "session.add(Row(**row({})))" if _mentions(code, "session") else "connection.execute(insert(MODEL), row({}))"
    ).format("event, metadata" if _mentions(code, "metadata") else "event")
    body = f"""
attacked = hostile(number(event))
{"driver = connection.connection.dbapi_connection" if _mentions(code, "driver") else ""}
if attacked:
{indent(attack.before or "pass", "    ")}
{write}
if attacked:
{indent(attack.after or "pass", "    ")}
""".strip()
    if _mentions(code, "driver") or _mentions(write, "connection"):
        code += "\nconnection"
    asked = {name: kind for name, kind in _ANNOTATIONS.items() if _mentions(code, name)} | dict(attack.asks)
    return _defined(attack, kind, asked, body)


def _mentions(code: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", code) is not None


def _defined(attack: Attack, kind: str, asked: dict[str, str], body: str) -> str:
    match kind:
        case "list":
            written, handler = _list(attack, asked, body), "handle"
        case "class":
            written, handler = _class(attack, asked, body), "Handlers().handle"
        case "async":
            written = f"{_DECORATED}async {_function(attack, asked, 'await asyncio.sleep(0)' + chr(10) + body)}"
            handler = "handle"
        case _:
            written, handler = f"{_DECORATED}{_function(attack, asked, body)}", "handle"
    return f"{written}\n\n\nBY_HAND = [*globals().get('EARLIER', ()), {handler}]"


def _function(attack: Attack, asked: dict[str, str], body: str, before: str = "") -> str:
    parameters = [f"event: {attack.event}", *(f"{name}: {annotation}" for name, annotation in asked.items())]
    return f"def handle({before}{', '.join(parameters)}):\n{indent(body, '    ')}"


def _class(attack: Attack, asked: dict[str, str], body: str) -> str:
    method = f"@event_handling(types=TYPES)\n{_function(attack, asked, body, 'self, ')}"
    return f"@event_handling(GROUP)\nclass Handlers:\n{indent(method, '    ')}"


def _list(attack: Attack, asked: dict[str, str], body: str) -> str:
    lists = {name: annotation for name, annotation in asked.items() if name in _PER_EVENT}
    parameters = [f"events: list[{attack.event}]", *(f"all_{name}: list[{kind}]" for name, kind in lists.items())]
    parameters += [f"{name}: {annotation}" for name, annotation in asked.items() if name not in lists]
    names = "".join(f"{name}, " for name in ("event", *lists))
    loop = f"for {names}in zip({', '.join(['list(events)', *(f'all_{name}' for name in lists)])}):"
    return f"{_DECORATED}def handle({', '.join(parameters)}):\n    {loop}\n{indent(body, ' ' * 8)}"
