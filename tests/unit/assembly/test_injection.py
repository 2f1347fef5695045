from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Optional, Protocol

import pytest
from dependency_injector import containers, providers
from pydantic import BaseModel, Field
from sqlalchemy import Engine as SqlEngine
from sqlalchemy import create_engine

from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.errors import AssemblyError, HandlerSignatureError, ProjectCodeError
from opencqrs_py.processing.binding import with_arguments
from opencqrs_py.processing.roles import AROUND_EVENT, HANDLER, ON_START, UPCASTER
from opencqrs_py.processing.signatures import read_signature


class Mailer: ...


class SmtpMailer(Mailer): ...


class Clock: ...


def make_clock() -> Clock:
    return Clock()


class Container(containers.DeclarativeContainer):
    mailer = providers.Singleton(SmtpMailer)
    clock = providers.Factory(make_clock)
    limit = providers.Object(7)
    unknown = providers.Callable(lambda: "?")


@pytest.fixture
def injector():
    return ContainerInjector([Container()])


@pytest.mark.parametrize(("wanted", "there"), [(Mailer, True), (SmtpMailer, True), (Clock, True), (int, True)])
def test_a_provider_is_found_by_the_type_it_makes_or_a_parent_of_it(injector, wanted, there):
    assert injector.provides(wanted) is there
    assert isinstance(injector.provide(wanted), wanted)


@pytest.mark.parametrize("wanted", [str, object, "Mailer", None, list[int]])
def test_a_type_without_a_provider_is_not_provided(injector, wanted):
    assert not injector.provides(wanted)


def test_a_singleton_is_made_once(injector):
    assert injector.provide(Mailer) is injector.provide(Mailer)


def test_several_candidates_are_an_error_that_names_them():
    class Two(containers.DeclarativeContainer):
        a = providers.Factory(SmtpMailer)
        b = providers.Factory(Mailer)

    with pytest.raises(AssemblyError, match="2 providers make Mailer: a, b"):
        ContainerInjector([Two()]).provide(Mailer)


def test_a_name_without_provider_is_an_error_that_lists_the_names(injector):
    with pytest.raises(AssemblyError) as caught:
        injector.named("mailr", "progress.tracker-ref")
    assert caught.value.where == "progress.tracker-ref"
    assert caught.value.fix == "did you mean mailer? There are: clock, limit, mailer, unknown"
    assert isinstance(injector.named("mailer", ""), SmtpMailer)
    with pytest.raises(AssemblyError, match="no container was found"):
        ContainerInjector().named("x", "")


def test_several_candidates_for_a_handler_are_an_error_when_it_is_bound():
    class Two(containers.DeclarativeContainer):
        a = providers.Factory(SmtpMailer)
        b = providers.Factory(Mailer)

    injector = ContainerInjector([Two()])

    def around(mailer: Mailer):
        yield

    def mail(mailer: Mailer) -> None: ...

    for call, role in [(mail, HANDLER), (mail, ON_START), (mail, UPCASTER), (around, AROUND_EVENT)]:
        with pytest.raises(AssemblyError, match="2 providers make Mailer: a, b") as caught:
            read_signature(call, "handlers.py:3 (mail)", injector, role)
        assert (caught.value.code, caught.value.where) == ("OCQ-503", "handlers.py:3 (mail)")
    assert injector.provides(SmtpMailer)


class Protocolled(Protocol):
    def send(self, text: str) -> None: ...


class Sender:
    def send(self, text: str) -> None: ...


class Forwarding:
    def __getattr__(self, name: str) -> object:
        return getattr(Sender(), name)


def make_engine(url: str) -> Engine: ...  # noqa: F821 imported for type checkers only


def lend_engine() -> Iterator[sqlalchemy.Engine]:  # noqa: F821 as above
    yield


def lend_clock() -> Iterator[Clock]:
    yield Clock()


@pytest.mark.parametrize(
    ("provider", "wanted", "made"),
    [
        (providers.Singleton(create_engine, "sqlite://"), SqlEngine, True),
        (providers.Resource(create_engine, "sqlite://"), SqlEngine, True),
        (providers.Singleton(make_engine, ""), SqlEngine, True),
        (providers.Resource(lend_engine), SqlEngine, True),
        (providers.Resource(lend_clock), Clock, True),
        (providers.Callable(lambda: "?"), SqlEngine, False),
        (providers.Factory(SmtpMailer), SqlEngine, False),
        (providers.Singleton(Sender), Protocolled, True),
        (providers.Object(Sender()), Protocolled, True),
        (providers.Singleton(SmtpMailer), Protocolled, False),
        (providers.Singleton(Forwarding), Protocolled, False),
        (providers.Configuration(), Clock, False),
        (providers.List(), Clock, False),
    ],
)
def test_the_type_of_a_provider_is_known_by_class_annotation_or_methods(provider, wanted, made):
    container = containers.DynamicContainer()
    container.set_provider("it", provider)
    assert ContainerInjector([container]).makers(wanted) == (("it",) if made else ())


