"""From settings to how a group reads events: classes, envelope, upcasters, and what is in order."""

from __future__ import annotations

import json
import pickle

import pytest

from opencqrs_py import Event
from opencqrs_py.assembly.discovery import discover
from opencqrs_py.assembly.reading import (
    PLAIN,
    EventsRule,
    event_types_for,
    events_rule,
    mapped_types_of,
    reading_for,
    sequencing_of,
)
from opencqrs_py.config import Settings, effective_group
from opencqrs_py.errors import AssemblyError, HandlerSignatureError
from opencqrs_py.processing.sequencing import SequencingByEvent, SequencingByObject

SOURCE = """
from dataclasses import dataclass
from dependency_injector import containers, providers
from opencqrs_py import Event, Upcast, event_type, upcaster

@event_type("lent.v2")
@dataclass
class Lent:
    reader: str

@dataclass
class Returned:
    reader: str

class Outer:
    class Inner: ...

no_class = 7

@upcaster("lent.v1")
def renamed(data: dict) -> Upcast:
    return Upcast("lent.v2", data)

def by_reader(event: Lent) -> str:
    return event.reader

def by_source(event: Event) -> str:
    return event.source

def resolve(name: str) -> type | None:
    return Returned if name.startswith("returned") else None

class Container(containers.DeclarativeContainer):
    by_reader = providers.Object(by_reader)
    by_source = providers.Object(by_source)
    resolve = providers.Object(resolve)
"""


@pytest.fixture
def module(make_module):
    return make_module(SOURCE)


@pytest.fixture
def found(module):
    return discover([module])


def event(event_type="lent.v1", **data):
    return Event(
        7, "4711", "urn:s", "/a/b/c/d", event_type, None, "application/json", json.dumps(data), '{"by": "Bob"}'
    )


def group(**sequence):
    return effective_group(Settings(event_handling={"groups": {"books": {"sequence": sequence}}}), "books")


def sequencing(found, rule=PLAIN, **settings):
    types = event_types_for(rule, found)
    return sequencing_of(group(**settings), rule, found, types, reading_for(rule, found))


# Settings


def test_without_settings_events_are_plain():
    assert events_rule(Settings()) == PLAIN == EventsRule()


def test_what_settings_say_travels_to_workers():
    said = {"format": "envelope", "types": {"b": "m:B", "a": "m:A"}, "type_resolver_ref": "mine"}
    rule = events_rule(Settings(events=said))
    assert rule == EventsRule(enveloped=True, types=(("b", "m:B"), ("a", "m:A")), type_resolver_ref="mine")
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert hash(rule) == hash(pickle.loads(pickle.dumps(rule)))


# Event classes


class TakesLent:
    """A dispatcher whose handlers take one type."""

    def takes(self, event_type, cls):
        return event_type.startswith("lent") and cls.__name__ == "Inner"


def test_types_that_settings_map_are_recorded_without_modules_and_those_that_no_handler_takes(module):
    def types(*names):
        return tuple((name, f"{module.__name__}:Outer.Inner") for name in names)

    taken = mapped_types_of(EventsRule(types=types("returned", "lent.v3", "lent\n.v2")), TakesLent())
    assert taken == "{lent\\n.v2: Outer.Inner, lent.v3: Outer.Inner}"
    assert (
        mapped_types_of(EventsRule(types=types("returned")), TakesLent()) == mapped_types_of(PLAIN, TakesLent()) == "{}"
    )


def test_classes_are_marked_mapped_or_resolved(module, found):
    rule = EventsRule(types=(("returned", f"{module.__name__}:Outer.Inner"),), type_resolver_ref="resolve")
    types = event_types_for(rule, found)
    named = {name: types.classes_of(name) for name in ("lent.v2", "returned", "returned.v2", "other")}
    assert named == {
        "lent.v2": [module.Lent],
        "returned": [module.Outer.Inner],
        "returned.v2": [module.Returned],
        "other": [],
    }
    assert not event_types_for(PLAIN, found).open


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("nowhere_at_all:Lent", "cannot be found (ModuleNotFoundError: No module named 'nowhere_at_all')"),
        ("{module}:Missing", "cannot be found (AttributeError: module '{module}' has no attribute 'Missing')"),
        ("{module}.Lent", "cannot be found (ModuleNotFoundError: No module named '{module}.Lent'; '{module}' is not a package)"),  # noqa: E501 the message of Python
        ("{module}", "cannot be found (AttributeError: module '{module}' has no attribute '')"),
        (":Lent", "cannot be found (ValueError: Empty module name)"),
        ("..events:Lent", "cannot be found (TypeError: the 'package' argument is required to perform a relative import for '..events')"),  # noqa: E501
        ("{module}:no_class", "is not a class"),
    ],
)  # fmt: skip
def test_a_class_that_cannot_be_had_is_refused_with_its_setting(module, found, path, what):
    written, expected = path.format(module=module.__name__), what.format(module=module.__name__)
    with pytest.raises(AssemblyError) as caught:
        event_types_for(EventsRule(types=(("lent.v9", written),)), found)
    error = caught.value
    assert error.code == "OCQ-516"
    assert error.what in (f"the event class '{written}' {expected}", f"'{written}' {expected}")
    assert error.where == "events.types: lent.v9"
    assert error.fix == "write module:Class, such as library.events:BookLent"


