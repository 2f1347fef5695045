"""Attacks by parts that users provide: providers, interceptors and sequence resolvers."""

from __future__ import annotations

from attacks.attack import Attack, End

__all__ = ["ATTACKS"]

_EITHER = (End.RIGHT, End.STOPPED)
_RIGHT = (End.RIGHT,)
_HARSH = {"retry.on-exhausted": "skip", "retry.max-attempts": 1}  # a framework error must not use an attempt
_PROVIDED = ("thread", "spark")  # processors made by hand have no containers

_PROVIDER = """
class Mailer:
    pass


def mailer() -> Mailer:
{code}
    return Mailer()


class Container(containers.DeclarativeContainer):
    mailer = providers.{kind}(mailer)
"""
_NOT_ASKED = "    if not corrected() and {when}:\n        {what}"


def _provider(name: str, when: str, what: str, ends: tuple[End, ...], kind: str = "Factory") -> Attack:
    return Attack(
        name=f"a provider {name}",
        extra=_PROVIDER.format(code=_NOT_ASKED.format(when=when, what=what), kind=kind),
        asks={"mailer": "Mailer"},
        ends=ends,
        settings=_HARSH,
        engines=_PROVIDED,
        kinds=("single", "list", "async"),
        anywhere=True,
    )


_PROVIDERS = (
    _provider(
        "raises the first time", "first('provided')", "raise ConnectionError('the mail server is away')", _EITHER
    ),
    _provider("always raises", "True", "raise ConnectionError('the mail server is away')", (End.STOPPED,)),
    _provider(
        "raises an outage of the database", "True", "raise exc.OperationalError('x', {}, OSError('y'))", (End.STOPPED,)
    ),
    _provider("raises a permanent error", "True", "raise NonTransientError('mine')", (End.STOPPED,)),
    _provider(
        "raises what has no text",
        "True",
        "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()",
        (End.STOPPED,),
    ),
    _provider("exits", "True", "sys.exit(3)", (End.STOPPED,)),
    _provider("panics", "True", "raise type('Panic', (BaseException,), {})('mine')", (End.STOPPED,)),
    _provider("returns none", "True", "return None", _RIGHT),
    _provider(
        "raises once as a singleton",
        "first('provided')",
        "raise ConnectionError('mine')",
        _EITHER,
        "ThreadSafeSingleton",
    ),
)

_CLASS = """
class Mailer:
    pass


def mailer() -> Mailer:
    if not corrected() and {when}:
        raise ConnectionError('the mail server is away')
    return Mailer()


class Container(containers.DeclarativeContainer):
    mailer = providers.Singleton(mailer)


@event_handling(GROUP)
class Handlers:
    def __init__(self, mailer: Mailer):
        self.mailer = mailer

    @event_handling(types=TYPES)
    def handle(self, event: Counted, connection: Connection):
        connection.execute(insert(MODEL), row(event))
"""
_CLASSES = tuple(
    Attack(
        name=f"the provider of a handler class {name}",
        whole=_CLASS.format(when=when),
        settings=_HARSH,
        engines=_PROVIDED,
        kinds=("class",),
        anywhere=True,
        ends=ends,
    )
    for name, when, ends in (
        ("raises the first time", "first('provided')", (End.RIGHT, End.STOPPED, End.REFUSED)),
        ("always raises", "True", (End.STOPPED, End.REFUSED)),
    )
)

_INTERCEPTOR = """
@around_{what}(GROUP)
def surround({parameter}):
    here = hostile(AT) if {at} else False
{code}


INTERCEPTORS = [surround]
"""


def _interceptor(name: str, code: str, ends: tuple[End, ...], *, handler: str = "", says: str = "") -> list[Attack]:
    def made(what: str, parameter: str, at: str, kinds: tuple[str, ...]) -> Attack:
        return Attack(
            name=f"an interceptor of {what}s {name}",
            extra=_INTERCEPTOR.format(what=what, parameter=parameter, at=at, code=code),
            after=handler,
            settings=_HARSH,
            ends=ends,
            says=says,
            kinds=kinds,
        )

    return [
        made("event", "raw: Event", "raw.position == AT", ("single", "class", "async")),
        made(
            "handler",
            "invocation: Invocation",
            "any(e.position == AT for e in invocation.events)",
            ("single", "list", "class", "async"),
        ),
    ]