def test_a_container_is_replaced_by_one_of_a_subclass():
    class Base(containers.DeclarativeContainer):
        mailer = providers.Singleton(Mailer)
        clock = providers.Singleton(Clock)

    class Child(Base):
        mailer = providers.Singleton(SmtpMailer)

    injector = ContainerInjector([Base(), Child()])
    assert type(injector.provide(Mailer)) is SmtpMailer
    assert injector.makers(Clock) == ("clock",)


class Gateways(containers.DeclarativeContainer):
    config = providers.Dependency()
    mailer = providers.Singleton(SmtpMailer)


def test_a_nested_container_is_used_where_it_is_nested_and_nowhere_else():
    class Outer(containers.DeclarativeContainer):
        gateways = providers.Container(Gateways, config=providers.Object(1))
        user = providers.Factory(list, providers.List(gateways.mailer))

    outer = Outer()
    injector = ContainerInjector([Gateways(), outer])
    assert injector.provide(Mailer) is outer.gateways.mailer() is outer.user()[0]
    assert injector.makers(Mailer) == ("mailer",)
    assert injector.named("Outer.gateways.mailer", "") is outer.gateways.mailer()


def test_two_uses_of_a_nested_container_are_distinguished():
    class Outer(containers.DeclarativeContainer):
        a = providers.Container(Gateways, config=1)
        b = providers.Container(Gateways, config=2)

    with pytest.raises(AssemblyError, match=r"2 providers make Mailer: Outer\.a\.mailer, Outer\.b\.mailer"):
        ContainerInjector([Outer(), Gateways()]).provides(Mailer)


@pytest.mark.parametrize(
    ("scope", "one_per_thread", "one_for_all"),
    [
        (providers.Factory, False, False),
        (providers.Callable, False, False),
        (providers.Singleton, True, True),
        (providers.ThreadSafeSingleton, True, True),
        (providers.ThreadLocalSingleton, True, False),
        (providers.ContextLocalSingleton, True, False),
        (providers.Resource, True, True),
    ],
)
def test_the_scope_of_a_part_is_that_of_its_provider(scope, one_per_thread, one_for_all):
    container = containers.DynamicContainer()
    container.set_provider("mailer", scope(Mailer))
    injector = ContainerInjector([container])
    here = [injector.provide(Mailer) for _ in range(2)]
    with ThreadPoolExecutor(1) as other:
        there = [other.submit(injector.provide, Mailer).result() for _ in range(2)]
    assert ((here[0] is here[1]), (there[0] is there[1])) == (one_per_thread, one_per_thread)
    assert (here[0] is there[0]) == one_for_all


def test_an_overridden_provider_is_found_by_its_replacement():
    container = containers.DynamicContainer()
    container.set_provider("mailer", providers.Singleton(Mailer))
    container.mailer.override(providers.Singleton(SmtpMailer))
    container.set_provider("clock", providers.Singleton(Mailer))
    container.clock.override(Clock())
    injector = ContainerInjector([container])
    assert (injector.makers(SmtpMailer), injector.makers(Clock)) == (("mailer",), ("clock",))
    assert type(injector.provide(Mailer)) is SmtpMailer


def test_one_name_in_two_containers_is_qualified_by_the_container():
    class One(containers.DeclarativeContainer):
        mailer = providers.Singleton(Mailer)

    class Two(containers.DeclarativeContainer):
        mailer = providers.Singleton(SmtpMailer)

    injector = ContainerInjector([One(), Two()])
    with pytest.raises(AssemblyError, match=r"2 providers make Mailer: One\.mailer, Two\.mailer"):
        injector.provide(Mailer)
    with pytest.raises(AssemblyError, match="2 providers are called 'mailer'") as caught:
        injector.named("mailer", "progress.tracker-ref")
    assert caught.value.fix == "include the container: One.mailer"
    assert type(injector.named("Two.mailer", "")) is SmtpMailer
    assert injector.makers(SmtpMailer) == ("Two.mailer",)


def some_clock():
    return Clock()


def some_mailer():
    return SmtpMailer()


