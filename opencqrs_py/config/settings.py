"""What a user may set: the validated models of the ``opencqrs`` tree.

A leaf of ``standard`` or of a group is ``None`` when it is unset; whether ``None`` was said stands in
``model_fields_set``, which is what inheritance goes by (:mod:`opencqrs_py.config.inheritance`).
"""

from __future__ import annotations

import warnings
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from opencqrs_py.config.choices import (
    Controller,
    DataFormat,
    Engine,
    OnExhausted,
    OnUnknown,
    Resolution,
    RetryPolicy,
    Tracking,
)
from opencqrs_py.config.value_types import (
    Attempts,
    Duration,
    EndlessDuration,
    Fact,
    Name,
    Number,
    Position,
    Subject,
    Url,
    Whole,
)
from opencqrs_py.model.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic.fields import FieldInfo

__all__ = [
    "ActivateSettings",
    "BoundSource",
    "ConfigSettings",
    "DatabaseSettings",
    "DiscoverySettings",
    "EventHandlingSettings",
    "EventStoreSettings",
    "EventsSettings",
    "FetchSettings",
    "GroupSettings",
    "LifeCycleSettings",
    "MappingSettings",
    "ProcessingSettings",
    "ProfilesSettings",
    "ProgressSettings",
    "RetrySettings",
    "Section",
    "SequenceSettings",
    "Settings",
    "SparkSettings",
    "bound_values",
]

Column = Annotated[str, Field(min_length=1)]

bound_values: ContextVar[Mapping[str, object]] = ContextVar("bound_values")
"""What the binder has read, by field name; set while :func:`opencqrs_py.config.load` builds the settings."""


