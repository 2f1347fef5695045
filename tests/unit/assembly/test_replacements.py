"""The choice of a part: the named provider, else the setting, else the only provider, else the built-in part."""

from __future__ import annotations

import pytest
from dependency_injector import containers, providers

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.assembly.back_offs import back_off_for
from opencqrs_py.assembly.conditions import Decision
from opencqrs_py.assembly.databases import (
    DatabaseRule,
    SettingValue,
    choose_database,
    choose_event_store,
    decide_event_store,
)
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.assembly.parts import clock_for, event_store_for
from opencqrs_py.assembly.replacements import (
    BACK_OFF,
    CLOCK,
    EVENT_STORE,
    TRACKER,
    as_made,
    decide,
    decide_back_off,
    decide_clock,
    decide_tracking,
    provided,
)
from opencqrs_py.config import Settings, effective_group
from opencqrs_py.errors import AssemblyError, ProjectCodeError
from opencqrs_py.processing.ports import BackOff, Clock, EventSource, EventStore, ProgressTracker
from opencqrs_py.processing.recovery import NoRetry
from opencqrs_py.testing import FakeClock


class Tracker:
    claim = unit = renewed = report = statuses = skipped = is_outage = None


class Mailer: ...


def make_store() -> EventStore:
    return InMemoryEventStore()


def make_source() -> EventSource:
    return InMemoryEventStore()


def make_tracker() -> ProgressTracker:
    return Tracker()


def make_clock() -> Clock:
    return FakeClock()


def make_back_off() -> BackOff:
    return NoRetry()


def registered(**made) -> ContainerInjector:
    container = containers.DynamicContainer()
    for name, what in made.items():
        container.set_provider(name, what if isinstance(what, providers.Provider) else providers.Singleton(what))
    return ContainerInjector([container])


def group(**sections):
    return effective_group(Settings(event_handling={"groups": {"books": sections}}), "books")


DEFAULT = SettingValue("sqlite:////p/opencqrs.db", "sqlite:///opencqrs.db", "built-in default", is_default=True)
SET = SettingValue("sqlite:////p/events.db", "sqlite:///events.db", "application.yaml:1:1")
DATABASE = Decision("", "database", "sqlite:///opencqrs.db", "…")


def store(injector, *, ref=None, is_set=False):
    return decide_event_store(
        DatabaseRule(SET if is_set else DEFAULT, store_ref=ref and SettingValue(ref, ref, "x")), injector
    )


def clock(injector, *, ref=None, is_set=False):
    assert not is_set
    return decide_clock(ref, injector)


def tracker(injector, *, ref=None, is_set=False):
    said = {"tracker_ref": ref} if ref else {"tracking": "in-memory"} if is_set else {}
    return decide_tracking(group(progress=said), DATABASE, injector)


def back_off(injector, *, ref=None, is_set=False):
    said = {"back_off_ref": ref} if ref else {"policy": "exponential_backoff"} if is_set else {}
    return decide_back_off(group(retry=said), injector)


PARTS = [
    pytest.param(store, EVENT_STORE, InMemoryEventStore, "sqlite:///opencqrs.db", id="event store"),
    pytest.param(clock, CLOCK, FakeClock, "the machine's", id="clock"),
    pytest.param(tracker, TRACKER, Tracker, "sql", id="tracker"),
    pytest.param(back_off, BACK_OFF, NoRetry, "exponential_backoff", id="back-off"),
]


@pytest.mark.parametrize(("decide", "part", "made", "built_in"), PARTS)
def test_without_a_provider_the_part_is_the_built_in_one(decide, part, made, built_in):
    decision = decide(registered(mailer=Mailer))
    assert (decision.subject, decision.choice, decision.provider) == (part.subject, built_in, "")
    assert decision.error is None
    assert decision.reason


@pytest.mark.parametrize(("decide", "part", "made", "built_in"), PARTS)
def test_the_only_provider_of_the_protocol_replaces_the_part(decide, part, made, built_in):
    injector = registered(mine=made, mailer=Mailer)
    decision = decide(injector)
    assert (decision.choice, decision.provider, decision.setting) == ("provider mine", "mine", "")
    assert decision.reason == f"the only provider of {part.name}" + (
        f", and {part.setting} is not set" if part.setting else ""
    )
    assert "provider mine" in decision.candidates
    assert type(provided(decision, part, injector)) is made


