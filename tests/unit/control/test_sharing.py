"""How partitions are distributed among nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.control.records import (
    ControlView,
    GroupPartition,
    Lease,
    Node,
    NodeRecord,
    ProcessIdentity,
    Runnable,
    Wanted,
)
from opencqrs_py.control.sharing import plan_of, shares
from opencqrs_py.model.partition import Partition, layout

ROUNDS = 10  # of all nodes, after which their shares are stable
PROCESS = ProcessIdentity("boot", "pids", 1, "1")


def node(name: str, /, most: int | None = None, **groups: Runnable) -> Node:
    return Node(name, name, PROCESS, groups, most)


def leases(group: str, *owners: str, avoids: str = "") -> list[Lease]:
    keys = [GroupPartition(group, each) for each in layout(len(owners))]
    return [Lease(key, owner, avoids=avoids) for key, owner in zip(keys, owners, strict=True)]


def view(nodes: list[Node], held: list[Lease], **wanted: Wanted) -> ControlView:
    return ControlView(tuple(NodeRecord(each, 10, alive=True) for each in nodes), tuple(held), wanted)


def counts(view: ControlView) -> dict[str, int]:
    return dict(Counter(shares(view).values()))


def books(count: int, **kwargs) -> Runnable:
    return Runnable(count, **kwargs)


@pytest.mark.parametrize(
    ("nodes", "held", "expected"),
    [
        pytest.param("a", ["", ""], {"a": 2}, id="one node has all"),
        pytest.param("ab", ["", "", "", ""], {"a": 2, "b": 2}, id="two nodes have half each"),
        pytest.param("ab", ["a"] * 8, {"a": 4, "b": 4}, id="a node that joins gets half"),
        pytest.param("abc", ["a"] * 4 + ["b"] * 4, {"a": 3, "b": 3, "c": 2}, id="a third node gets the odd partitions"),
        pytest.param("ab", ["a"], {"a": 1}, id="with one partition, the second node stands by"),
        pytest.param("b", ["a", "b"], {"b": 2}, id="the partitions of a dead node go to the others"),
        pytest.param("", ["a", "b"], {}, id="no live node"),
    ],
)
def test_partitions_are_distributed_evenly(nodes, held, expected):
    alive = [node(name, books=books(len(held))) for name in nodes]
    assert counts(view(alive, leases("books", *held))) == expected


def test_a_node_keeps_its_partitions_up_to_its_share():
    found = shares(view([node(n, books=books(4)) for n in "ab"], leases("books", "b", "b", "b", "a")))
    by_residue = {key.partition.residue: owner for key, owner in found.items()}
    assert by_residue == {0: "b", 1: "b", 2: "a", 3: "a"}


def test_twenty_single_partition_groups_are_split_evenly_over_two_nodes():
    groups = {f"g{number:02}": books(1) for number in range(20)}
    held = [lease for group in groups for lease in leases(group, "a")]
    assert counts(view([node("a", **groups), node("b", **groups)], held)) == {"a": 10, "b": 10}


def test_a_node_gets_only_groups_that_it_can_run():
    nodes = [node("a", books=books(2), lent=books(2)), node("b", lent=books(2))]
    held = [*leases("books", "", ""), *leases("lent", "", "")]
    found = shares(view(nodes, held))
    assert {owner for key, owner in found.items() if key.group == "books"} == {"a"}
    assert counts(view(nodes, held)) == {"a": 3, "b": 1}


def test_nodes_with_different_settings_share_the_existing_partitions():
    nodes = [node("a", books=books(2)), node("b", books=books(4))]
    uneven = [Lease(GroupPartition("books", each)) for each in (Partition(2, 0), *Partition(2, 1).split())]
    found = shares(view(nodes, uneven))
    assert sorted(Counter(found.values()).values()) == [1, 2]
    assert set(found) == {lease.key for lease in uneven}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (node("a", books=books(4, most=1)), node("b", books=books(4)), {"a": 1, "b": 3}),
        (node("a", books=books(4, most=1)), node("b", books=books(4, most=2)), {"a": 1, "b": 2}),
        (node("a", most=0, books=books(4)), node("b", books=books(4)), {"b": 4}),
        (node("a", most=1, books=books(4)), node("b", most=1, books=books(4)), {"a": 1, "b": 1}),
    ],
)
def test_limits_of_nodes_are_respected_and_surplus_partitions_stay_unassigned(first, second, expected):
    assert counts(view([first, second], leases("books", "a", "a", "a", "a"))) == expected


@pytest.mark.parametrize(("limited", "other"), [("n0", "n1"), ("n1", "n0")])
@pytest.mark.parametrize("holder", ["", "n0", "n1"])
@pytest.mark.parametrize("size", [1, 4])
def test_a_full_node_gives_up_partitions_to_make_room_for_those_that_only_it_can_run(size, holder, limited, other):
    runs = books(size)
    nodes = [node(limited, most=size, books=runs, mails=runs), node(other, books=runs)]
    found = shares(view(nodes, [*leases("books", *[holder] * size), *leases("mails", *[""] * size)]))
    assert Counter((key.group, owner) for key, owner in found.items()) == {
        ("books", other): size,
        ("mails", limited): size,
    }


def test_room_is_made_by_a_chain_of_moves_if_necessary():
    one = books(1)
    nodes = [node("a", most=1, g0=one, g2=one), node("b", most=1, g0=one, g1=one), node("c", most=1, g1=one)]
    held = [*leases("g0", "a"), *leases("g1", "b"), *leases("g2", "")]
    found = shares(view(nodes, held))
    assert {key.group: owner for key, owner in found.items()} == {"g0": "b", "g1": "c", "g2": "a"}


def test_a_partition_that_avoids_a_node_is_not_moved_back_to_make_room():
    one = books(1)
    nodes = [node("a", most=1, books=one, mails=one), node("b", books=one)]
    held = [*leases("books", "b", avoids="b"), *leases("mails", "")]
    assert shares(view(nodes, held)) == {held[0].key: "a"}


@pytest.mark.parametrize(
    ("group", "partition", "starts", "expected"),
    [
        (None, None, True, Wanted.STARTED),
        (None, None, False, Wanted.STOPPED),
        (Wanted.STARTED, None, False, Wanted.STARTED),
        (Wanted.STOPPED, None, True, Wanted.STOPPED),
        (Wanted.STOPPED, Wanted.STARTED, True, Wanted.STARTED),
        (Wanted.STARTED, Wanted.STOPPED, True, Wanted.STOPPED),
    ],
)
def test_a_command_for_a_partition_overrides_one_for_its_group_and_that_overrides_the_nodes_setting(
    group, partition, starts, expected
):
    key = GroupPartition("books", Partition(1, 0))
    seen = view([node("a", books=books(1, starts=starts))], leases("books", ""))
    seen = replace(
        seen,
        wanted={"books": group} if group else {},
        wanted_partitions={key: partition} if partition else {},
    )
    assert seen.wanted_of(key) is expected
    assert (key in shares(seen)) is (expected is Wanted.STARTED)


@pytest.mark.parametrize("starts", [True, False])
def test_without_a_command_and_a_node_the_start_of_the_next_node_decides(starts):
    key = GroupPartition("books", Partition(1, 0))
    assert view([], leases("books", "")).wanted_of(key, starts=starts) is (Wanted.STARTED if starts else Wanted.STOPPED)
    running = view([node("a", books=books(1, starts=not starts))], leases("books", ""))
    assert running.wanted_of(key, starts=starts) is (Wanted.STOPPED if starts else Wanted.STARTED)


def test_a_released_partition_moves_to_another_node_and_the_shares_stay_even():
    held = leases("books", "a", "a", "b", "b")
    held[0] = replace(held[0], avoids="a")
    found = shares(view([node(n, books=books(4)) for n in "ab"], held))
    assert found[held[0].key] == "b"
    assert Counter(found.values()) == {"a": 2, "b": 2}


def test_a_released_partition_waits_if_there_is_no_other_node():
    held = leases("books", "a", "a")
    held[0] = replace(held[0], avoids="a")
    assert shares(view([node("a", books=books(2))], held)) == {held[1].key: "a"}


def test_a_group_that_runs_on_one_node_alone_is_not_shared():
    nodes = [node("a", books=books(4, exclusive=True)), node("b", books=books(4))]
    assert counts(view(nodes, leases("books", "a", "a", "a", "a"))) == {"a": 4}
    assert counts(view(nodes, leases("books", "", "", "", ""))) == {"b": 4}


def test_a_plan_takes_free_partitions_and_releases_surplus_ones():
    seen = view([node("a", books=books(4)), node("b", books=books(4))], leases("books", "a", "a", "a", ""))
    a, b = plan_of("a", seen), plan_of("b", seen)
    keys = [lease.key for lease in seen.leases]
    assert (a.take, a.release) == ((), (keys[2],))
    assert (b.take, b.release) == ((keys[3],), ())
    assert b.share == {keys[2], keys[3]}  # b takes the partition that a still holds once it is free


OF_BOOKS, OF_NODE = "life-cycle.max-partitions-per-node is 1 for books", "node.max-partitions is 1"


@pytest.mark.parametrize(
    ("nodes", "waiting", "limits"),
    [
        ([node("a", books=books(4, most=1))], 3, [OF_BOOKS]),
        ([node("a", most=1, books=books(4))], 3, [OF_NODE]),
        ([node("a", most=1, books=books(4, most=1))], 3, [OF_BOOKS, OF_NODE]),
        ([node("a", books=books(4, most=1)), node("b", books=books(4, most=2))], 1, [OF_BOOKS]),
        ([node("a", books=books(4, most=1)), node("b", books=books(4))], 0, []),
        ([node("a", books=books(4, starts=False, most=1))], 0, []),
        ([node("a", mails=books(1)), node("b", books=books(4, most=1))], 0, []),
    ],
)
def test_a_plan_reports_which_partitions_wait_and_for_which_limits(nodes, waiting, limits):
    plan = plan_of("a", view(nodes, leases("books", "", "", "", "")))
    assert len(plan.waiting) == waiting
    assert plan.limits == tuple(limits)


def test_a_partition_that_avoids_a_node_does_not_count_as_waiting_for_limits():
    assert plan_of("a", view([node("a", books=books(2))], leases("books", "", "", avoids="a"))).waiting == ()


def test_a_partition_that_another_node_still_holds_does_not_count_as_waiting():
    nodes = [node("a", books=books(4, most=1)), node("b", books=books(4, most=1))]
    assert len(plan_of("a", view(nodes, leases("books", "b", "b", "a", ""))).waiting) == 1


def test_a_dead_node_has_no_partitions():
    alive, dead = node("a", books=books(2)), node("b", books=books(2))
    records = (NodeRecord(alive, 10, alive=True), NodeRecord(dead, -1, alive=False))
    seen = ControlView(records, tuple(leases("books", "b", "b")))
    assert plan_of("b", seen).share == frozenset()
    assert len(plan_of("a", seen).take) == 2


@st.composite
def views(draw, *, same: bool = True) -> ControlView:
    names = [f"n{number}" for number in range(draw(st.integers(1, 5)))]
    sizes = {f"g{number}": draw(st.integers(1, 9)) for number in range(draw(st.integers(1, 6)))}
    runs = {n: {g for g in sizes if same or draw(st.booleans())} for n in names}
    nodes = [node(n, **{g: books(sizes[g]) for g in sorted(runs[n])}) for n in names]
    owners = st.sampled_from(["", "gone", *names])
    held = [
        lease
        for group, size in sizes.items()
        for lease in leases(
            group,
            *(
                o if o == "" or group in runs.get(o, ()) else ""
                for o in draw(st.lists(owners, min_size=size, max_size=size))
            ),
        )
    ]
    return view(nodes, draw(st.permutations(held)))


LIMITS = st.sampled_from([None, None, 1, 2, 3, 5])


@st.composite
def limited_views(draw) -> ControlView:
    seen = draw(views(same=False))
    nodes = [
        replace(
            each,
            most=draw(LIMITS),
            groups={name: replace(group, most=draw(LIMITS)) for name, group in each.groups.items()},
        )
        for each in seen.alive.values()
    ]
    return view(nodes, list(seen.leases))


def most_that_can_be_shared(seen: ControlView) -> float:
    """Return the minimum cut: some nodes contribute their limits, groups what they and the other nodes allow."""
    sizes, nodes = Counter(lease.key.group for lease in seen.leases), seen.alive.values()

    def width(full: tuple[Node, ...]) -> float:
        others = [each.groups for each in nodes if each not in full]
        taken = ((limit(groups[name].most) for groups in others if name in groups) for name in sizes)
        of_groups = (min(size, sum(most)) for size, most in zip(sizes.values(), taken, strict=True))
        return sum(limit(each.most) for each in full) + sum(of_groups)

    return min(width(full) for number in range(len(nodes) + 1) for full in combinations(nodes, number))


def limit(most: int | None) -> float:
    return inf if most is None else most


def after(seen: ControlView, name: str) -> ControlView:
    """Return the view after a node has carried out its plan."""
    plan = plan_of(name, seen)
    owners = dict.fromkeys(plan.release, "") | dict.fromkeys(plan.take, name)
    return replace(seen, leases=tuple(replace(each, node=owners.get(each.key, each.node)) for each in seen.leases))


@given(views())
def test_nodes_that_run_the_same_groups_have_equal_shares_per_group_and_in_total(seen):
    found = shares(seen)
    assert found.keys() == {lease.key for lease in seen.leases}
    for group in {lease.key.group for lease in seen.leases}:
        of_group = Counter(owner for key, owner in found.items() if key.group == group)
        assert max(of_group.values()) - min(of_group[name] for name in seen.alive) <= 1
    totals = Counter(found.values())
    assert max(totals.values()) - min(totals[name] for name in seen.alive) <= 1


@given(views(same=False))
def test_every_partition_that_a_node_can_run_is_assigned(seen):
    found = shares(seen)
    for lease in seen.leases:
        able = {name for name, each in seen.alive.items() if lease.key.group in each.groups}
        assert (lease.key in found) is bool(able)
        assert found.get(lease.key) in able | {None}


@given(views(same=False))
def test_even_shares_do_not_change(seen):
    first = shares(seen)
    settled = replace(seen, leases=tuple(replace(each, node=first.get(each.key, "")) for each in seen.leases))
    assert shares(settled) == first


@given(views(same=False), st.randoms())
def test_every_node_computes_the_same_shares(seen, random):
    mixed_nodes, mixed_leases = list(seen.nodes), list(seen.leases)
    random.shuffle(mixed_nodes)
    random.shuffle(mixed_leases)
    assert shares(ControlView(tuple(mixed_nodes), tuple(mixed_leases))) == shares(seen)


@given(limited_views())
def test_as_many_partitions_are_assigned_as_the_limits_allow(seen):
    assert len(shares(seen)) == most_that_can_be_shared(seen)


@given(limited_views())
def test_no_limit_is_exceeded_to_make_room(seen):
    found = shares(seen)
    for name, count in Counter(found.values()).items():
        assert count <= limit(seen.alive[name].most)
    for (group, name), count in Counter((key.group, owner) for key, owner in found.items()).items():
        assert count <= limit(seen.alive[name].groups[group].most)


@given(limited_views())
def test_every_unassigned_partition_is_reported_as_waiting_by_each_node_that_could_run_it(seen):
    seen = replace(seen, leases=tuple(replace(each, node="") for each in seen.leases))
    for name, each in seen.alive.items():
        plan = plan_of(name, seen)
        runnable = {lease.key for lease in seen.leases if each.can_run(lease.key)}
        assert set(plan.waiting) == runnable - shares(seen).keys()
        groups = {key.group for key in plan.waiting}
        of_node = any(text.startswith("node.max-partitions") for text in plan.limits)
        assert of_node or {text.split(" for ")[-1] for text in plan.limits} == groups


@given(limited_views(), st.randoms())
def test_nodes_with_limits_reach_stable_shares_by_following_their_plans(seen, random):
    names = list(seen.alive)
    for _ in range(ROUNDS):
        random.shuffle(names)
        for name in names:
            seen = after(seen, name)
    assert all(after(seen, name) == seen for name in names)
    assert shares(seen) == {lease.key: lease.node for lease in seen.leases if lease.node in seen.alive}


@given(st.integers(1, 12), st.integers(1, 5), st.data())
def test_as_few_partitions_of_a_group_move_as_possible(size, number, data):
    names = [f"n{each}" for each in range(number)]
    owners = data.draw(st.lists(st.sampled_from(names), min_size=size, max_size=size))
    seen = view([node(name, books=books(size)) for name in names], leases("books", *owners))
    found = shares(seen)
    moves = sum(found[lease.key] != lease.node for lease in seen.leases)
    held = sorted((owners.count(name) for name in names), reverse=True)
    even = [size // number + (place < size % number) for place in range(number)]
    assert moves == sum(max(0, has - fair) for has, fair in zip(held, even, strict=True))
