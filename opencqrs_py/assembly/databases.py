"""The event store and the read models' database: which ones they are, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from typing_extensions import override

from opencqrs_py.assembly.conditions import Decision, checked, undecided
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.assembly.replacements import EVENT_STORE, decide
from opencqrs_py.assembly.stores import (
    database_file,
    is_in_files,
    is_in_memory_of_a_thread,
    is_sql,
    located,
    unknown_scheme,
)
from opencqrs_py.config import Configuration
from opencqrs_py.errors import AssemblyError, EventStoreError
from opencqrs_py.model.naming import listed
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.notices import Observer

if TYPE_CHECKING:
    from opencqrs_py.assembly.opened_stores import OpenedStores

_log = logging.getLogger("opencqrs.settings")
_SUBJECT = "database"
_WAYS = "set database.url, or name a provider with database.ref"
_REMOVE = "remove one of them; null unsets a value from another source"


@dataclass(frozen=True, slots=True)
class SettingValue:
    """What a setting says.

    Attributes:
        value: A URL with its path made absolute, or the name of a provider. Not shown: it may hold a password.
        shown: The same in printable form.
        origin: Where the setting was made.
        is_default: Whether no source sets it.
    """

    value: str = field(repr=False)
    shown: str
    origin: str
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class DatabaseRule:
    """The settings of the event store and the read models' database. Sent to Spark's workers.

    Attributes:
        event_store: ``event-store.url``.
        store_ref: ``event-store.ref``; ``None`` when unset.
        url: ``database.url``; ``None`` when unset.
        ref: ``database.ref``; ``None`` when unset.
        schema: ``database.schema``; ``None`` when unset.
        pool_size: ``database.pool-size``; ``None`` when unset.
        read_only: Whether the event store is a table of another system, whose database is left as it is.
    """

    event_store: SettingValue
    url: SettingValue | None = None
    ref: SettingValue | None = None
    read_only: bool = False
    schema: SettingValue | None = None
    store_ref: SettingValue | None = None
    pool_size: int | None = None

    @property
    def sets_store(self) -> bool:
        """Whether settings define the event store by a URL or a mapping."""
        return self.read_only or not self.event_store.is_default

    @property
    def event_schema(self) -> str | None:
        """The schema of our tables in the event store: that of the database, if it is the same."""
        same = self.ref is None and (self.url is None or self.url.value == self.event_store.value)
        applies = same and self.shared and not is_in_files(self.event_store.value)
        return self.schema.value if self.schema is not None and applies else None

    @property
    def shared(self) -> bool:
        """Whether the event store's database may hold the read models, too."""
        return is_sql(self.event_store.value) and not self.read_only


@dataclass(frozen=True, slots=True)
class DatabaseChoice:
    """The database that was chosen.

    Attributes:
        decision: What ``conditions`` shows of it.
        url: Its URL, absolute; empty when a provider makes its engine, or when there is none.
        ref: The provider that makes its engine; empty when there is none.
    """

    decision: Decision
    url: str = field(default="", repr=False)
    ref: str = ""


def database_rule(configuration: Configuration, project: Path) -> DatabaseRule:
    """Return what the settings say, with SQLite paths relative to the project folder."""
    settings = configuration.settings

    def said(key: str, value: str) -> SettingValue:
        seen = configuration.value(key)
        return SettingValue(value, seen.value, str(seen.origin), seen.is_default)

    url, ref, schema = settings.database.url, settings.database.ref, settings.database.schema
    store_ref = settings.event_store.ref
    return DatabaseRule(
        event_store=said("event-store.url", located(settings.event_store.url, project, "event-store.url")),
        url=said("database.url", located(url, project, "database.url")) if url else None,
        ref=said("database.ref", ref) if ref else None,
        read_only=settings.event_store.mapping.table is not None,
        schema=said("database.schema", schema) if schema else None,
        store_ref=said("event-store.ref", store_ref) if store_ref else None,
        pool_size=settings.database.pool_size,
    )


