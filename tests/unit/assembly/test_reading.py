"""From settings to how a group reads events: classes, envelope, upcasters and sequences."""

from __future__ import annotations

import json
import pickle

import pytest

from opencqrs_py import Event
from opencqrs_py.assembly.discovery.discovery import discover
from opencqrs_py.assembly.reading import (
    PLAIN,
    EventsRule,
    event_types_for,
    events_rule,
    mapped_types_of,
    reading_for,
    schedule_rule_of,
    sequencing_of,
)
from opencqrs_py.config import Settings, effective_group, load
from opencqrs_py.errors import AssemblyError, HandlerSignatureError, ProjectCodeError
from opencqrs_py.processing.binding import NothingProvided
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.reading import Reading, Upcasters
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

FUNCTIONS = """
from functools import partial
from typing import Any
from dependency_injector import containers, providers

def nothing(): return "x"
def two(event, other): return "x"
def named_only(*, event): return "x"
def option(event, shift=0): return "x"
def any_number(*events): return "x"
def make_it() -> Any: return option
def make_object() -> object: return option

class EmptyCall:
    def __call__(self): return "x"

class Call:
    def __call__(self, event): return "x"

class Hidden:
    __signature__ = "none"
    def __call__(self, event): return "x"

class Container(containers.DeclarativeContainer):
    text = providers.Object("x")
    hidden_text = providers.Callable(lambda: "x")
    fails = providers.Callable(lambda: 1 / 0)
    nothing = providers.Object(nothing)
    two = providers.Object(two)
    named_only = providers.Object(named_only)
    empty_call = providers.Singleton(EmptyCall)
    option = providers.Object(option)
    any_number = providers.Object(any_number)
    call = providers.Singleton(Call)
    partly = providers.Object(partial(two, other=1))
    unknown = providers.Callable(make_it)
    declared_object = providers.Callable(make_object)
    hidden = providers.Singleton(Hidden)
    mapping = providers.Object({"number": int}.get)
"""
NO_UPCASTERS = Reading(Upcasters((), NothingProvided()))


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


def test_without_settings_events_are_plain(tmp_path):
    assert events_rule(load(tmp_path, environ={})) == PLAIN == EventsRule()


def test_the_events_settings_survive_pickling(tmp_path):
    said = {"format": "envelope", "types": {"b": "m:B", "a": "m:A"}, "type_resolver_ref": "mine"}
    rule = events_rule(load(tmp_path, environ={}, defaults={"opencqrs": {"events": said}}))
    assert rule.type_resolver_place.startswith("events.type-resolver-ref (")
    assert rule == EventsRule(enveloped=True, types=(("b", "m:B"), ("a", "m:A")), type_resolver_ref="mine")
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert hash(rule) == hash(pickle.loads(pickle.dumps(rule)))


# Event classes


class TakesLent:
    """A dispatcher whose handlers take one type."""

    def takes(self, event_type, cls):
        return event_type.startswith("lent") and cls.__name__ == "Inner"


def test_mapped_types_are_recorded_without_modules_and_only_if_a_handler_takes_them(module):
    def types(*names):
        return tuple((name, f"{module.__name__}:Outer.Inner") for name in names)

    taken = mapped_types_of(EventsRule(types=types("returned", "lent.v3", "lent\n.v2")), TakesLent())
    assert taken == "{lent\\n.v2: Outer.Inner, lent.v3: Outer.Inner}"
    assert (
        mapped_types_of(EventsRule(types=types("returned")), TakesLent()) == mapped_types_of(PLAIN, TakesLent()) == "{}"
    )


def test_event_classes_are_marked_mapped_or_resolved(module, found):
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
def test_a_class_that_cannot_be_loaded_is_refused_with_its_setting(module, found, path, what):
    written, expected = path.format(module=module.__name__), what.format(module=module.__name__)
    with pytest.raises(AssemblyError) as caught:
        event_types_for(EventsRule(types=(("lent.v9", written),)), found)
    error = caught.value
    assert error.code == "OCQ-516"
    assert error.what in (f"the event class '{written}' {expected}", f"'{written}' {expected}")
    assert error.where == "events.types: lent.v9"
    assert error.fix == "write module:Class, such as library.events:BookLent"


def test_a_module_that_raises_during_its_import_is_reported_with_the_error(make_module, found, tmp_path):
    (tmp_path / "raises_at_import.py").write_text("raise RuntimeError('mine')\n")
    with pytest.raises(AssemblyError, match=r"cannot be found \(RuntimeError: mine\)"):
        event_types_for(EventsRule(types=(("lent.v9", "raises_at_import:Lent"),)), found)


