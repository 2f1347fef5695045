"""Settings of events and of sequences: how stored events are read, and which are handled in order."""

from __future__ import annotations

import json

import pytest

from opencqrs_py.config import DataFormat, Resolution


def test_by_default_events_are_plain_and_have_no_further_classes(project):
    events = project.load().settings.events
    assert (events.format, events.types, events.type_resolver_ref) == (DataFormat.PLAIN, {}, None)


def test_event_types_keep_their_dots_and_their_case(project):
    project.yaml("""
        opencqrs.events:
          format: Envelope
          types:
            library.book-lent.v1: library.events:BookLent
            org.example.BookReturned: library.events:BookReturned
          type-resolver-ref: by_name
    """)
    events = project.load().settings.events
    assert events.format is DataFormat.ENVELOPE
    assert events.types == {
        "library.book-lent.v1": "library.events:BookLent",
        "org.example.BookReturned": "library.events:BookReturned",
    }
    assert events.type_resolver_ref == "by_name"


def test_event_types_from_several_sources_are_merged_one_by_one(project):
    project.yaml("opencqrs.events.types: {a.v1: 'm:A', b.v1: 'm:B'}")
    project.write("application-prod.yaml", "opencqrs.events.types: {b.v1: 'm:Better', c.v1: 'm:C'}")
    events = project.load(profiles=["prod"], overrides=["events.types.d.v1=m:D"]).settings.events
    assert events.types == {"a.v1": "m:A", "b.v1": "m:Better", "c.v1": "m:C", "d.v1": "m:D"}


BOTH = {"library.bookLent.v1": "m:A", "library.book-lent.v1": "m:B", "library.book_lent.v1": "m:C"}


@pytest.mark.parametrize("key", ["events.types", "spark.conf"])
def test_event_types_and_spark_names_are_compared_exactly(project, key):
    entries = [f"{name}: '{value}'" for name, value in BOTH.items()]
    assert values_of(project.yaml(f"opencqrs.{key}: {{{', '.join(entries)}}}"), key) == BOTH
    project.yaml(f"opencqrs.{key}: {{{entries[0]}}}")
    project.write("application-prod.yaml", f"opencqrs.{key}: {{{entries[1]}}}")
    third = list(BOTH)[2]
    assert values_of(project, key, profiles=["prod"], overrides=[f"{key}.{third}={BOTH[third]}"]) == BOTH
    variable = "OPENCQRS__" + key.upper().replace(".", "__")
    assert values_of(project, key, environ={variable: json.dumps(dict(list(BOTH.items())[1:]))}) == BOTH


def test_a_variable_that_could_mean_two_event_types_is_refused(project):
    project.yaml("opencqrs.events.types: {library.bookLent.v1: 'm:A', library.book-lent.v1: 'm:B'}")
    error = project.error(environ={"OPENCQRS__EVENTS__TYPES__LIBRARY_BOOK_LENT_V1": "m:C"})
    assert (error.code, error.what) == (
        "OCQ-105",
        "OPENCQRS__EVENTS__TYPES__LIBRARY_BOOK_LENT_V1 can mean events.types.library.bookLent.v1 or "
        "events.types.library.book-lent.v1",
    )


def test_a_variable_in_capitals_sets_the_spark_name_that_a_file_spells_out(project):
    project.yaml("opencqrs.spark.conf: {spark.sql.session.timeZone: UTC}")
    capitals = {"OPENCQRS__SPARK__CONF__SPARK_SQL_SESSION_TIMEZONE": "Europe/Berlin"}
    as_written = {"OPENCQRS__SPARK__CONF__spark.sql.session.timeZone": "Europe/Berlin"}
    for environ in (capitals, as_written):
        assert values_of(project, "spark.conf", environ=environ) == {"spark.sql.session.timeZone": "Europe/Berlin"}


def values_of(project, key, **sources):
    settings = project.load(**sources).settings
    return settings.events.types if key == "events.types" else settings.spark.conf


def test_an_unknown_format_is_refused_with_the_known_ones(project):
    error = project.yaml("opencqrs.events.format: xml").error()
    assert (error.code, error.what) == ("OCQ-112", "events.format cannot be 'xml': there is no such choice")
    assert error.fix == "use one of plain, envelope"


@pytest.mark.parametrize(
    ("written", "resolution", "leaf", "value"),
    [
        ("{resolution: per-level-subject, level: 3}", Resolution.PER_LEVEL_SUBJECT, "level", 3),
        ("{resolution: perDataField, data-field: reader.id}", Resolution.PER_DATA_FIELD, "data_field", "reader.id"),
        ("{resolution: PER_METADATA_KEY, metadataKey: by}", Resolution.PER_METADATA_KEY, "metadata_key", "by"),
    ],
)
def test_a_sequence_needs_the_setting_of_its_resolution(project, written, resolution, leaf, value):
    project.yaml(f"opencqrs.event-handling.groups.books.sequence: {written}")
    sequence = project.load().group("books").sequence
    assert sequence.resolution is resolution
    assert getattr(sequence, leaf) == value


def test_a_level_below_one_is_refused(project):
    error = project.yaml("opencqrs.event-handling.standard.sequence.level: 0").error()
    assert error.code == "OCQ-114"


def test_the_level_can_come_from_the_standard_and_the_resolution_from_the_group(project):
    project.yaml("""
        opencqrs.event-handling:
          standard.sequence.level: 4
          groups.books.sequence.resolution: per_level_subject
    """)
    sequence = project.load().group("books").sequence
    assert (sequence.resolution, sequence.level) == (Resolution.PER_LEVEL_SUBJECT, 4)