def missing_files(rule: DatabaseRule, store: Decision) -> dict[str, tuple[str, str]]:
    """Return the SQLite files that do not exist and would be created, by setting, each with the setting's origin.

    Args:
        rule: What settings say.
        store: What the event store is.
    """
    named = {
        "event-store.url": None if store.provider or rule.read_only else rule.event_store,
        "database.url": rule.url,
    }
    files = {key: (database_file(said.value), said) for key, said in named.items() if said is not None}
    return {
        key: (str(file), str(said.origin))
        for key, (file, said) in files.items()
        if file is not None and not file.exists()
    }


def missing_database(rule: DatabaseRule, choice: DatabaseChoice) -> tuple[str, str, str] | None:
    """Return the SQLite file of the database if it does not exist, with the setting that names it and its origin."""
    file = database_file(choice.url) if choice.url else None
    if file is None or file.exists():
        return None
    key, said = ("event-store.url", rule.event_store) if rule.url is None else ("database.url", rule.url)
    return str(file), key, said.origin


def take_new_tables(rule: DatabaseRule, store: Decision, opened: OpenedStores) -> dict[str, tuple[str, str]]:
    """Return the databases on servers where this process has created our tables, by setting, each with its origin.

    Each is returned once. That of the read models counts only if no table of ours was there; a new log always does.

    Args:
        rule: What settings say.
        store: What the event store is.
        opened: The databases that settings name.
    """
    from opencqrs_py.adapters.sql.tables import EVENTS, SCHEMA  # noqa: PLC0415 loads SQLAlchemy

    is_ours = not store.provider and not rule.read_only
    named = {
        "event-store.url": (rule.event_store if is_ours else None, rule.event_schema, {EVENTS.name, SCHEMA.name}),
        "database.url": (rule.url, rule.schema.value if rule.schema is not None else None, {SCHEMA.name}),
    }
    found: dict[str, tuple[str, str]] = {}
    for key, (said, schema, tables) in named.items():
        database = opened.on_server(said.value, schema) if said is not None else None
        if said is not None and database is not None and not tables.isdisjoint(database.new_tables):
            database.new_tables.clear()
            found[key] = (database.place, said.origin)
    return found


class NewDatabases(Observer):
    """Logs which databases a start has created: SQLite files, and our tables on a server.

    Args:
        missing: As ``missing_files`` returned them before the start.
        new_tables: Returns what ``take_new_tables`` does.
    """

    def __init__(
        self, missing: Mapping[str, tuple[str, str]], new_tables: Callable[[], Mapping[str, tuple[str, str]]]
    ) -> None:
        self._missing = {file: f"{key}, {origin}" for key, (file, origin) in missing.items()}
        self._new_tables = new_tables
        self._lock = Lock()
        new_tables()  # those from before the start are not its own

    @override
    def claimed(self, group: str, partition: Partition, position: int) -> None:
        """Report what the claim has created."""
        self.report()

    def report(self) -> None:
        """Log what was created since the last report."""
        with self._lock:
            files = {file: said for file, said in self._missing.items() if Path(file).exists()}
            self._missing = {file: said for file, said in self._missing.items() if file not in files}
            tables = self._new_tables()
        for file, said in files.items():
            _log.warning("created a new, empty SQLite database: %s (%s)", file, said)
        for key, (place, origin) in tables.items():
            _log.warning("created new, empty tables in %s (%s, %s)", place, key, origin)


def decide_event_store(rule: DatabaseRule, injector: ContainerInjector) -> Decision:
    """Decide what the event store is: a provider's, or that of the URL."""
    ref, url, is_set = rule.store_ref, rule.event_store, rule.sets_store
    if ref and is_set:
        setting = "event-store.mapping" if url.is_default else EVENT_STORE.setting
        what = f"{setting} and event-store.ref are both set, and only one of them can be the event store"
        places = ref.origin if url.is_default else f"{url.origin} and {ref.origin}"
        return undecided("", EVENT_STORE.subject, AssemblyError("OCQ-521", what, places, _REMOVE))
    reason = "set" if is_set else EVENT_STORE.unless_set(f"no provider of {EVENT_STORE.name} is registered")
    otherwise = Decision("", EVENT_STORE.subject, url.shown, reason, setting=EVENT_STORE.setting if is_set else "")
    decision = decide(EVENT_STORE, otherwise, injector, ref.value if ref else None, is_set=is_set)
    in_memory = None if decision.provider else _in_memory("event-store.url", url)
    return decision if in_memory is None else undecided("", EVENT_STORE.subject, in_memory)