@pytest.mark.parametrize(
    ("provider", "what"),
    [
        ("missing", "no provider is called 'missing'"),
        ("text", "provider 'text' makes str, no Callable"),
        ("nothing", "provider 'nothing' makes nothing, which cannot be called with an event type ("),
    ],
)
def test_an_unsuitable_type_resolver_is_refused_with_its_setting(make_module, provider, what):
    rule = EventsRule(type_resolver_ref=provider, type_resolver_place="events.type-resolver-ref (there)")
    with pytest.raises(AssemblyError) as caught:
        event_types_for(rule, discover([make_module(FUNCTIONS)]))
    assert (caught.value.code, caught.value.where) == ("OCQ-502", "events.type-resolver-ref (there)")
    assert caught.value.what.startswith(what)


def test_a_method_of_a_mapping_resolves_types(make_module):
    types = event_types_for(EventsRule(type_resolver_ref="mapping"), discover([make_module(FUNCTIONS)]))
    assert types.classes_of("number") == [int]


# Envelope and upcasters


def test_discovered_upcasters_apply_and_the_setting_unwraps_envelopes(found):
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
def test_an_unknown_type_returned_by_an_upcaster_causes_a_warning(make_module, caplog, rule, warned):
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


# Sequences


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
def test_fields_and_keys_are_read_from_the_envelope(found, settings, sequence_id):
    wrapped = event(payload={"lent": {"to": "Ada"}}, metadata={"by": "Eve"})
    made = sequencing(found, EventsRule(enveloped=True), **settings)
    assert made.sequence_ids(wrapped) == (sequence_id,)


def test_a_resolver_that_takes_an_object_gets_it_upcast(found):
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


def test_an_unknown_resolver_is_refused_with_its_setting(found):
    with pytest.raises(AssemblyError) as caught:
        sequencing(found, resolver_ref="by_readr")
    assert (caught.value.code, caught.value.where) == ("OCQ-502", "sequence.resolver-ref")
    assert "did you mean by_reader?" in caught.value.fix


def sequence_resolver(found, origin_of, provider):
    settings = Settings(event_handling={"standard": {"sequence": {"resolver_ref": provider}}})
    return sequencing_of(effective_group(settings, "books", origin_of), PLAIN, found, EventTypes(), NO_UPCASTERS)


def ordering_function(found, origin_of, provider):
    said = {"schedule": {"interval": 1.0}, "batch": {"ordering_ref": provider}, "processing": {"mode": "scheduled"}}
    settings = effective_group(Settings(event_handling={"standard": said}), "books", origin_of)
    return schedule_rule_of(settings, found, EventTypes(), NO_UPCASTERS, lambda _: True)


NAMED = [(sequence_resolver, "sequence.resolver-ref"), (ordering_function, "batch.ordering-ref")]


@pytest.mark.parametrize(("make", "setting"), NAMED)
@pytest.mark.parametrize(
    ("provider", "code", "what"),
    [
        ("missing", "OCQ-502", "no provider is called 'missing'"),
        ("text", "OCQ-502", "provider 'text' makes str, no Callable"),
        ("hidden_text", "OCQ-502", "provider 'hidden_text' makes str, no Callable"),
        ("nothing", "OCQ-502", "provider 'nothing' makes nothing, which cannot be called with an event (too many "),
        ("two", "OCQ-502", "provider 'two' makes two, which cannot be called with an event (missing a required "),
        ("named_only", "OCQ-502", "provider 'named_only' makes named_only, which cannot be called with an event ("),
        ("empty_call", "OCQ-502", "provider 'empty_call' makes EmptyCall, which cannot be called with an event ("),
        ("fails", "OCQ-217", "provider 'fails' raised ZeroDivisionError"),
    ],
)
def test_a_provider_that_cannot_be_called_with_an_event_is_refused_with_the_origin_of_its_setting(
    make_module, make, setting, provider, code, what
):
    found = discover([make_module(FUNCTIONS)])
    with pytest.raises((AssemblyError, ProjectCodeError)) as caught:
        make(found, lambda leaf, _: f"of {leaf[0]}", provider)
    assert (caught.value.code, caught.value.where) == (code, f"{setting} (of {setting.partition('.')[0]})")
    assert caught.value.what.startswith(what)


@pytest.mark.parametrize("make", [sequence_resolver, ordering_function])
@pytest.mark.parametrize("provider", ["option", "any_number", "call", "partly", "unknown", "hidden", "declared_object"])
def test_a_provider_that_can_be_called_with_an_event_is_accepted(make_module, make, provider):
    make(discover([make_module(FUNCTIONS)]), None, provider)
