"""Errors that a handler may raise and that are hard to report."""

from __future__ import annotations

from dataclasses import replace

from attacks.attack import KINDS, Attack, End, Firing

__all__ = ["ATTACKS"]

_MINE = """
import sqlite3

from opencqrs_py import errors
from opencqrs_py.processing import dispatch


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class NoPicture(Exception):
    def __repr__(self):
        raise RuntimeError("no picture")


class NoTextAtAll(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class TextOfAnotherKind(Exception):
    def __str__(self):
        return 7


class Panic(BaseException):
    pass


class KeywordOnly(Exception):
    def __init__(self, *, what):
        super().__init__(what)


class Demanding(Exception):
    def __init__(self, one, two):
        super().__init__("demanding")


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("unpicklable", threading.Lock())


class NoAttributes(Exception):
    def __getattribute__(self, name):
        raise RuntimeError(name)


class FalseCause(Exception):
    pass


class ExitLike(SystemExit):
    def __str__(self):
        raise RuntimeError("no text")


class Meta(type):
    def __getattribute__(cls, name):
        if name == "__name__":
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class NoName(Exception, metaclass=Meta):
    pass


def deep(n=0):
    return deep(n + 1)


def looped():
    error = ValueError("looped")
    error.__cause__ = ValueError("other")
    error.__cause__.__cause__ = error
    return error


def nested():
    error = ValueError("innermost")
    for _ in range(2000):
        outer = ValueError("outer")
        outer.__cause__ = error
        error = outer
    return error


def in_group(error):
    return BaseExceptionGroup("several", [error, ValueError("and another")])
"""

_RAISED = {
    "an error without text": "raise NoText()",
    "an error without repr": "raise NoPicture('x')",
    "an error whose text interrupts": "raise NoTextAtAll()",
    "an error whose text is a number": "raise TextOfAnotherKind()",
    "an error whose type has no name": "raise NoName('x')",
    "an error without attributes": "raise NoAttributes()",
    "an error that is its own cause": "raise looped()",
    "an error of two thousand causes": "raise nested()",
    "endless recursion": "deep()",
    "a BaseException": "raise Panic('panic')",
    "a group of BaseExceptions": "raise in_group(Panic('panic'))",
    "a group with a KeyboardInterrupt in it": "raise in_group(KeyboardInterrupt())",
    "a group of errors": "raise ExceptionGroup('several', [ValueError('one'), NoText()])",
    "GeneratorExit": "raise GeneratorExit",
    "StopIteration": "raise StopIteration",
    "StopAsyncIteration": "raise StopAsyncIteration",
    "CancelledError": "raise asyncio.CancelledError",
    "TimeoutError": "raise TimeoutError",
    "SystemExit": "raise SystemExit(0)",
    "sys.exit()": "sys.exit()",
    "SystemExit without text": "raise ExitLike(3)",
    "MemoryError": "raise MemoryError",
    "a lone surrogate": "raise ValueError('\\ud800')",
    "a lone surrogate in an attribute": "raise FileNotFoundError(2, 'mine', '\\udcff')",
    "a NUL": "raise ValueError('before\\0after')",
    "control characters": "raise ValueError('\\x1b[2J\\x1b]0;title\\x07\\r\\n[OCQ-112] no such group')",
    "a message of a megabyte": "raise ValueError('m' * 1_000_000)",
    "a message of many lines": "raise ValueError('line\\n' * 100_000)",
    "an empty message": "raise ValueError('')",
    "bytes as a message": "raise ValueError(b'\\xff')",
    "an error that does not pickle": "raise Unpicklable()",
    "an error with keyword-only arguments": "raise KeywordOnly(what='mine')",
    "an error that cannot be made again": "raise Demanding(1, 2)",
    "an error of a class made at run time": "raise type('Made', (Exception,), {})('mine')",
    "an error of a class without module": "raise type('Made', (Exception,), {'__module__': None})('mine')",
    "an error with notes": "error = ValueError('mine')\nerror.add_note('\\ud800')\nraise error",
    "a class instead of an error": "raise ValueError",
    "no error at all": "raise 7",
    "a warning": "raise UserWarning('mine')",
    "an error of this package": "raise TransientError('mine')",
    "a permanent error of this package": "raise NonTransientError('mine')",
    "an error that looks like a lost claim": "raise errors.FencedError('mine')",
    "an error that looks like an undecodable event": "raise errors.EventFormatError('OCQ-211', 'mine', 'here')",
    "an error that looks like one of assembly": "raise errors.AssemblyError('OCQ-508', 'mine', 'here')",
    "an error that looks like a failed chunk": "raise dispatch.ChunkFailedError(2, ValueError('mine'))",
    "an error that looks like an outage": "raise exc.OperationalError('SELECT 1', {}, OSError('mine'))",
    "a connection error of another service": "raise ConnectionRefusedError('mine')",
    "a timeout of another pool": "raise exc.TimeoutError('mine')",
    "a database error of another file": "sqlite3.connect('/nowhere/at/all.db')",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
}

# An error that looks like an outage is waited for: of a list, the event in hand is not known.
_OUTAGES = ("an error that looks like an outage", "a timeout of another pool", "a database error of another file")


def _attacks() -> list[Attack]:
    always = [
        Attack(
            name=name,
            extra=_MINE,
            before=code,
            blames_handler=not _blameless(name),
            ends=_ends(name),
            kinds=_kinds(name),
            anywhere=name in _OUTAGES,
        )
        for name, code in _RAISED.items()
    ]
    once = [
        replace(
            attack,
            name=f"{attack.name}, once",
            firing=Firing.ONCE,
            ends=(End.RIGHT, *attack.ends),
        )
        for attack in always[::3]
    ]
    given_up = [
        replace(
            attack,
            name=f"{attack.name}, and the event is abandoned",
            settings={"retry.on-exhausted": "skip", "retry.max-attempts": 1},
            ends=(*attack.ends, End.SKIPPED),
        )
        for attack in always[::5]
    ]
    return [*always, *once, *given_up]


def _ends(name: str) -> tuple[End, ...]:
    return (End.STOPPED, End.INTERRUPTED) if "nterrupt" in name else (End.STOPPED,)


def _kinds(name: str) -> tuple[str, ...]:
    """Return where it can be tried: asyncio's own log of an unretrieved error would interrupt the tests."""
    return tuple(kind for kind in KINDS if kind != "async") if name == "an error whose text interrupts" else KINDS


def _blameless(name: str) -> bool:
    """Return whether creating the error prevents its frames from being read."""
    return (
        name in ("an error without attributes", "an error whose type has no name")
        or "looks like" in name
        or "out" in name
    )


ATTACKS = tuple(_attacks())