@pytest.mark.parametrize(
    ("provider", "wanted", "at_check", "says"),
    [
        (providers.Singleton(Clock), Mailer, True, "provider 'it' makes Clock, no Mailer"),
        (providers.Callable(some_clock), Mailer, False, "provider 'it' makes Clock, no Mailer"),
        (providers.Singleton(Clock), Protocolled, True, "provider 'it' makes Clock, which has no send"),
        (providers.Callable(some_clock), Protocolled, False, "provider 'it' makes Clock, which has no send"),
        (providers.Callable(some_mailer), Mailer, False, None),
        (providers.Singleton(Forwarding), Protocolled, False, None),
        (providers.Callable(some_clock), None, False, None),
    ],
)
def test_a_named_provider_must_make_the_type_that_the_setting_requires(provider, wanted, at_check, says):
    container = containers.DynamicContainer()
    container.set_provider("it", provider)
    injector = ContainerInjector([container])
    if at_check:
        with pytest.raises(AssemblyError, match=says):
            injector.check("it", "some.ref", wanted)
    else:
        injector.check("it", "some.ref", wanted)
    if says:
        with pytest.raises(AssemblyError, match=says):
            injector.named("it", "some.ref", wanted)
    else:
        assert injector.named("it", "some.ref", wanted) is not None


def test_event_data_never_come_from_a_container():
    class Data(containers.DeclarativeContainer):
        one = providers.Object({})
        two = providers.Object({"a": 1})

    assert not ContainerInjector([Data()]).provides(dict)


def test_a_class_whose_constructor_has_two_candidates_for_an_argument_is_refused_with_its_place():
    class Two(containers.DeclarativeContainer):
        a = providers.Factory(SmtpMailer)
        b = providers.Factory(Mailer)

    class Wants:
        def __init__(self, mailer: Mailer) -> None: ...

    with pytest.raises(AssemblyError, match="2 providers make Mailer") as caught:
        ContainerInjector([Two()]).create(Wants, "handlers.py:1 (Wants)")
    assert caught.value.where == "handlers.py:1 (Wants)"


def test_a_constructor_gets_its_required_arguments_and_keeps_its_defaults(injector):
    class Wants:
        def __init__(self, mailer: Mailer, text: str = "default", *rest: int, clock: Clock) -> None:
            self.all = (mailer, text, rest, clock)

    mailer, text, rest, clock = injector.create(Wants, "here").all
    assert (type(mailer), text, rest, type(clock)) == (SmtpMailer, "default", (), Clock)


def test_a_constructor_gets_optional_parts_that_are_provided_and_keeps_plain_options(injector):
    class Wants:
        def __init__(
            self,
            mailer: Mailer | None = None,
            clock: Optional[Clock] = None,  # noqa: UP045 the old spelling is meant
            engine: SqlEngine | None = None,
            limit: int | None = None,
        ) -> None:
            self.all = (mailer, clock, engine, limit)

    mailer, clock, engine, limit = injector.create(Wants, "here").all
    assert (type(mailer), type(clock), engine, limit) == (SmtpMailer, Clock, None, None)


def wanting(annotation: object) -> type:
    """Return a class whose constructor has one parameter with this annotation."""

    class Books:
        def __init__(self, mailer) -> None: ...

    if annotation is not NOTHING:
        Books.__init__.__annotations__["mailer"] = annotation
    return Books


class Model(BaseModel, arbitrary_types_allowed=True):
    mailer: Mailer
    clock: Optional[Clock] = None  # noqa: UP045 as it may be written
    size: int = Field(default=3, alias="limit")


def test_the_fields_of_a_model_are_provided(injector):
    made = injector.create(Model, "handlers.py:1 (Model)")
    assert (type(made.mailer), type(made.clock), made.size) == (SmtpMailer, Clock, 7)


def test_a_model_field_without_a_provider_is_refused_with_the_fix():
    with pytest.raises(AssemblyError) as caught:
        ContainerInjector().create(Model, "handlers.py:1 (Model)")
    assert (caught.value.code, caught.value.what) == ("OCQ-504", "nothing provides argument 'mailer' of Model")
    assert caught.value.fix == "add a provider of Mailer to a container in the project"


NOTHING = object()
CLASS_FIX = "annotate it with a class that a provider makes, as in mailer: Mailer ({}); or give it a default"


