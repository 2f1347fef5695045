"""Annotations with names that only type checkers know: as texts, and from Python 3.14 on also unquoted."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from dependency_injector import containers, providers
from sqlalchemy import Engine

from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.processing.binding import NothingProvided
from opencqrs_py.processing.checkpoints.participants import participant_of
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.sequencing import sequencing_for
from opencqrs_py.processing.signatures import Kind, read_signature

PROJECT = """
from opencqrs_py import checkpointing

def handle(event: Event, connection: Connection) -> None: ...
def resolve(event: Unknown) -> str: return ""
def make_engine() -> Engine: return created

@checkpointing("books")
class Board:
    def on_checkpoint(self, partition: Unknown, requested: Unknown) -> int: return 1
"""
LATER = pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated where they stand")


@pytest.fixture(params=["texts", pytest.param("as they stand", marks=LATER)])
def project(request: pytest.FixtureRequest) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "project"}
    first = "from __future__ import annotations" if request.param == "texts" else ""
    exec(compile(first + PROJECT, "project.py", "exec", dont_inherit=True), names)
    return names


def test_common_handler_classes_are_resolved_by_name(project: dict[str, Any]) -> None:
    signature = read_signature(project["handle"], "here", NothingProvided())
    assert [argument.kind for argument in signature.arguments] == [Kind.RAW, Kind.CONNECTION]


def test_an_unknown_class_in_a_resolvers_annotation_is_an_error(project: dict[str, Any]) -> None:
    with pytest.raises(HandlerSignatureError, match="name 'Unknown' is not defined") as raised:
        sequencing_for(project["resolve"], EventTypes(), Reading(), "here")
    assert raised.value.code == "OCQ-202"


def test_the_return_type_of_a_provider_is_resolved_by_name(project: dict[str, Any]) -> None:
    container = containers.DynamicContainer()
    container.set_provider("engine", providers.Singleton(project["make_engine"]))
    assert ContainerInjector([container]).makers(Engine) == ("engine",)


def test_a_participant_may_use_annotations_imported_for_type_checkers_only(project: dict[str, Any]) -> None:
    assert participant_of(project["Board"](), "books", "here") is not None
