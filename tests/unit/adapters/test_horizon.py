"""The horizon: no event can be committed at or below it any more."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.sql.foreign import Horizon


def horizons(*seen: tuple[int, Iterable[str]]) -> list[int | None]:
    horizon, found = Horizon(), []
    for highest, active in seen:
        horizon.look(highest, frozenset(active))
        found.append(horizon.upto)
    return found


def test_without_active_transactions_the_horizon_advances_at_once() -> None:
    assert horizons((0, ""), (5, ""), (7, "")) == [0, 5, 7]


def test_the_horizon_waits_only_for_transactions_active_at_the_mark() -> None:
    assert horizons((5, "ab"), (6, "bc"), (7, "cd"), (8, "d"), (9, "")) == [None, None, 5, 5, 9]
    assert horizons((5, "ab"), (6, "cd"), (9, "e"), (9, "")) == [None, 5, 6, 9]


def test_a_hanging_transaction_keeps_the_horizon_where_it_was() -> None:
    assert horizons((3, ""), (5, "a"), (6, "ab"), (7, "ac"), (8, "d")) == [3, 3, 3, 3, 5]


def test_the_horizon_never_moves_back() -> None:
    assert horizons((5, ""), (3, ""), (4, "a"), (4, "b")) == [5, 5, 5, 5]


def test_the_horizon_waits_for_a_prepared_transaction_until_it_ends() -> None:
    open_, prepared, other = {"3/45 999"}, {"3/45 prepared"}, {"4/8 998"}
    assert horizons((5, open_), (6, prepared), (7, prepared | other), (8, other), (9, "")) == [None, None, None, 5, 9]


def test_after_a_restart_the_horizon_waits_for_all_prepared_transactions() -> None:
    restored = {"-1/753 prepared"}
    assert horizons((5, {"3/45 999"}), (6, restored), (7, {*restored, "3/1 997"}), (8, {"3/1 997"})) == [*[None] * 3, 5]
    assert horizons((5, restored), (6, {*restored, "4/8 998"}), (7, {"4/8 998"}), (8, "")) == [None, None, 5, 8]


PREPARED = 2  # added to the number of a writer whose transaction is prepared
WORK = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["begin", "draw", "draw", "prepare"]), st.integers(0, PREPARED - 1)),
        st.tuples(st.sampled_from(["commit", "commit", "commit", "roll back"]), st.integers(0, 2 * PREPARED - 1)),
        st.tuples(st.sampled_from(["look", "look", "look", "restart"]), st.just(0)),
    ),
    max_size=60,
)


@given(WORK)
def test_no_event_is_ever_committed_at_or_below_the_horizon(work: list[tuple[str, int]]) -> None:
    """Transactions begin, draw positions, are prepared and end in any order; the horizon is updated in between.

    A restart ends those that are not prepared, and virtual transactions are counted from the beginning again.
    """
    horizon, drawn, begun, newest, committed = Horizon(), 0, 0, 0, set[int]()
    names, open_ = dict[int, str](), dict[int, tuple[int, set[int]]]()
    for number, (what, writer) in enumerate(work):
        match what:
            case "begin" if writer not in open_:
                begun += 1
                names[number] = f"{writer}/{begun} {number}"
                open_[writer] = (number, set())
            case "draw" if writer in open_:
                drawn += 1
                open_[writer][1].add(drawn)
            case "prepare" if writer in open_ and writer + PREPARED not in open_:
                begin, _ = open_[writer + PREPARED] = open_.pop(writer)
                names[begin] = f"{names[begin].partition(' ')[0]} prepared"
            case "commit" if writer in open_:
                positions = open_.pop(writer)[1]
                assert all(position > (horizon.upto or 0) for position in positions)
                committed |= positions
                newest = max(committed, default=0)
            case "roll back":
                open_.pop(writer, None)
            case "restart":
                begun, open_ = 0, {writer: one for writer, one in open_.items() if writer >= PREPARED}
                names = {begin: f"-1/{begin} prepared" for begin, _ in open_.values()}
            case "look":
                horizon.look(newest, frozenset(names[begin] for begin, _ in open_.values()))
    horizon.look(newest, frozenset())
    assert horizon.upto == newest
