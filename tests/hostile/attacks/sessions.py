"""Attacks on the session that handlers share with the progress: their pending changes are dropped."""

from __future__ import annotations

from attacks.attack import Attack, End, followed

__all__ = ["ATTACKS"]

EITHER = (End.RIGHT, End.STOPPED)
_PLAIN = (
    Attack(name="session.commit()", after="session.commit()", ends=EITHER),
    Attack(name="session.rollback()", after="session.rollback()"),
    Attack(name="session.close()", after="session.close()"),
    Attack(name="session.reset()", after="session.reset()"),
    Attack(name="session.invalidate()", after="session.invalidate()"),
    Attack(name="a block 'with session'", after="with session:\n    pass"),
    Attack(name="a block 'with session.begin()'", after="with session.begin():\n    pass", ends=EITHER),
    Attack(name="session.expunge_all()", after="session.expunge_all()", ends=EITHER),
    Attack(name="session.expunge_all() before the row", before="session.expunge_all()", ends=(End.RIGHT, End.STOPPED)),
    Attack(name="the session's transaction is committed", after="session.get_transaction().commit()", ends=EITHER),
    Attack(name="the session's transaction is rolled back", after="session.get_transaction().rollback()"),
    Attack(name="the session's connection is committed", after="session.connection().commit()"),
    Attack(name="the session's connection is rolled back", after="session.connection().rollback()"),
    Attack(name="the session's bind is committed", after="session.get_bind().commit()"),
    Attack(
        name="the transaction of the session's bind is committed",
        after="session.get_bind().get_transaction().commit()",
        commits=True,
    ),
    Attack(name="COMMIT through the session", after="session.execute(text('COMMIT'))", commits=True),
    Attack(name="ROLLBACK through the session", after="session.execute(text('ROLLBACK'))", commits=True),
    Attack(
        name="all sessions are closed",
        extra="from sqlalchemy.orm import close_all_sessions",
        after="close_all_sessions()",
        ends=EITHER,
    ),
    Attack(name="session.begin_nested() is left open", after="session.begin_nested()", ends=EITHER),
    Attack(
        name="the new objects are expunged one by one",
        before="for one in list(session.new):\n    session.expunge(one)",
        kinds=("single", "class", "async"),  # in a list handler the objects are its own, which it may drop
        ends=(End.RIGHT, End.STOPPED),
    ),
)
_OTHER = (
    Attack(name="session.begin()", after="session.begin()", ends=EITHER),
    Attack(
        name="session.rollback() that is caught",
        after="with contextlib.suppress(Exception):\n    session.rollback()",
        ends=EITHER,
    ),
    Attack(
        name="session.close() that is caught",
        after="with contextlib.suppress(Exception):\n    session.close()",
        ends=EITHER,
    ),
    Attack(
        name="an error of flush is caught",
        extra="""
class Another:
    def __init__(self, id):
        self.id = id


ENTITIES.map_imperatively(Another, OTHER)
""",
        after="""
session.add(Another(1))
with contextlib.suppress(exc.IntegrityError):
    session.flush()""",
        ends=EITHER,
    ),
    Attack(
        name="an error of flush is caught, and the session rolled back",
        extra="""
class Another:
    def __init__(self, id):
        self.id = id


ENTITIES.map_imperatively(Another, OTHER)
""",
        after="""
session.add(Another(1))
try:
    session.flush()
except exc.IntegrityError:
    session.rollback()""",
        ends=EITHER,
    ),
    Attack(
        name="an error of flush is caught in a savepoint",
        extra="""
class Another:
    def __init__(self, id):
        self.id = id


ENTITIES.map_imperatively(Another, OTHER)
""",
        after="""
with contextlib.suppress(exc.IntegrityError), session.begin_nested():
    session.add(Another(1))""",
        ends=(End.RIGHT,),
    ),
    Attack(
        name="an object that cannot be flushed is left in the session",
        extra="""
class Another:
    def __init__(self, id):
        self.id = id


ENTITIES.map_imperatively(Another, OTHER)
""",
        after="session.add(Another(1))",
        blames_handler=False,
    ),
    Attack(name="session.autoflush is off", before="session.autoflush = False", ends=(End.RIGHT,)),
    Attack(name="the session has no bind", after="session.bind = None", ends=EITHER),
    Attack(
        name="the session is bound to another engine",
        extra="""
import sqlite3


class Closing(sqlite3.Connection):
    def __del__(self):
        self.close()


def other():
    return sqlite3.connect(":memory:", factory=Closing, check_same_thread=False)
""",
        after="session.bind = sqlalchemy.create_engine('sqlite://', creator=other)",
        ends=EITHER,
        blames_handler=False,
    ),
    Attack(name="session.expire_all()", after="session.expire_all()", ends=(End.RIGHT,)),
    Attack(
        name="an object is made transient",
        extra="from sqlalchemy.orm import make_transient",
        before="for one in list(session.new):\n    make_transient(one)",
        kinds=("single", "class", "async"),  # in a list handler the objects are its own, which it may drop
        ends=EITHER,
    ),
    Attack(
        name="the flush is replaced",
        before="session.flush = lambda *_: None",
        ends=EITHER,
        blames_handler=False,
    ),
    Attack(
        name="a listener of the session raises at the flush",
        after="sqlalchemy.event.listen(session, 'before_flush', lambda *_: 1 / 0)",
        blames_handler=False,
    ),
    Attack(
        name="a listener of the session empties it before the flush",
        after="""
def emptied(session, *_):
    session.expunge_all()
sqlalchemy.event.listen(session, 'before_flush', emptied)""",
        ends=EITHER,
        blames_handler=False,
    ),
    Attack(
        name="the rows of earlier events are deleted",
        before="session.execute(MODEL.delete().where(MODEL.c.position == AT))",
        ends=(End.RIGHT,),
    ),
    Attack(
        name="the connection writes, and the session is rolled back",
        before="connection.execute(insert(MODEL), row(event))",
        write="if not attacked:\n    connection.execute(insert(MODEL), row(event))",
        after="session.rollback()",
        ends=EITHER,
    ),
)

ATTACKS = (*followed(_PLAIN), *_OTHER)
