"""Wiring: parameters that dependency-injector fills itself, and markers that it does not replace."""

import sys
from collections.abc import Iterator
from typing import Annotated

import pytest
from dependency_injector import containers, providers
from dependency_injector.wiring import Closing, Provide, Provider, inject

from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.errors import AssemblyError, HandlerSignatureError
from opencqrs_py.processing.binding import NothingProvided, with_arguments
from opencqrs_py.processing.signatures import read_signature


class Mailer: ...


class SmtpMailer(Mailer): ...


def lend_mailer() -> Iterator[SmtpMailer]:
    yield SmtpMailer()


class Container(containers.DeclarativeContainer):
    config = providers.Configuration(default={"sender": "me@x", "mail": {"port": 25}})
    mailer = providers.Singleton(Mailer)
    smtp = providers.Singleton(SmtpMailer)
    opened = providers.Resource(lend_mailer)


@inject
def by_position(event: dict, mailer: Mailer = Provide[Container.mailer]):
    return event, mailer


@inject
def by_keyword(event: dict, *, mailer: Mailer = Provide[Container.mailer]):
    return event, mailer


@inject
def before_the_event(mailer: Mailer = Provide[Container.mailer], *, event: dict):
    return event, mailer


@inject
def annotated(event: dict, mailer: Annotated[Mailer, Provide[Container.mailer]]):
    return event, mailer


@inject
def unannotated(event: dict, mailer=Provide[Container.mailer]):
    return event, mailer


@inject
def text(event: dict, sender: str = Provide[Container.config.sender]):
    return event, sender


@inject
def mapping(event: dict, mail: dict = Provide[Container.config.mail]):
    return event, mail


@inject
def maker(event: dict, make: object = Provider[Container.mailer]):
    return event, make()


@inject
def closed(event: dict, mailer: object = Closing[Provide[Container.opened]]):
    return event, type(mailer)


class Handlers:
    @inject
    def method(self, event: dict, mailer: Mailer = Provide[Container.mailer]):
        return event, mailer

    def replaced_by_wiring(self, event: dict, sender: str = Provide[Container.config.sender]):
        return event, sender


class Called:
    __hash__ = None

    @inject
    def __call__(self, event: dict, sender: str = Provide[Container.config.sender]):
        return event, sender


def not_injected(event: dict, sender: str = Provide[Container.config.sender]): ...
def not_injected_but_provided(event: dict, mailer: Mailer = Provide[Container.mailer]): ...
def not_injected_and_no_event(event: dict, mail: dict = Provide[Container.config.mail]): ...
@inject
def by_position_only(event: dict, mailer: Mailer = Provide[Container.mailer], /): ...
@inject
def of_no_provider(event: dict, mailer: Mailer = Provide["mailman"]): ...


# Listed before the module is wired, since wiring replaces functions without @inject
UNMADE = [not_injected, not_injected_but_provided, not_injected_and_no_event, by_position_only, of_no_provider]
INJECTED = [by_position, by_keyword, before_the_event, unannotated, text, mapping, maker, closed]


@pytest.fixture
def container():
    return Container()


@pytest.fixture
def wired(container):
    container.wire(modules=[sys.modules[__name__]])
    yield container
    container.unwire()


def called(call, injector):
    bound = with_arguments(call, read_signature(call, "handlers.py:3 (mail)", injector), injector, "here")
    return bound({"number": 1}, None, None, None)


@pytest.mark.parametrize("nothing", [False, True], ids=["provided", "nothing provided"])
def test_wired_arguments_are_left_to_dependency_injector(wired, *, nothing):
    injector = NothingProvided() if nothing else ContainerInjector([wired])
    mailer = wired.mailer()
    expected = {
        by_position: mailer,
        by_keyword: mailer,
        before_the_event: mailer,
        annotated: mailer,
        unannotated: mailer,
        text: "me@x",
        mapping: {"port": 25},
        maker: mailer,
        closed: SmtpMailer,
        Handlers().method: mailer,
        Handlers().replaced_by_wiring: "me@x",
        Called().__call__: "me@x",
    }
    assert {each: called(each, injector) for each in expected} == {
        each: ({"number": 1}, value) for each, value in expected.items()
    }
    assert called(Called(), injector) == ({"number": 1}, "me@x")


@pytest.mark.parametrize("call", [*UNMADE, *INJECTED], ids=lambda call: call.__name__)
def test_a_marker_that_wiring_does_not_replace_is_refused_instead_of_passed(call, container):
    with pytest.raises(HandlerSignatureError, match=r"would get \w+ itself: dependency-injector does not") as caught:
        called(call, ContainerInjector([container]))
    assert (caught.value.code, caught.value.where) == ("OCQ-201", "handlers.py:3 (mail)")
    assert "put @inject directly above the function" in caught.value.fix


@pytest.mark.parametrize("call", UNMADE, ids=lambda call: call.__name__)
def test_a_marker_of_a_function_without_inject_is_refused_even_in_a_wired_module(call, wired):
    with pytest.raises(HandlerSignatureError, match=r"would get Provide itself"):
        called(call, ContainerInjector([wired]))


def test_an_object_provided_by_a_test_replaces_the_wired_one(wired):
    mailer = SmtpMailer()
    injector = ContainerInjector([wired], {Mailer: mailer})
    for call in (by_position, by_keyword, before_the_event, annotated, Handlers().method):
        assert called(call, injector) == ({"number": 1}, mailer)


class Injected:
    @inject
    def __init__(self, mailer: Mailer = Provide[Container.mailer], sender: str = Provide[Container.config.sender]):
        self.given = mailer, sender


class NotInjected:
    def __init__(self, mailer: Mailer = Provide[Container.mailer]):
        self.given = mailer


def test_a_constructor_gets_the_wired_object_or_its_replacement(wired):
    assert ContainerInjector([wired]).create(Injected, "here").given == (wired.mailer(), "me@x")
    mailer = SmtpMailer()
    assert ContainerInjector([wired], {Mailer: mailer}).create(Injected, "here").given == (mailer, "me@x")


@pytest.mark.parametrize("cls", [Injected, NotInjected])
def test_a_constructor_that_would_get_a_marker_is_refused(cls, container):
    with pytest.raises(AssemblyError, match=rf"argument 'mailer' of {cls.__name__} would get Provide itself") as caught:
        ContainerInjector([container]).create(cls, "here")
    assert (caught.value.code, caught.value.where) == ("OCQ-504", "here")
