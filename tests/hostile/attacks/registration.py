"""Attacks in how handlers are registered: equal names, loops, factories, nesting. None may be silently left out."""

from __future__ import annotations

from attacks.attack import Attack, End

__all__ = ["ATTACKS"]

_SAFE = (End.RIGHT, End.REFUSED)
_WRITE = "connection.execute(insert(MODEL), row(event))"
_EVEN = """
def {name}(event: Counted, connection: Connection):
    if event.n % 2 == {rest}:
        connection.execute(insert(MODEL), row(event))
"""


def _registered(name: str, source: str, ends: tuple[End, ...] = _SAFE) -> Attack:
    return Attack(
        name=name,
        whole=source,
        ends=ends,
        engines=("thread", "spark"),  # by hand handlers are given, not found
        kinds=("single",),
        correctable=False,
    )


def _halves(first: str, second: str, between: str = "") -> str:
    decorator = "\n\n@event_handling(GROUP, types=TYPES)"
    return decorator + _EVEN.format(name=first, rest=0) + between + decorator + _EVEN.format(name=second, rest=1)


ATTACKS = (
    _registered("two handlers of one name", _halves("on", "on")),
    _registered(
        "two methods of one name",
        """
@event_handling(GROUP)
class Handlers:
    @event_handling(types=TYPES)
    def on(self, event: Counted, connection: Connection):
        if event.n % 2 == 0:
            connection.execute(insert(MODEL), row(event))

    @event_handling(types=TYPES)
    def on(self, event: Counted, connection: Connection):
        if event.n % 2 == 1:
            connection.execute(insert(MODEL), row(event))
""",
    ),
    _registered(
        "two classes of one name",
        "".join(
            f"""
@event_handling(GROUP)
class Handlers:
    @event_handling(types=TYPES)
    def on(self, event: Counted, connection: Connection):
        if event.n % 2 == {rest}:
            connection.execute(insert(MODEL), row(event))
"""
            for rest in (0, 1)
        ),
    ),
    _registered(
        "handlers made in a loop",
        """
for rest in (0, 1):
    @event_handling(GROUP, types=TYPES)
    def on(event: Counted, connection: Connection, rest: int = rest):
        if event.n % 2 == rest:
            connection.execute(insert(MODEL), row(event))
""",
    ),
    _registered(
        "handlers made by a factory",
        """
def made(rest):
    @event_handling(GROUP, types=TYPES)
    def on(event: Counted, connection: Connection):
        if event.n % 2 == rest:
            connection.execute(insert(MODEL), row(event))
    return on


HANDLERS = [made(0), made(1)]
""",
    ),
    _registered(
        "handlers made by a factory that keeps them",
        """
def made(rest):
    @event_handling(GROUP, types=TYPES)
    def on(event: Counted, connection: Connection):
        if event.n % 2 == rest:
            connection.execute(insert(MODEL), row(event))


made(0)
made(1)
""",
    ),
    _registered(
        "a handler whose name is deleted",
        _halves("even", "odd") + "\n\ndel odd\n",
    ),
    _registered(
        "a handler below a class that is nested",
        _halves("even", "unused").partition("@event_handling(GROUP, types=TYPES)\ndef unused")[0]
        + """
class Outer:
    @event_handling(GROUP)
    class Inner:
        @event_handling(types=TYPES)
        def odd(self, event: Counted, connection: Connection):
            if event.n % 2 == 1:
                connection.execute(insert(MODEL), row(event))
""",
    ),
    _registered(
        "a handler that has a second name",
        f"""
@event_handling(GROUP, types=TYPES)
def handle(event: Counted, connection: Connection):
    {_WRITE}


again = handle
""",
        (End.RIGHT,),
    ),
    _registered(
        "a handler that is decorated twice for one group",
        f"""
@event_handling(GROUP, types=TYPES)
@event_handling(GROUP, types=TYPES)
def handle(event: Counted, connection: Connection):
    {_WRITE}
""",
    ),
    _registered(
        "a handler below a decorator that wraps it",
        f"""
import functools


def logged(function):
    @functools.wraps(function)
    def wrapper(*arguments, **more):
        return function(*arguments, **more)
    return wrapper


@logged
@event_handling(GROUP, types=TYPES)
def handle(event: Counted, connection: Connection):
    {_WRITE}
""",
    ),
    _registered(
        "a class below an abstract class with the handler",
        """
import abc


class Parent(abc.ABC):
    @abc.abstractmethod
    def about(self):
        ...

    @event_handling(GROUP, types=TYPES)
    def handle(self, event: Counted, connection: Connection):
        connection.execute(insert(MODEL), row(event))


class Child(Parent):
    def about(self):
        return "child"
""",
    ),
    _registered(
        "a handler in the body of a condition",
        f"""
if True:
    @event_handling(GROUP, types=TYPES)
    def handle(event: Counted, connection: Connection):
        {_WRITE}
""",
        (End.RIGHT,),
    ),
    _registered(
        "a handler with a private name",
        f"""
@event_handling(GROUP, types=TYPES)
def _handle(event: Counted, connection: Connection):
    {_WRITE}
""",
    ),
    _registered(
        "a static method",
        f"""
class Handlers:
    @staticmethod
    @event_handling(GROUP, types=TYPES)
    def handle(event: Counted, connection: Connection):
        {_WRITE}
""",
    ),
    _registered(
        "a class method",
        f"""
class Handlers:
    @classmethod
    @event_handling(GROUP, types=TYPES)
    def handle(cls, event: Counted, connection: Connection):
        {_WRITE}
""",
    ),
    _registered(
        "a group of another spelling",
        """
@event_handling(GROUP.upper(), types=TYPES)
def even(event: Counted, connection: Connection):
    if event.n % 2 == 0:
        connection.execute(insert(MODEL), row(event))


@event_handling(GROUP, types=TYPES)
def odd(event: Counted, connection: Connection):
    if event.n % 2 == 1:
        connection.execute(insert(MODEL), row(event))
""",
        (End.REFUSED,),
    ),
    _registered(
        "a lambda",
        f"""
def written(event: Counted, connection: Connection):
    {_WRITE}


handle = event_handling(GROUP, types=TYPES)(lambda event, connection: written(event, connection))
""",
        (End.REFUSED,),
    ),
    _registered(
        "a partial function",
        f"""
import functools


def written(event: Counted, connection: Connection, more: int):
    {_WRITE}


handle = event_handling(GROUP, types=TYPES)(functools.partial(written, more=7))
""",
    ),
)