class Section(BaseModel):
    """A part of the settings tree. Unknown names are refused; its ``repr`` and ``model_dump`` hide what is secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, coerce_numbers_to_str=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, masked(name or "", value)

    @model_serializer(mode="wrap")
    def _without_secrets(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: masked(name, value) for name, value in serialize(self).items()}


class FetchSettings(Section):
    """Which events a group reads."""

    subject: Subject | None = Field(None, description="Subject at or below which events are read.")
    recursive: bool | None = Field(None, description="Whether the subjects below are read too.")
    initial_position: Position | None = Field(
        None,
        description="Where a group without progress starts: tail (oldest event), head (after newest), time, position.",
    )


class LifeCycleSettings(Section):
    """When and how often a group runs."""

    auto_start: bool | None = Field(None, description="Whether the group starts with the application.")
    controller: Controller | None = Field(
        None,
        description="Who starts and stops the group. Unset: leader_election when exactly one lock registry is "
        "registered, else application_context. Leader election is not there yet and is refused at the start.",
    )
    controller_registration: Name | None = Field(
        None, description="Name of the provider that takes the controller's place. Not there yet: refused at the start."
    )
    lock_registry: Name | None = Field(
        None, description="Name of the provider of leader locks: leader election with it."
    )
    partitions: Annotated[Whole, Field(ge=1), Fact(unit="1 or more")] | None = Field(
        None, description="How many partitions the group starts with."
    )


class ProgressSettings(Section):
    """Where a group keeps its progress."""

    tracking: Tracking | None = Field(
        None, description="Kind of tracker. Unset: sql when there is exactly one database, else in_memory."
    )
    tracker_ref: Name | None = Field(None, description="Name of the provider that takes the tracker's place.")


class SequenceSettings(Section):
    """What a group handles in order."""

    resolution: Resolution | None = Field(None, description="Which events must be handled in order.")
    resolver_ref: Name | None = Field(None, description="Name of the provider that takes the resolution's place.")
    level: Annotated[Whole, Field(ge=1), Fact(unit="1 or more")] | None = Field(
        None, description="Levels of the subject that count, with resolution per_level_subject."
    )
    data_field: Name | None = Field(
        None, description="Field of the data that counts, with resolution per_data_field; dots lead into objects."
    )
    metadata_key: Name | None = Field(
        None, description="Key of the metadata that counts, with resolution per_metadata_key."
    )


class RetrySettings(Section):
    """What happens when an event fails."""

    policy: RetryPolicy | None = Field(None, description="How the waits between attempts follow each other.")
    initial_interval: Duration | None = Field(None, description="First wait; with policy fixed, every wait.")
    max_interval: Duration | None = Field(None, description="Longest wait.")
    max_elapsed_time: EndlessDuration | None = Field(None, description="Sum of waits after which an event is given up.")
    multiplier: Annotated[Number, Field(ge=1), Fact(unit="factor, 1 or more")] | None = Field(
        None, description="Each wait by the one before it."
    )
    max_attempts: Attempts | None = Field(None, description="How often an event is tried again.")
    on_exhausted: OnExhausted | None = Field(
        None, description="What happens to an event that is given up. Parking is not there yet and is refused."
    )
    jitter: Annotated[Number, Field(ge=0, le=1), Fact(unit="share of the wait, 0 to 1")] | None = Field(
        None, description="How much of each wait is at most left out, at random."
    )


class ProcessingSettings(Section):
    """What runs a group, and in which chunks."""

    engine: Engine | None = Field(None, description="What runs the processors of the group.")
    batch_size: Annotated[Whole, Field(ge=1), Fact(unit="1 or more")] | None = Field(
        None, description="Most events in one transaction. Unset: chosen from the handlers."
    )


class GroupSettings(Section):
    """The settings of a processing group, or the standard for all groups."""

    fetch: FetchSettings = Field(FetchSettings(), description="Which events are read.")
    life_cycle: LifeCycleSettings = Field(LifeCycleSettings(), description="When and how often the group runs.")
    progress: ProgressSettings = Field(ProgressSettings(), description="Where the progress is kept.")
    sequence: SequenceSettings = Field(SequenceSettings(), description="What is handled in order.")
    retry: RetrySettings = Field(RetrySettings(), description="What happens when an event fails.")
    processing: ProcessingSettings = Field(ProcessingSettings(), description="What runs the group.")


class EventHandlingSettings(Section):
    """All processing groups."""

    standard: GroupSettings = Field(GroupSettings(), description="What applies to groups that do not say otherwise.")
    groups: dict[str, GroupSettings] = Field({}, description="Settings of single groups, by group name.")


class MappingSettings(Section):
    """A table of another system that is the event store; all names as they are written in the database."""

    table: Column | None = Field(
        None, description="The table, which is only read; a schema may stand before it, with a dot. Unset: our own."
    )
    position: Column | None = Field(
        None, description="Column of whole numbers above 0 that grow from row to row, each drawn as its row is added."
    )
    id: Column | None = Field(None, description="Column of the event's id.")
    source: Column | None = Field(None, description="Column of the source.")
    source_value: Column | None = Field(
        None, description="Source of all events, where no column holds it. Unset: the table's name."
    )
    subject: Column | None = Field(None, description="Column of the subject. Unset: all subjects are /.")
    type: Column | None = Field(None, description="Column of the event type.")
    time: Column | None = Field(None, description="Column of the time: a timestamp, or a text as in RFC 3339.")
    data: Column | None = Field(None, description="Column of the data: JSON, also as text.")
    metadata: Column | None = Field(None, description="Column of what accompanies the data: a JSON object.")


class EventStoreSettings(Section):
    """Where the events are."""

    url: Url = Field(
        "sqlite:///opencqrs.db",
        description="URL of the event store: sqlite:///…, postgresql://…, mariadb://…, file:… or eventsourcingdb://….",
    )
    api_token: Name | None = Field(None, description="API token of EventSourcingDB.")
    mapping: MappingSettings = Field(MappingSettings(), description="A table of another system, by its columns.")


class EventsSettings(Section):
    """How stored events are read."""

    format: DataFormat = Field(
        DataFormat.PLAIN,
        description="Layout of the data: plain, or the envelope of OpenCQRS with metadata and payload.",
    )
    types: dict[str, str] = Field(
        {}, description="Event classes by event type, as module:Class, besides those with @event_type."
    )
    type_resolver_ref: Name | None = Field(
        None, description="Name of the provider of a function from an event type to its class, or None."
    )


class DiscoverySettings(Section):
    """Which modules of the project are imported."""

    modules: list[str] = Field([], description="Modules with handlers. None: all that use a decorator are found.")
    exclude: list[str] = Field(
        [],
        description="Files, folders and modules that are not imported: patterns such as scripts, *_old.py, shop.old.*.",
    )


with warnings.catch_warnings():
    # "schema" is also a method of pydantic's models, a deprecated one, which nothing here calls.
    warnings.filterwarnings("ignore", 'Field name "schema"', UserWarning)

    class DatabaseSettings(Section):
        """Where progress, leases and read models are."""

        url: Url | None = Field(
            None,
            description="URL of the database. Unset: the one SQL database that is configured as event store or "
            "registered.",
        )
        ref: Name | None = Field(
            None, description="Name of the provider of a sqlalchemy.Engine that takes the URL's place."
        )
        schema: Name | None = Field(  # type: ignore[assignment]
            None,
            description="Schema of the package's own tables, on MariaDB a database of the server; created if it is "
            "missing. Unset: where connections begin.",
        )


class SparkSettings(Section):
    """The Spark session of the engine ``spark``."""

    master: str = Field("local[*]", description="Where Spark runs.", min_length=1)
    conf: dict[str, str] = Field({}, description="Spark's own settings, by their full name.")
    allow_unauthenticated: bool = Field(
        default=False,
        description="Whether a Spark may be used that does not authenticate the programs that connect to it.",
    )


class ActivateSettings(Section):
    """When a document of a file applies."""

    on_profile: Annotated[list[str], Fact(in_documents_only=True)] = Field(
        [], description="The same as config.on-profile, in the spelling of Spring Boot."
    )


class ConfigSettings(Section):
    """How the configuration itself is read."""

    unknown: OnUnknown = Field(OnUnknown.ERROR, description="What becomes of keys that name no setting.")
    import_: list[str] = Field(
        [], description="More files, and folders of secrets; optional: before one that may be missing."
    )
    on_profile: Annotated[list[str], Fact(in_documents_only=True)] = Field(
        [], description="Profiles, or an expression of profiles, with which the document applies."
    )
    activate: ActivateSettings = Field(ActivateSettings(), description="When a document of a file applies.")


class ProfilesSettings(Section):
    """Which variants of the configuration apply."""

    active: list[str] = Field([], description="Profiles; the last one wins. None: the profile default.")


class BoundSource(PydanticBaseSettingsSource):
    """The source of pydantic-settings that hands over what the binder has read; empty outside a load."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the value bound to ``field_name``."""
        del field
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return all bound values."""
        return dict(bound_values.get({}))


class Settings(BaseSettings):
    """The whole ``opencqrs`` tree, validated.

    Made by :func:`opencqrs_py.config.load`, or by hand with nested values. A subclass may add sections, which are
    then bound from every source like the others, and sources, by ``settings_customise_sources``.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    event_store: EventStoreSettings = Field(EventStoreSettings(), description="Where the events are.")
    events: EventsSettings = Field(EventsSettings(), description="How stored events are read.")
    discovery: DiscoverySettings = Field(DiscoverySettings(), description="Which modules are imported.")
    database: DatabaseSettings = Field(DatabaseSettings(), description="Where progress and read models are.")
    spark: SparkSettings = Field(SparkSettings(), description="The Spark session.")
    event_handling: EventHandlingSettings = Field(EventHandlingSettings(), description="All processing groups.")
    config: ConfigSettings = Field(ConfigSettings(), description="How the configuration itself is read.")
    profiles: ProfilesSettings = Field(ProfilesSettings(), description="Which variants of the configuration apply.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources: values given to the constructor, then what the binder has read."""
        del env_settings, dotenv_settings, file_secret_settings
        return init_settings, BoundSource(settings_cls)