def choose_event_store(rule: DatabaseRule, injector: Callable[[], ContainerInjector]) -> Decision:
    """Decide like ``decide_event_store``, without importing modules if settings define the event store."""
    return decide_event_store(rule, ContainerInjector() if rule.sets_store else injector())


def choose_database(rule: DatabaseRule, injector: ContainerInjector) -> DatabaseChoice:
    """Decide where the read models and the progress are.

    A database that settings name is used. Else there has to be one candidate: an event store that was configured, or a
    provider of an engine. Without any, the event store's default is used, if it is a SQL database.
    """
    engines = injector.makers(_engine_class())
    candidates = tuple(_candidates(rule, engines))
    if rule.url and rule.ref:
        what = "database.url and database.ref are both set, and only one of them can be the database"
        error = AssemblyError("OCQ-521", what, f"{rule.url.origin} and {rule.ref.origin}", _REMOVE)
        return DatabaseChoice(undecided("", _SUBJECT, error, candidates))
    if rule.ref:
        named = Decision("", _SUBJECT, f"provider {rule.ref.value}", "named", candidates, "database.ref")
        return DatabaseChoice(checked(named, rule.ref.value, injector, _engine_class()), ref=rule.ref.value)
    if rule.url:
        if (in_memory := _in_memory("database.url", rule.url)) is not None:
            return DatabaseChoice(undecided("", _SUBJECT, in_memory, candidates))
        return DatabaseChoice(Decision("", _SUBJECT, rule.url.shown, "set", candidates, "database.url"), rule.url.value)
    return _only(rule, engines, candidates, decide_event_store(rule, injector))


def _in_memory(key: str, said: SettingValue) -> EventStoreError | None:
    """Return the error of a database that the threads of a run would not share; ``None`` for any other."""
    if not is_in_memory_of_a_thread(said.value):
        return None
    what = f"{key} names an in-memory database, and each thread would have its own, empty one"
    return EventStoreError("OCQ-301", what, said.origin, "name a file: sqlite:///events.db")


def _only(rule: DatabaseRule, engines: tuple[str, ...], candidates: tuple[str, ...], store: Decision) -> DatabaseChoice:
    """Choose the only existing database, where settings name none."""
    if len(candidates) > 1:
        what = f"there are {len(candidates)} databases, and none is chosen: {listed(candidates)}"
        return DatabaseChoice(undecided("", _SUBJECT, AssemblyError("OCQ-520", what, fix=_WAYS), candidates))
    if engines:
        why = "event-store.url is not set" if rule.event_store.is_default else _why_not_shared(rule, store)
        reason = f"the only provider of an engine, and {why}"
        return DatabaseChoice(Decision("", _SUBJECT, f"provider {engines[0]}", reason, candidates), ref=engines[0])
    if store.error:
        return DatabaseChoice(Decision("", _SUBJECT, "", "the event store is not decided", error=store.error))
    if not store.provider and (error := unknown_scheme(rule.event_store.value)) is not None:
        return DatabaseChoice(undecided("", _SUBJECT, error))
    if store.provider or not rule.shared:
        reason = f"{_why_not_shared(rule, store)}, and no other one is configured or registered"
        return DatabaseChoice(Decision("", _SUBJECT, "none", reason))
    reason = "the event store's, since no other one is configured or registered"
    decision = Decision("", _SUBJECT, rule.event_store.shown, reason, (f"event-store.url ({rule.event_store.origin})",))
    return DatabaseChoice(decision, rule.event_store.value)


def _why_not_shared(rule: DatabaseRule, store: Decision) -> str:
    if store.provider:
        return "a provider makes the event store"
    return "the event store is only read" if rule.read_only else "the event store is not a SQL database"


def _candidates(rule: DatabaseRule, engines: tuple[str, ...]) -> list[str]:
    found = [f"database.url ({rule.url.origin})"] if rule.url else []
    if rule.shared and not rule.event_store.is_default:
        found.append(f"event-store.url ({rule.event_store.origin})")
    return found + [f"provider {name}" for name in engines]


def _engine_class() -> type:
    from opencqrs_py.adapters.sql import Engine  # noqa: PLC0415 loads SQLAlchemy

    return Engine
