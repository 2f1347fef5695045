"""What a user can set: the validated models of the ``opencqrs`` tree."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

from opencqrs_py.config.choices import DataFormat, DriverHandles, LogFormat, OnUnknown
from opencqrs_py.config.groups import GROUP_FAMILY, GroupSettings
from opencqrs_py.config.inheritance import AtLeastOne, Family, LevelValues
from opencqrs_py.config.jobs import JOB_FAMILY, JobSettings
from opencqrs_py.config.sources import LayeredSource
from opencqrs_py.config.value_types import Bind, Duration, Fact, Name, Token, Url, Whole
from opencqrs_py.model.masking import masked
from opencqrs_py.model.naming import canonical

ColumnName = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A part of the settings tree. Unknown names are refused; its ``repr`` and ``model_dump`` hide what is secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, coerce_numbers_to_str=True)

    @override
    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, masked(name or "", value)

    @model_serializer(mode="wrap")
    def _without_secrets(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: masked(name, value) for name, value in serialize(self).items()}


class InheritingSection(Section):
    """Settings below many names, including what they inherit from the standard next to them."""

    family: ClassVar[Family]
    _said: dict[str | None, LevelValues] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _inherit(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Merge the standard into the settings of each name before validation, and remember which level set what."""
        family = cls.family
        own: Any = data.get(family.named[-1], {}) if isinstance(data, Mapping) and not family.reserved else data
        if not isinstance(own, Mapping):
            return validate(data)
        if family.reserved:
            own = {name: each for name, each in own.items() if name != family.reserved}
            if alike := [name for name in own if canonical(str(name)) == family.reserved]:
                raise ValueError(f"no job can be called {alike[0]}; the standard is {family.reserved}")
        standard = family.said(data.get("standard"))
        singles = {name: family.merged(each, standard) for name, each in own.items()}
        merged = {**data, **(singles if family.reserved else {family.named[-1]: singles} if own else {})}
        if "standard" in data:
            merged["standard"] = family.merged(data["standard"], {})
        result = validate(merged)
        result._said = {None: standard, **{name: family.said(each) for name, each in own.items()}}  # noqa: SLF001
        return result

    def said_of(self, name: str | None) -> LevelValues:
        """Return the own settings of ``name``, before validation; ``None`` for the standard."""
        return self._said.get(name, {})


class EventHandlingSettings(InheritingSection):
    """All processing groups. ``groups`` include what they inherit; :meth:`Configuration.group` is what applies."""

    family = GROUP_FAMILY
    standard: GroupSettings = Field(GroupSettings(), description="What applies to groups that do not say otherwise.")
    groups: dict[str, GroupSettings] = Field({}, description="Settings of single groups, by group name.")


class JobsSettings(InheritingSection):
    """All jobs, each below its name. They include what they inherit; :meth:`Configuration.job` is what applies."""

    model_config = ConfigDict(extra="allow")
    family = JOB_FAMILY
    __pydantic_extra__: dict[str, JobSettings] = Field(init=False)
    standard: JobSettings = Field(JobSettings(), description="What applies to jobs that do not say otherwise.")

    @property
    def named(self) -> dict[str, JobSettings]:
        """The settings of single jobs, by the name of the job."""
        return self.__pydantic_extra__


class MappingSettings(Section):
    """A table of another system that is the event store; all names as they are written in the database."""

    table: ColumnName | None = Field(
        None, description="The table, which is only read; a schema may precede it, with a dot. Unset: our own."
    )
    position: ColumnName | None = Field(
        None, description="Column of whole numbers above 0 that grow from row to row, each drawn as its row is added."
    )
    id: ColumnName | None = Field(None, description="Column of the event's id.")
    source: ColumnName | None = Field(None, description="Column of the source.")
    source_value: ColumnName | None = Field(
        None, description="Source of all events, where no column holds it. Unset: the table's name."
    )
    subject: ColumnName | None = Field(None, description="Column of the subject. Unset: all subjects are /.")
    type: ColumnName | None = Field(None, description="Column of the event type.")
    time: ColumnName | None = Field(None, description="Column of the time: a timestamp, or a text as in RFC 3339.")
    data: ColumnName | None = Field(None, description="Column of the data: JSON, also as text.")
    metadata: ColumnName | None = Field(None, description="Column of the metadata: a JSON object.")


class EventStoreSettings(Section):
    """Where the events are."""

    url: Url = Field(
        "sqlite:///opencqrs.db",
        description="URL of the event store: sqlite:///…, postgresql://…, mariadb://…, file:… or eventsourcingdb://….",
    )
    ref: Name | None = Field(None, description="Name of the provider of an event store that replaces the URL.")
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
        ref: Name | None = Field(None, description="Name of the provider of a sqlalchemy.Engine that replaces the URL.")
        schema: Name | None = Field(  # type: ignore[assignment]
            None,
            description="Schema of the package's own tables, on MariaDB a database of the server; created if it is "
            "missing. Unset: the default schema of connections.",
        )
        pool_size: AtLeastOne | None = Field(
            None,
            description="Most connections that the threads of one process share to each server it uses (event store, "
            "database); not of SQLite. Unset: 8, and 1 where all groups run on Spark and threads only coordinate.",
        )


