"""The part of the contract of event sources that is about threads that share a source."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, product
from threading import Barrier, BrokenBarrierError
from threading import Event as Flag
from time import monotonic

from opencqrs_py.model import Event, Selection
from opencqrs_py.processing.ports import EventSource
from opencqrs_py.testing.contracts.calls import begun, returned
from opencqrs_py.testing.contracts.log_identity import Append, numbered

SECONDS = 30  # longest wait for the other threads
THREADS = 6
ROUNDS = 40
ENOUGH = 20.0  # seconds after which no round begins
SWITCH_SECONDS = 1e-6  # so that threads are switched within a call, however short it is

COUNT = 24  # events of the log
STARTS = (4, 9, 15)  # how many events come before a read that does not begin at the start
BOUND = 20  # how many events come before the bound of reads
LIMIT = 3
SELECTIONS = (Selection(), Selection("/odd"), Selection(types=frozenset({"even"})))

MISTAKE = "a call returns what another thread has asked for: all threads of a process share the source"


@contextmanager
def switched_often() -> Iterator[None]:
    """Switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def call_at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Make different calls on several threads at the same time, again and again; raise the first error.

    A slow source has fewer rounds.
    """
    until, is_over, has_failed = monotonic() + ENOUGH, Flag(), Flag()

    def look() -> None:
        if monotonic() > until:
            is_over.set()

    start = Barrier(THREADS, look, SECONDS)

    def run(thread: int) -> None:
        try:
            for number in range(ROUNDS):
                start.wait()
                if is_over.is_set():
                    return
                calls[(number + thread) % len(calls)]()
        except BrokenBarrierError:
            if not has_failed.is_set():  # else that of the other thread is raised
                raise AssertionError(f"a call took longer than {SECONDS} s") from None
        except BaseException:
            has_failed.set()
            start.abort()
            raise

    with switched_often():
        for running in [begun(run, thread) for thread in range(THREADS)]:
            returned(running, 2 * SECONDS, "calls of several threads at once do not return")


def whole_log(source: EventSource) -> list[Event]:
    """Return all events; a page may have fewer than were asked for."""
    found: list[Event] = []
    position, head = 0, source.head()
    while position < head:
        part = source.read(position, COUNT, Selection())
        assert part.upto > position, "a read before the head of the log does not advance"
        found += part.events
        position = part.upto
    return found


def check_read(source: EventSource, whole: Sequence[Event], after: int, selection: Selection, upto: int | None) -> None:
    """Check that a read returns its part of the whole log."""
    part = source.read(after, LIMIT, selection, upto)
    selected = [each for each in whole if after < each.position <= part.upto and selection.matches(each)]
    assert part.after == after < part.upto <= (upto or whole[-1].position), MISTAKE
    assert [*part.events] == selected, MISTAKE


def check_identity(source: EventSource, head: int, fingerprints: dict[int, str]) -> None:
    """Check the head of a log, and its fingerprints by their positions."""
    for position, fingerprint in fingerprints.items():
        assert source.head() == head, MISTAKE
        assert source.fingerprint(position) == fingerprint, MISTAKE
        source.verify(position, fingerprint)


class ConcurrentReadsContract:
    """Threads that use the same source. Part of ``EventSourceContract``."""

    def test_several_threads_read_different_parts_of_the_log_at_once(self, source: EventSource, append: Append) -> None:
        append(
            each._replace(subject=f"/{kind}/1", type=kind)
            for each, kind in zip(numbered(*range(COUNT)), cycle(("even", "odd")), strict=False)
        )
        whole = whole_log(source)
        starts, bounds = [0, *(whole[n - 1].position for n in STARTS)], [None, whole[BOUND - 1].position]
        fingerprints = {each.position: source.fingerprint(each.position) for each in whole[:: COUNT // 3]}
        reads = [
            partial(check_read, source, whole, after, selection, upto)
            for selection, upto, after in product(SELECTIONS, bounds, starts)
        ]
        call_at_once([*reads, partial(check_identity, source, whole[-1].position, fingerprints)])