@pytest.mark.parametrize(
    ("annotation", "fix"),
    [
        (Mailer, "add a provider of Mailer to a container in the project"),
        (str, "add a provider of str to a container in the project"),
        (NOTHING, CLASS_FIX.format("it has no annotation")),
        (None, CLASS_FIX.format("None names none")),
        (object, CLASS_FIX.format("object names none")),
        (dict, CLASS_FIX.format("dict names none")),
        (int | None, CLASS_FIX.format("int | None names none")),
        (Mailer | None, "add a provider of Mailer to a container in the project"),
        (Protocolled, CLASS_FIX.format("Protocolled is a protocol")),
        (Protocolled | None, CLASS_FIX.format("Protocolled is a protocol")),
    ],
)
def test_an_argument_without_a_provider_is_refused_with_the_fix(annotation, fix):
    with pytest.raises(AssemblyError) as caught:
        ContainerInjector().create(wanting(annotation), "handlers.py:1 (Books)")
    error = caught.value
    assert (error.code, error.where, error.fix) == ("OCQ-504", "handlers.py:1 (Books)", fix)
    assert error.what == "nothing provides argument 'mailer' of Books"


def test_a_constructor_whose_annotations_cannot_be_read_is_refused():
    with pytest.raises(HandlerSignatureError) as caught:
        ContainerInjector().create(wanting("Postman"), "handlers.py:1 (Books)")
    error = caught.value
    assert (error.code, error.where) == ("OCQ-202", "handlers.py:1 (Books)")
    assert error.what == "the annotations of the constructor of Books cannot be read (name 'Postman' is not defined)"


class MailError(BaseException):
    """An error that is not an Exception, like a panic of an extension."""


def make_mailer() -> Mailer:
    raise ConnectionRefusedError("the mail server is unavailable")


def panic() -> Mailer:
    raise MailError


class Failing(containers.DeclarativeContainer):
    mailer = providers.Factory(make_mailer)


class Panicking(containers.DeclarativeContainer):
    mailer = providers.Factory(panic)


class WantsMailer:
    def __init__(self, mailer: Mailer) -> None: ...


class Unmakeable:
    def __init__(self) -> None:
        raise KeyError("SMTP_HOST")


def connect() -> Mailer:
    json.loads("no JSON")
    return Mailer()


def test_an_error_raised_by_a_library_names_the_line_of_the_project() -> None:
    class Calling(containers.DeclarativeContainer):
        mailer = providers.Factory(connect)

    with pytest.raises(ProjectCodeError) as caught:
        ContainerInjector([Calling()]).provide(Mailer)
    assert caught.value.what.endswith(f"({__file__}:{connect.__code__.co_firstlineno + 1})")


async def make_mailer_later() -> Mailer:
    return Mailer()


def test_an_async_provider_is_refused():
    class Async(containers.DeclarativeContainer):
        mailer = providers.Factory(make_mailer_later)

    with pytest.raises(ProjectCodeError, match="provider 'mailer' returned a coroutine"):
        ContainerInjector([Async()]).provide(Mailer)


REFUSED = "provider 'mailer' raised ConnectionRefusedError: the mail server is unavailable"


@pytest.mark.parametrize(
    ("ask", "code", "what", "where"),
    [
        (lambda: ContainerInjector([Failing()]).provide(Mailer), "OCQ-217", REFUSED, ""),
        (lambda: ContainerInjector([Panicking()]).provide(Mailer), "OCQ-217", "provider 'mailer' raised MailError", ""),
        (
            lambda: ContainerInjector([Failing()]).named("mailer", "some.mailer-ref", Mailer),
            "OCQ-217",
            REFUSED,
            "some.mailer-ref",
        ),
        (lambda: ContainerInjector([Failing()]).create(WantsMailer, "here"), "OCQ-217", REFUSED, "here"),
        (
            lambda: ContainerInjector().create(Unmakeable, "here"),
            "OCQ-226",
            "the constructor of handler class Unmakeable raised KeyError: 'SMTP_HOST'",
            "here",
        ),
    ],
)
def test_an_error_while_making_a_part_names_it_and_keeps_its_cause(ask, code, what, where):
    with pytest.raises(ProjectCodeError) as caught:
        ask()
    line = next(reversed(traceback.extract_tb(caught.value.__cause__.__traceback__))).lineno
    assert (caught.value.code, caught.value.where) == (code, where)
    assert caught.value.what == f"{what} ({__file__}:{line})"
    assert isinstance(caught.value.__cause__, ConnectionRefusedError | MailError | KeyError)


def test_a_provider_that_fails_for_an_argument_is_reported_with_it():
    def handle(event: dict, mailer: Mailer) -> None: ...

    signature = read_signature(handle, "handlers.py:7 (handle)", ContainerInjector([Failing()]), HANDLER)
    call = with_arguments(handle, signature, ContainerInjector([Failing()]), "handlers.py:7 (handle)")
    with pytest.raises(ProjectCodeError) as caught:
        call({}, None, None, None)
    what = caught.value.what
    assert what.startswith(f"argument 'mailer' of handlers.py:7 (handle) cannot be provided: {REFUSED} ({__file__}:")
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
