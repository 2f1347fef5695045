"""The horizon: whatever was seen, nothing can be committed at or below it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.sql.foreign import Horizon


def looks(*seen: tuple[int, str]) -> list[int | None]:
    horizon, found = Horizon(), []
    for highest, at_work in seen:
        horizon.look(highest, frozenset(at_work))
        found.append(horizon.upto)
    return found


def test_nobody_at_work_is_evidence_at_once() -> None:
    assert looks((0, ""), (5, ""), (7, "")) == [0, 5, 7]


def test_those_who_were_at_work_at_the_mark_are_waited_for_and_nobody_else() -> None:
    assert looks((5, "ab"), (6, "bc"), (7, "cd"), (8, "d"), (9, "")) == [None, None, 5, 5, 9]
    assert looks((5, "ab"), (6, "cd"), (9, "e"), (9, "")) == [None, 5, 6, 9]


def test_who_hangs_holds_the_horizon_where_it_was() -> None:
    assert looks((3, ""), (5, "a"), (6, "ab"), (7, "ac"), (8, "d")) == [3, 3, 3, 3, 5]


def test_it_never_goes_back() -> None:
    assert looks((5, ""), (3, ""), (4, "a"), (4, "b")) == [5, 5, 5, 5]


WORK = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 3)),
        st.tuples(st.just("draw"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["commit", "roll back"]), st.integers(0, 3)),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=60,
)


@given(WORK)
def test_whatever_writers_do_nothing_is_committed_at_or_below_it(work: list[tuple[str, int]]) -> None:
    """Transactions begin, draw positions and end in any order; a look comes in between now and then."""
    horizon, drawn, newest, committed = Horizon(), 0, 0, set[int]()
    open_: dict[int, tuple[str, set[int]]] = {}
    for number, (what, writer) in enumerate(work):
        match what:
            case "begin":
                open_.setdefault(writer, (f"{writer} {number}", set()))
            case "draw" if writer in open_:
                drawn += 1
                open_[writer][1].add(drawn)
            case "commit" if writer in open_:
                positions = open_.pop(writer)[1]
                assert all(position > (horizon.upto or 0) for position in positions)
                committed |= positions
                newest = max(committed, default=0)
            case "roll back":
                open_.pop(writer, None)
            case "look":
                horizon.look(newest, frozenset(name for name, _ in open_.values()))
    horizon.look(newest, frozenset())
    assert horizon.upto == newest
