from __future__ import annotations

import pytest
from dependency_injector import containers, providers

from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.errors import AssemblyError


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
def test_a_provider_is_found_by_what_it_makes_or_by_a_parent_of_it(injector, wanted, there):
    assert injector.provides(wanted) is there
    assert isinstance(injector.provide(wanted), wanted)


@pytest.mark.parametrize("wanted", [str, object, "Mailer", None, list[int]])
def test_what_nobody_makes_is_not_provided(injector, wanted):
    assert not injector.provides(wanted)


def test_a_singleton_stays_one(injector):
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
    assert caught.value.fix == "use one of: clock, limit, mailer, unknown"
    assert isinstance(injector.named("mailer", ""), SmtpMailer)
    with pytest.raises(AssemblyError, match="no container was found"):
        ContainerInjector().named("x", "")


def test_a_class_gets_what_its_constructor_asks_for_and_keeps_its_defaults(injector):
    class Wants:
        def __init__(self, mailer: Mailer, text: str = "default", *rest: int, clock: Clock) -> None:
            self.all = (mailer, text, rest, clock)

    mailer, text, rest, clock = injector.create(Wants, "here").all
    assert (type(mailer), text, rest, type(clock)) == (SmtpMailer, "default", (), Clock)