_INTERCEPTORS = (
    *_interceptor("yields twice", "    yield\n    if here:\n        yield", (End.STOPPED,)),
    *_interceptor("never yields", "    if not here:\n        yield", (End.STOPPED,)),
    *_interceptor("returns early", "    if here:\n        return\n    yield", (End.STOPPED,)),
    *_interceptor(
        "raises before", "    if here:\n        raise NonTransientError('mine')\n    yield", (End.STOPPED,), says="mine"
    ),
    *_interceptor(
        "raises afterwards",
        "    yield\n    if here:\n        raise NonTransientError('mine')",
        (End.STOPPED,),
        says="mine",
    ),
    *_interceptor(
        "returns from a block 'finally'",
        "    try:\n        yield\n    finally:\n        if here:\n            return",
        _RIGHT,
    ),
    *_interceptor(
        "catches an error of the handler after the row",
        "    try:\n        yield\n    except ValueError:\n        pass",
        _RIGHT,
        handler="raise ValueError('mine')",
    )[:1],
    *_interceptor(
        "yields twice after an error",
        "    try:\n        yield\n    except ValueError:\n        yield",
        (End.STOPPED,),
        handler="raise ValueError('mine')",
    ),
    *_interceptor("exits", "    if here:\n        sys.exit()\n    yield", (End.STOPPED,)),
    *_interceptor("yields something", "    yield 7", _RIGHT),
    *_interceptor(
        "raises StopIteration", "    yield\n    if here:\n        raise StopIteration", (End.STOPPED, End.SKIPPED)
    ),
    *_interceptor(
        "raises GeneratorExit", "    yield\n    if here:\n        raise GeneratorExit", (End.STOPPED, End.SKIPPED)
    ),
    *_interceptor(
        "catches BaseException",
        "    try:\n        yield\n    except BaseException:\n        if here:\n            pass",
        (End.RIGHT, End.STOPPED),
        handler="raise SystemExit",
    )[:1],
)

_RESOLVER = """
calls = [0]


def resolve(raw: Event){returns}:
    calls[0] += 1
    if corrected():
        return raw.subject
{code}


class Sequences(containers.DeclarativeContainer):
    {module}_resolver = providers.Object(resolve)


RESOLVER = resolve
"""


def _resolver(name: str, code: str, ends: tuple[End, ...], *, returns: str = " -> str", blames: bool = False) -> Attack:
    return Attack(
        name=f"a sequence resolver {name}",
        extra=_RESOLVER.format(code=code, returns=returns, module="{module}"),
        settings={**_HARSH, "sequence.resolver-ref": "{module}_resolver"},
        partitions=2,
        ends=ends,
        blames_handler=blames,
    )


_AT_FIVE = "    return {found} if raw.position == AT else raw.subject"
_RESOLVERS = (
    _resolver("returns none", _AT_FIVE.format(found="None"), (End.STOPPED,)),
    _resolver("returns a number", _AT_FIVE.format(found="7"), (End.STOPPED,)),
    _resolver("returns bytes", _AT_FIVE.format(found="b'x'"), (End.STOPPED,)),
    _resolver("returns a lone surrogate", _AT_FIVE.format(found="'\\ud800'"), _EITHER),
    _resolver("returns nothing", _AT_FIVE.format(found="''"), _EITHER),
    _resolver(
        "returns a text of its own kind",
        _AT_FIVE.format(found="type('S', (str,), {'encode': lambda *_: b'x'})('x')"),
        _EITHER,
    ),
    _resolver(
        "raises", "    if raw.position == AT:\n        raise ValueError('mine')\n    return raw.subject", (End.STOPPED,)
    ),
    _resolver(
        "raises the first time",
        "    if raw.position == AT and first('resolved'):\n        raise ValueError('mine')\n    return raw.subject",
        _EITHER,
    ),
    _resolver("changes the data", "    raw.data.clear()\n    raw.metadata.clear()\n    return raw.subject", _RIGHT),
    _resolver("exits", "    if raw.position == AT:\n        sys.exit()\n    return raw.subject", (End.STOPPED,)),
    _resolver(
        "panics",
        "    if raw.position == AT:\n        raise type('Panic', (BaseException,), {})('mine')\n    return raw.subject",
        (End.STOPPED,),
    ),
    Attack(
        name="a resolver below PerSubjectLevel looks at the data",
        extra="""
class ByData(PerSubjectLevel):
    def __call__(self, event):
        return str(event.data["n"] // 3) if not corrected() else super().__call__(event)


class Sequences(containers.DeclarativeContainer):
    {module}_resolver = providers.Object(ByData(1))


RESOLVER = ByData(1)
""",
        settings={"sequence.resolver-ref": "{module}_resolver"},
        partitions=4,
        ends=_RIGHT,
    ),
    Attack(
        name="a sequence resolver says that it looks at less than it does",
        extra="""
class ByData(PerSubjectLevel):
    looks_at = frozenset({"subject"})

    def __call__(self, event):
        return super().__call__(event) if corrected() or event.subject != f"/counted/{AT}" else str(event.data["n"])


class Sequences(containers.DeclarativeContainer):
    {module}_resolver = providers.Object(ByData(2))


RESOLVER = ByData(2)
""",
        settings={**_HARSH, "sequence.resolver-ref": "{module}_resolver"},
        partitions=2,
        says="declares that it uses the subject alone, but it uses 'data'",
        blames_handler=False,
    ),
)

ATTACKS = (*_PROVIDERS, *_CLASSES, *_INTERCEPTORS, *_RESOLVERS)