def test_a_module_that_raises_while_it_is_imported_is_explained(make_module, found, tmp_path):
    (tmp_path / "raises_at_import.py").write_text("raise RuntimeError('mine')\n")
    with pytest.raises(AssemblyError, match=r"cannot be found \(RuntimeError: mine\)"):
        event_types_for(EventsRule(types=(("lent.v9", "raises_at_import:Lent"),)), found)


def test_a_resolver_that_no_container_has_is_refused(found):
    with pytest.raises(AssemblyError) as caught:
        event_types_for(EventsRule(type_resolver_ref="missing"), found)
    assert (caught.value.code, caught.value.where) == ("OCQ-502", "events.type-resolver-ref")


# Envelope and upcasters


def test_what_is_discovered_upcasts_and_the_setting_opens_envelopes(found):
    (read,) = reading_for(EventsRule(enveloped=True), found).read(event(payload={"reader": "Ada"}))
    assert (read.type, read.data, read.metadata) == ("lent.v2", {"reader": "Ada"}, {})
    (read,) = reading_for(PLAIN, found).read(event(reader="Ada"))
    assert (read.type, read.metadata) == ("lent.v2", {"by": "Bob"})


@pytest.mark.parametrize(
    ("rule", "warned"),
    [
        (PLAIN, True),
        (EventsRule(types=(("lent.v3", "x:Lent"),)), False),
        (EventsRule(type_resolver_ref="resolve"), False),
    ],
    ids=["unknown", "named by a setting", "left to a resolver"],
)
def test_a_type_of_an_upcaster_is_warned_of_if_nothing_names_it(make_module, caplog, rule, warned):
    found = discover([make_module(SOURCE.replace('Upcast("lent.v2"', 'Upcast("lent.v3"'))])
    reading_for(rule, found).read(event(reader="Ada"))
    assert ["(did you mean lent.v2?)" in each for each in caplog.messages] == [True] * warned


def test_two_upcasters_of_a_type_are_refused(make_module):
    source = (
        "@upcaster('a')\ndef one(data: dict) -> Upcast: ...\n@upcaster('a')\ndef other(data: dict) -> Upcast: ...\n"
    )
    module = make_module(f"from opencqrs_py import Upcast, upcaster\n{source}")
    with pytest.raises(HandlerSignatureError) as caught:
        reading_for(PLAIN, discover([module]))
    assert caught.value.code == "OCQ-220"
    for name in ("one", "other"):
        assert f"({name})" in caught.value.where


# What is in order


@pytest.mark.parametrize(
    ("settings", "sequence_id"),
    [
        ({}, "/a/b"),
        ({"resolution": "no_sequence"}, "4711"),
        ({"resolution": "per_subject"}, "/a/b/c/d"),
        ({"resolution": "per_second_level_subject"}, "/a/b"),
        ({"resolution": "per_level_subject", "level": 3}, "/a/b/c"),
        ({"resolution": "per_data_field", "data_field": "lent.to"}, "Ada"),
        ({"resolution": "per_metadata_key", "metadata_key": "by"}, "Bob"),
        ({"resolver_ref": "by_source"}, "urn:s"),
        ({"resolution": "per_subject", "resolver_ref": "by_source"}, "urn:s"),
    ],
)
def test_a_resolution_sees_the_stored_event(found, settings, sequence_id):
    made = sequencing(found, **settings)
    assert isinstance(made, SequencingByEvent)
    assert made.sequence_ids(event(lent={"to": "Ada"})) == (sequence_id,)


@pytest.mark.parametrize(
    ("settings", "sequence_id"),
    [
        ({"resolution": "per_data_field", "data_field": "lent.to"}, "Ada"),
        ({"resolution": "per_metadata_key", "metadata_key": "by"}, "Eve"),
    ],
)
def test_fields_and_keys_are_looked_for_in_the_envelope(found, settings, sequence_id):
    wrapped = event(payload={"lent": {"to": "Ada"}}, metadata={"by": "Eve"})
    made = sequencing(found, EventsRule(enveloped=True), **settings)
    assert made.sequence_ids(wrapped) == (sequence_id,)


def test_a_resolver_that_asks_for_an_object_sees_it_upcast(found):
    made = sequencing(found, resolver_ref="by_reader")
    assert isinstance(made, SequencingByObject)
    assert made.sequence_ids(event(reader="Ada")) == ("Ada",)


@pytest.mark.parametrize(
    ("resolution", "missing"),
    [("per_level_subject", "level"), ("per_data_field", "data-field"), ("per_metadata_key", "metadata-key")],
)
def test_a_resolution_without_the_setting_that_it_needs_is_refused(found, resolution, missing):
    with pytest.raises(AssemblyError) as caught:
        sequencing(found, resolution=resolution)
    assert str(caught.value) == (
        f"[OCQ-515] group 'books' has sequence.resolution: {resolution}, but sequence.{missing} is not set\n"
        "  where: sequence.resolution\n"
        f"  fix:   set sequence.{missing}"
    )


def test_a_resolver_that_no_container_has_is_refused_with_its_setting(found):
    with pytest.raises(AssemblyError) as caught:
        sequencing(found, resolver_ref="by_readr")
    assert (caught.value.code, caught.value.where) == ("OCQ-502", "sequence.resolver-ref")
    assert "did you mean by_reader?" in caught.value.fix