@pytest.mark.parametrize(("decide", "part", "made", "built_in"), PARTS)
def test_several_providers_are_an_error_that_names_the_setting_that_chooses(decide, part, made, built_in):
    injector = registered(one=made, two=made)
    decision = decide(injector)
    assert decision.choice == ""
    error = decision.error
    assert (error.code, error.what) == (
        "OCQ-532",
        f"there are 2 providers of {part.name}, and none is chosen: one, two",
    )
    assert error.fix.startswith(f"name one with {part.reference}")
    assert part.setting in error.fix
    with pytest.raises(AssemblyError, match="OCQ-532"):
        provided(decision, part, injector)


@pytest.mark.parametrize(("decide", "part", "made", "built_in"), PARTS)
def test_the_named_one_of_several_providers_is_used(decide, part, made, built_in):
    injector = registered(one=made, two=made)
    decision = decide(injector, ref="two")
    assert (decision.choice, decision.provider, decision.reason) == ("provider two", "two", "named")
    assert decision.setting == part.reference
    assert decision.candidates[-2:] == ("provider one", "provider two")


@pytest.mark.parametrize(("decide", "part", "made", "built_in"), PARTS)
def test_a_name_that_is_not_a_provider_of_the_part_is_an_error(decide, part, made, built_in):
    assert decide(registered(mine=made), ref="min").error.what == "no provider is called 'min'"
    wrong = decide(registered(mailer=Mailer), ref="mailer").error
    assert (wrong.code, wrong.where) == ("OCQ-502", part.reference)
    assert wrong.what.startswith("provider 'mailer' makes Mailer, which has no ")


@pytest.mark.parametrize(("decide", "part", "made", "built_in"), [row for row in PARTS if row.id != "clock"])
def test_a_setting_of_the_part_takes_precedence_over_an_unnamed_provider(decide, part, made, built_in):
    for injector in (registered(mine=made), registered(one=made, two=made)):
        decision = decide(injector, is_set=True)
        assert (decision.provider, decision.reason, decision.setting) == ("", "set", part.setting)
        assert decision.choice in ("sqlite:///events.db", "in_memory", "exponential_backoff")
        assert set(decision.candidates) >= {f"provider {name}" for name in injector.makers(part.protocol)}


class EmptyStore(InMemoryEventStore):
    def __len__(self) -> int:
        return 0


class FalseClock(FakeClock):
    def __bool__(self) -> bool:
        return False


class FalseBackOff(NoRetry):
    def __len__(self) -> int:
        return 0


def built_in():
    pytest.fail("the built-in part was asked for")


@pytest.mark.parametrize(
    ("made", "decide", "part_for"),
    [
        (EmptyStore, store, lambda choice, injector: event_store_for(choice, lambda: injector, built_in)),
        (FalseClock, clock, clock_for),
        (FalseBackOff, back_off, lambda choice, injector: back_off_for(group(), choice, injector)),
    ],
)
def test_a_provided_part_that_is_falsy_is_still_used(made, decide, part_for):
    injector = registered(mine=made)
    part = part_for(decide(injector), injector)
    assert not part
    assert type(part) is made


@pytest.mark.parametrize(
    ("decide", "make"),
    [
        (store, make_store),
        (store, make_source),
        (tracker, make_tracker),
        (clock, make_clock),
        (back_off, make_back_off),
    ],
)
@pytest.mark.parametrize("scope", [providers.Factory, providers.Singleton, providers.ThreadLocalSingleton])
def test_a_function_is_recognised_by_its_return_annotation(decide, make, scope):
    assert decide(registered(mine=scope(make))).provider == "mine"


