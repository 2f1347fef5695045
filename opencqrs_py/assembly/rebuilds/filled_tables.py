"""Which tables the code of a group or job may fill, as far as it shows that."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping

from opencqrs_py.assembly.code.group_code import UserCode

# A statement of SQL that writes to a table, its name in a class that is mapped to it, and its definition.
_IN_SQL = (
    r"(?i:insert\s+(?:or\s+\w+\s+|ignore\s+)?into|update(?:\s+or\s+\w+)?|delete\s+from|(?:merge|replace)\s+into)"
    r"\s+(?:[`\"\[]?\w+[`\"\]]?\.)?[`\"\[]?{name}\b"
)
_MAPPED = r"'__tablename__'>\)\]? value=<str '{name}'>"
_DEFINED = r"args=\[<str '{name}'>.*func=\([^()]*'[Tt]able'"
_WRITERS = frozenset({"insert", "update", "delete", "upsert"})
_IN_BULK = "=<str 'upsert'>"  # the name of ``bulk.upsert`` where it is called


def shared_tables(group: str, tables: Collection[str], code: Mapping[str, UserCode]) -> list[str]:
    """Return which tables of a group others may also fill, as far as the code shows it: ``lent (group returns)``.

    Args:
        group: The group, as ``code`` calls it.
        tables: Their names.
        code: The code of all that may write to tables, by what messages call it.
    """
    written = {user: written_tables(own) for user, own in code.items()}
    users = {table: [user for user, own in code.items() if _uses(own.texts, table, written[user])] for table in tables}
    return [
        f"{table} ({user})"
        for table, found in sorted(users.items())
        if group in found
        for user in found
        if user != group
    ]


def tables_of(group: str, tables: Collection[str], code: Mapping[str, UserCode]) -> list[str]:
    """Return which of some tables a group may fill, as far as its code shows it: also those that it only defines."""
    return [table for table in tables if group in code and _uses(code[group].texts, table)]


def _uses(texts: Collection[str], table: str, written: Collection[str] | None = None) -> bool:
    """Return whether code may write to a table.

    Args:
        texts: The code.
        table: The name of the table.
        written: Tables that are written to other than by SQL and mapped classes; ``None`` if that is not known.
    """
    if written is not None and table in written:
        return True
    patterns = (_IN_SQL, _MAPPED) if written is not None else (_IN_SQL, _MAPPED, _DEFINED)
    used = re.compile("|".join(patterns).replace("{name}", re.escape(table)))
    in_bulk = written is None and any(_IN_BULK in text for text in texts)  # a constant or a caller may name the table
    naming = (text for text in texts if table in text)
    return any((in_bulk and f"<str {table!r}>" in text) or used.search(text.replace(r"\n", " ")) for text in naming)


def written_tables(code: UserCode) -> set[str] | None:
    """Return the tables that code inserts into, updates, deletes from or upserts to; ``None`` if a call hides its one.

    A call shows it by a text, or by a name to which only texts or tables of SQLAlchemy are assigned. SQL and mapped
    classes are left out.
    """
    if code.nodes is None:
        return None
    nodes = [each for node in code.nodes for each in ast.walk(node)]
    calls = [each for each in nodes if isinstance(each, ast.Call) and _last_name(each.func) in _WRITERS]
    named = [name for name in map(_last_name, nodes) if name in _WRITERS]
    imported = {text.rpartition(".")[2] for text in code.texts if text.startswith("name ")} & _WRITERS
    if len(calls) < len(named) or not imported <= {*named} or any(map(_renames_writer, nodes)):
        return None  # one is passed on, or has another name
    known = _tables_by_name(nodes)
    found = [_table_in(_target_of(call), known) for call in calls]
    return None if None in found else {table for table in found if table is not None}


def _renames_writer(node: ast.AST) -> bool:
    """Return whether a node is the part of an import that gives another name to what writes."""
    return isinstance(node, ast.alias) and node.name in _WRITERS and node.asname not in (None, node.name)


def _table_in(target: ast.expr | None, known: Mapping[str, str | None]) -> str | None:
    if isinstance(target, ast.Constant):
        return str(target.value).rpartition(".")[2]
    return None if target is None else known.get(_last_name(target))


def _target_of(call: ast.Call) -> ast.expr | None:
    """Return what a call writes to: ``insert(table)``, ``table.insert()``, or ``upsert(connection, table, rows)``."""
    if _last_name(call.func) == "upsert":
        named = [each.value for each in call.keywords if each.arg == "table"]
        return next(iter([*call.args[1:2], *named]), None)
    if call.args:
        return call.args[0]
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
    return ""


def _tables_by_name(nodes: Iterable[ast.AST]) -> dict[str, str | None]:
    """Return the table that each name stands for; ``None`` if that is not known."""
    found: dict[str, str | None] = {}
    understood: set[ast.AST] = set()
    others: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and (table := _defined_in(node.value)):
            name = _last_name(node.targets[0])
            understood.add(node.targets[0])
            if found.setdefault(name, table) != table:
                others.add(name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in understood:
            others.add(node.id)
        elif isinstance(node, ast.arg):
            others.add(node.arg)
    return found | dict.fromkeys(others)


def _defined_in(value: ast.expr) -> str | None:
    """Return the table that a value is, or names."""
    if isinstance(value, ast.Call) and _last_name(value.func) in ("Table", "table") and value.args:
        value = value.args[0]
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