class ClockSettings(Section):
    """Time, by which waits end and failures are dated."""

    ref: Name | None = Field(None, description="Name of the provider of a clock that replaces the machine's.")


class NodeSettings(Section):
    """This process, as one of those that share the partitions of groups."""

    name: Name | None = Field(None, description="Name of the process in logs and tables. Unset: host:pid.")
    max_partitions: AtLeastOne | None = Field(
        None, description="Most partitions of all groups together that one process takes. Unset: no limit."
    )
    max_runs: AtLeastOne = Field(4, description="Most runs of jobs that one process executes at once.")


class SparkSettings(Section):
    """The Spark session of the engine ``spark``."""

    master: str = Field("local[*]", description="Where Spark runs.", min_length=1)
    conf: dict[str, str] = Field({}, description="Spark's own settings, by their full name.")
    allow_unauthenticated: bool = Field(
        default=False,
        description="Whether to allow a Spark that does not authenticate the programs that connect to it.",
    )
    max_tasks_per_group: Annotated[Whole, Ge(1), Fact(unit="1 or more")] | None = Field(
        None, description="Most tasks of one group that run at once. Unset: as many as Spark runs at once."
    )
    driver_handles: DriverHandles = Field(
        DriverHandles.WHILE_STARTING,
        description="When the process handles events itself, on its own threads: until Spark is ready, or never.",
    )


class HttpSettings(Section):
    """What a process that runs processors answers over HTTP."""

    bind: Bind | None = Field(
        None,
        description="Port (8080), or address and port (0.0.0.0:8080), where the process serves health, metrics "
        "and status; without an address only programs of this machine reach it. Unset: it does not listen.",
    )
    token: Token | None = Field(
        None,
        description="Token that a program has to send to start jobs over HTTP. Unset: jobs cannot be started over "
        "HTTP.",
    )


class HealthSettings(Section):
    """What counts as unhealthy."""

    max_lag: Annotated[Whole, Ge(0), Fact(unit="events, 0 or more")] | None = Field(
        None, description="Most events between a partition and the newest one. Unset: any number."
    )
    stalled_after: Duration = Field(
        60.0, description="Time without progress after which a partition that has events to handle counts as stalled."
    )


class LoggingSettings(Section):
    """How the command line writes its log. An embedded application sets up the standard logging itself."""

    format: LogFormat = Field(
        LogFormat.TEXT, description="How opencqrs run writes messages: text for people, or a line of JSON each."
    )


class RunSettings(Section):
    """How a process of the command line runs and ends."""

    sigterm_exit_code: int = Field(
        130,
        description="Exit code after SIGTERM, such as 0 for a service manager that treats all others as a failure.",
        ge=0,
        le=255,
    )


class ActivateSettings(Section):
    """When a document of a file applies."""

    on_profile: Annotated[list[str], Fact(in_documents_only=True)] = Field(
        [], description="The same as config.on-profile, in the spelling of Spring Boot."
    )


class ConfigSettings(Section):
    """How the configuration itself is read."""

    unknown: OnUnknown = Field(OnUnknown.ERROR, description="What happens to keys that name no setting.")
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
    clock: ClockSettings = Field(ClockSettings(), description="Time.")
    node: NodeSettings = Field(NodeSettings(), description="This process among those that share partitions.")
    spark: SparkSettings = Field(SparkSettings(), description="The Spark session.")
    run: RunSettings = Field(RunSettings(), description="How a process of the command line runs and ends.")
    http: HttpSettings = Field(HttpSettings(), description="What a running process answers over HTTP.")
    health: HealthSettings = Field(HealthSettings(), description="What counts as unhealthy.")
    logging: LoggingSettings = Field(LoggingSettings(), description="How the command line writes its log.")
    event_handling: EventHandlingSettings = Field(EventHandlingSettings(), description="All processing groups.")
    jobs: JobsSettings = Field(JobsSettings(), description="All jobs, each below its name.")
    config: ConfigSettings = Field(ConfigSettings(), description="How the configuration itself is read.")
    profiles: ProfilesSettings = Field(ProfilesSettings(), description="Which variants of the configuration apply.")

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of the running load, the highest first; outside of a load, the given values only.

        A subclass may put its own sources above, between or below them: their values are bound like all others, in
        any spelling, and have their name as origin. It may leave out some of the four that it receives; inline JSON,
        files, defaults and the properties of tests are added if it does.
        """
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return init_settings.given.ours if isinstance(init_settings, LayeredSource) else (init_settings,)