@pytest.mark.parametrize(
    ("decide", "part", "provider", "code", "says"),
    [
        (clock, CLOCK, "raises", "OCQ-217", "provider 'mine' raised OSError: no line"),
        (clock, CLOCK, "wrong", "OCQ-502", "provider 'mine' makes Mailer, which has no monotonic, now"),
        (back_off, BACK_OFF, "raises", "OCQ-217", "provider 'mine' raised OSError: no line"),
        (back_off, BACK_OFF, "wrong", "OCQ-502", "provider 'mine' makes Mailer, which has no waits"),
        (tracker, TRACKER, "raises", "OCQ-217", "provider 'mine' raised OSError: no line"),
        (tracker, TRACKER, "wrong", "OCQ-502", "provider 'mine' makes Mailer, which has no claim, unit"),
        (store, EVENT_STORE, "raises", "OCQ-217", "provider 'mine' raised OSError: no line"),
        (store, EVENT_STORE, "wrong", "OCQ-502", "provider 'mine' makes Mailer, which has no head, read"),
    ],
)
def test_a_provider_that_raises_or_makes_another_type_is_refused_with_its_name(decide, part, provider, code, says):
    def raises():
        raise OSError("no line")

    def makes_another():
        return Mailer()

    make = raises if provider == "raises" else makes_another
    make.__annotations__["return"] = part.protocol
    injector = registered(mine=providers.Factory(make))
    for decision, where in ((decide(injector), f"as {part.name}"), (decide(injector, ref="mine"), part.reference)):
        with pytest.raises((ProjectCodeError, AssemblyError)) as caught:
            provided(decision, part, injector)
        assert (caught.value.code, caught.value.where) == (code, where)
        assert caught.value.what.startswith(says)
        shown = as_made(decision, lambda decision=decision: provided(decision, part, injector))
        assert (shown.choice, shown.error.code, shown.reason) == ("", code, caught.value.what)


def test_the_decision_for_a_valid_part_is_shown_unchanged():
    injector = registered(mine=FakeClock)
    decision = clock(injector)
    assert as_made(decision, lambda: provided(decision, CLOCK, injector)) is decision
    assert as_made(clock(registered()), lambda: pytest.fail("nothing is to be made")).choice == "the machine's"


@pytest.mark.parametrize(
    ("rule", "where"),
    [
        (
            DatabaseRule(SET, store_ref=SettingValue("mine", "mine", "a.yaml:2:1")),
            "application.yaml:1:1 and a.yaml:2:1",
        ),
        (DatabaseRule(DEFAULT, store_ref=SettingValue("mine", "mine", "a.yaml:2:1"), read_only=True), "a.yaml:2:1"),
    ],
)
def test_two_settings_for_the_event_store_are_an_error_with_their_places(rule, where):
    error = decide_event_store(rule, registered(mine=InMemoryEventStore)).error
    assert (error.code, error.where) == ("OCQ-521", where)
    assert error.what.endswith("and event-store.ref are both set, and only one of them can be the event store")


def test_no_module_is_imported_if_settings_name_the_event_store():
    def imported():
        pytest.fail("nothing is to be imported")

    assert choose_event_store(DatabaseRule(SET), imported).choice == "sqlite:///events.db"


@pytest.mark.parametrize(
    ("made", "rule", "choice", "reason"),
    [
        (
            {"mine": InMemoryEventStore},
            DatabaseRule(DEFAULT),
            "none",
            "a provider makes the event store, and no other one is configured or registered",
        ),
        ({"mine": InMemoryEventStore}, DatabaseRule(SET), "sqlite:///events.db", "the event store's, since no other "),
        ({"mine": InMemoryEventStore}, DatabaseRule(DEFAULT, url=SET), "sqlite:///events.db", "set"),
        (
            {"mine": InMemoryEventStore},
            DatabaseRule(SettingValue("foo://x", "foo://x", "", is_default=True)),
            "none",
            "a provider makes the event store",
        ),
        (
            {"one": InMemoryEventStore, "two": InMemoryEventStore},
            DatabaseRule(DEFAULT),
            "",
            "the event store is not decided",
        ),
    ],
)
def test_an_event_store_of_a_provider_is_not_used_as_database_for_read_models(made, rule, choice, reason):
    decision = choose_database(rule, registered(**made)).decision
    assert decision.choice == choice
    assert decision.reason.startswith(reason)


class WaitingList:
    """A project class that has a method of the same name."""

    def waits(self) -> list[str]:
        return ["ada"]


class Diary:
    def monotonic(self) -> float: ...
    def now(self) -> str: ...


@pytest.mark.parametrize(("part", "made"), [(BACK_OFF, WaitingList), (CLOCK, Diary)])
def test_a_class_that_happens_to_match_a_small_protocol_is_used_only_if_a_setting_names_it(part, made):
    injector = registered(mine=made)
    otherwise = Decision("", part.subject, "built in", "no provider")
    assert decide(part, otherwise, injector, None) == otherwise
    assert decide(part, otherwise, injector, "mine").provider == "mine"
