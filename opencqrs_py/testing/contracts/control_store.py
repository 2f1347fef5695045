"""The contract of control stores: nodes, leases, and what is wanted of groups."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import (
    ControlView,
    GroupPartition,
    Node,
    ProcessIdentity,
    Runnable,
    TaskLoad,
    Wanted,
)
from opencqrs_py.model.partition import Partition, layout

SECONDS = 1000.0
PROCESS = ProcessIdentity("boot", "pid:[1]", 17, "4711")
BOOKS = [GroupPartition("größe %s :x", partition) for partition in layout(4)]
GROUPS = {BOOKS[0].group: Runnable(4, "code", starts=False, exclusive=True, most=3)}
NODES = [
    Node(f"id-{name}", f"{name}:1", PROCESS, GROUPS, 7, f"2026-01-01T00:00:0{number}.000+00:00")
    for number, name in enumerate("abc")
]
A, B, C = NODES


def joined(store: ControlStore, *nodes: Node) -> None:
    """Have nodes join with leases of 1,000 seconds."""
    for node in nodes:
        store.join(node, SECONDS)


def owners(view: ControlView) -> list[str]:
    """Return the id of each partition's owner; empty for none."""
    found = {lease.key: view.owner_of(lease) for lease in view.leases}
    return ["" if (owner := found[key]) is None else owner.id for key in BOOKS]


class ControlStoreContract:
    """What nodes rely on.

    Give ``store``, which is empty; ``another``, which sees the same as a second process would; and ``let_pass``, which
    advances the store's clock by a number of seconds.
    """

    @pytest.fixture
    def store(self) -> ControlStore:
        """Return an empty store."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, store: ControlStore) -> ControlStore:
        """Return another store of the same tables."""
        return store

    @pytest.fixture
    def let_pass(self) -> Callable[[float], None]:
        """Return a function that advances the store's clock by seconds."""
        raise NotImplementedError

    # Notices

    @pytest.mark.parametrize(
        "change",
        [
            lambda store: store.join(B, SECONDS),
            lambda store: store.leave(A.id),
            lambda store: store.give_back(A.id, BOOKS[:1]),
            lambda store: store.want(BOOKS[0].group, Wanted.STOPPED),
            lambda store: store.want(BOOKS[0].group, Wanted.STOPPED, BOOKS[:1]),
            lambda store: store.avoid(BOOKS[0], A.id, 10),
            lambda store: store.lay_out(BOOKS[0].group, layout(2)),
        ],
        ids=["join", "leave", "give_back", "want", "want_one", "avoid", "lay_out"],
    )
    def test_a_change_wakes_another_process_if_the_store_has_notices(
        self, store: ControlStore, another: ControlStore, change: Callable[[ControlStore], None]
    ) -> None:
        joined(store, A)
        store.take(A.id, BOOKS)
        opened = another.notices()
        if opened is None:
            pytest.skip("changes are seen at the next heartbeat")
        with opened as notices:
            assert not notices.wait(0.01)
            store.beat(A.id, SECONDS)
            assert not notices.wait(0.01)
            change(store)
            assert notices.wait(60)

    def test_a_wait_for_changes_ends_when_another_thread_wakes_it(self, store: ControlStore) -> None:
        opened = store.notices()
        if opened is None:
            pytest.skip("changes are seen at the next heartbeat")
        with opened as notices:
            notices.wake()
            began = time.monotonic()
            assert not notices.wait(60)
            assert time.monotonic() - began < 60

    # Nodes

    def test_a_store_is_empty_at_first(self, store: ControlStore) -> None:
        assert store.view() == ControlView()

    def test_a_joined_node_is_seen_with_all_it_can_run(self, store: ControlStore, another: ControlStore) -> None:
        joined(store, A)
        (record,) = another.view().nodes
        assert (record.node, record.alive) == (A, True)
        assert 0 < record.seconds_left <= SECONDS
        assert [lease.key for lease in another.view().leases] == BOOKS
        assert owners(another.view()) == [""] * 4

    def test_nodes_are_seen_in_the_order_in_which_they_started(self, store: ControlStore) -> None:
        joined(store, C, A, B)
        assert sorted(store.view().alive) == [A.id, B.id, C.id]

    def test_leaving_forgets_the_node_and_frees_its_leases_at_once(self, store: ControlStore) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS)
        store.leave(A.id)
        assert [record.node for record in store.view().nodes] == [B]
        assert owners(store.view()) == [""] * 4
        assert store.take(B.id, BOOKS) == tuple(BOOKS)
        store.leave(A.id)  # again, which changes nothing
        assert owners(store.view()) == [B.id] * 4

    def test_a_joining_node_leaves_the_leases_of_others_unchanged(self, store: ControlStore) -> None:
        joined(store, A)
        store.take(A.id, BOOKS[:2])
        joined(store, B)
        assert owners(store.view()) == [A.id, A.id, "", ""]

    # Leases

    def test_a_free_lease_can_be_taken(self, store: ControlStore, another: ControlStore) -> None:
        joined(store, A)
        assert store.take(A.id, BOOKS[:3]) == tuple(BOOKS[:3])
        assert owners(another.view()) == [A.id, A.id, A.id, ""]
        lease = another.view().leases[0]
        assert lease.term == 1
        assert lease.since

    def test_a_lease_of_a_live_node_cannot_be_taken(self, store: ControlStore, another: ControlStore) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS[:3])
        assert another.take(B.id, BOOKS) == (BOOKS[3],)
        assert owners(store.view()) == [A.id, A.id, A.id, B.id]

    def test_a_node_does_not_take_its_own_lease_again(self, store: ControlStore) -> None:
        joined(store, A)
        store.take(A.id, BOOKS)
        assert store.take(A.id, BOOKS) == ()
        assert {lease.term for lease in store.view().leases} == {1}

    def test_a_returned_lease_can_be_taken_at_once(self, store: ControlStore, another: ControlStore) -> None:
        joined(store, A, B)
        for turn in range(10):
            node = (A, B)[turn % 2]
            assert (store, another)[turn % 2].take(node.id, BOOKS[:1]) == (BOOKS[0],)
            store.give_back(node.id, BOOKS[:1])
        assert store.view().leases[0].term == 10
        assert owners(store.view()) == [""] * 4

    def test_a_node_cannot_give_back_another_nodes_lease(self, store: ControlStore) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS)
        store.give_back(B.id, BOOKS)
        assert owners(store.view()) == [A.id] * 4

    def test_partitions_that_no_node_has_listed_cannot_be_taken(self, store: ControlStore) -> None:
        joined(store, A)
        assert store.take(A.id, [GroupPartition("other", BOOKS[0].partition)]) == ()

    def test_a_node_that_never_joined_gets_no_lease(self, store: ControlStore) -> None:
        joined(store, A)
        assert store.take("nobody", BOOKS) == ()
        assert store.beat("nobody", SECONDS) is None

    # Expiry of leases

    def test_a_heartbeat_extends_all_leases_of_a_node(
        self, store: ControlStore, let_pass: Callable[[float], None]
    ) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS)
        let_pass(0.9 * SECONDS)
        seen = store.beat(A.id, SECONDS)
        assert seen is not None
        assert seen.nodes[0].seconds_left == pytest.approx(SECONDS, abs=60)
        let_pass(0.9 * SECONDS)
        assert store.take(B.id, BOOKS) == ()
        assert owners(store.view()) == [A.id] * 4

    def test_a_heartbeat_can_report_a_nodes_load_to_other_processes(
        self, store: ControlStore, another: ControlStore, let_pass: Callable[[float], None]
    ) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS)
        let_pass(0.9 * SECONDS)
        busy = replace(A, load=TaskLoad({BOOKS[0].group: 3}, 8, 2, 1_000))
        seen = store.beat_as(busy, SECONDS)
        assert seen is not None
        assert seen.nodes[0].seconds_left == pytest.approx(SECONDS, abs=60)
        assert owners(another.view()) == [A.id] * 4
        shown = [record.node for record in another.view().nodes]
        if shown == [A, B]:
            pytest.skip("nodes are recorded only when they join")
        assert shown == [busy, B]
        store.beat(A.id, SECONDS)
        assert another.view().nodes[0].node == busy
        store.beat_as(A, SECONDS)
        assert another.view().nodes[0].node == A

    def test_reporting_its_load_does_not_revive_an_expired_node(
        self, store: ControlStore, let_pass: Callable[[float], None]
    ) -> None:
        joined(store, A)
        let_pass(SECONDS + 1)
        assert store.beat_as(replace(A, load=TaskLoad({}, 8)), SECONDS) is None
        assert not store.view().nodes[0].alive

    def test_leases_expire_without_heartbeats_of_their_node(
        self, store: ControlStore, another: ControlStore, let_pass: Callable[[float], None]
    ) -> None:
        joined(store, A)
        store.take(A.id, BOOKS)
        let_pass(SECONDS + 1)
        joined(store, B)
        assert owners(another.view()) == [""] * 4
        assert [(record.node, record.alive) for record in another.view().nodes] == [(A, False), (B, True)]
        assert another.take(B.id, BOOKS[:2]) == tuple(BOOKS[:2])
        assert [lease.term for lease in store.view().leases] == [2, 2, 1, 1]

    def test_expired_leases_cannot_be_extended_even_if_still_free(
        self, store: ControlStore, let_pass: Callable[[float], None]
    ) -> None:
        joined(store, A)
        store.take(A.id, BOOKS)
        let_pass(SECONDS + 1)
        assert store.beat(A.id, SECONDS) is None
        assert store.take(A.id, BOOKS) == ()
        again = replace(A, id="id-a-2")
        joined(store, again)
        assert store.take(again.id, BOOKS) == tuple(BOOKS)

    def test_a_node_declared_dead_cannot_come_back(self, store: ControlStore) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS)
        assert store.take(B.id, BOOKS, dead=[A.id]) == tuple(BOOKS)
        assert store.beat(A.id, SECONDS) is None
        assert store.take(A.id, BOOKS) == ()
        assert not store.view().nodes[0].alive
        store.give_back(A.id, BOOKS)
        assert owners(store.view()) == [B.id] * 4

    def test_an_expired_node_that_leaves_is_forgotten_and_others_keep_the_leases_they_took(
        self, store: ControlStore, another: ControlStore, let_pass: Callable[[float], None]
    ) -> None:
        joined(store, A)
        store.take(A.id, BOOKS)
        let_pass(SECONDS + 1)
        joined(another, B)
        assert another.take(B.id, BOOKS[:2]) == tuple(BOOKS[:2])
        store.leave(A.id)
        assert store.beat(A.id, SECONDS) is None
        joined(store, replace(A, id="id-a-2"))
        assert {record.node.id: record.alive for record in another.view().nodes} == {"id-a-2": True, B.id: True}
        assert owners(another.view()) == [B.id, B.id, "", ""]
        assert store.take("id-a-2", BOOKS) == tuple(BOOKS[2:])

    def test_a_node_does_not_declare_itself_dead(self, store: ControlStore) -> None:
        joined(store, A)
        assert store.take(A.id, BOOKS, dead=[A.id, "unknown"]) == tuple(BOOKS)

    def test_of_many_concurrent_takers_exactly_one_gets_each_partition(
        self, store: ControlStore, another: ControlStore
    ) -> None:
        nodes = [replace(A, id=f"id-{number}") for number in range(8)]
        joined(store, *nodes)

        def take(number: int) -> tuple[GroupPartition, ...]:
            return (store, another)[number % 2].take(nodes[number].id, BOOKS)

        for turn in range(5):
            with ThreadPoolExecutor(8) as pool:
                taken = list(pool.map(take, range(8)))
            assert sorted(key for keys in taken for key in keys) == BOOKS
            for number, keys in enumerate(taken):
                store.give_back(nodes[number].id, keys)
            assert {lease.term for lease in store.view().leases} == {turn + 1}

    def test_nodes_can_join_concurrently(self, store: ControlStore, another: ControlStore) -> None:
        nodes = [replace(A, id=f"id-{number}") for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: (store, another)[n % 2].join(nodes[n], SECONDS), range(8)))
        assert len(store.view().nodes) == 8
        assert [lease.key for lease in store.view().leases] == BOOKS

    # What is wanted

    def test_the_wanted_state_of_a_group_lasts_until_it_is_changed(
        self, store: ControlStore, another: ControlStore
    ) -> None:
        group = BOOKS[0].group
        store.want(group, Wanted.STOPPED)
        assert another.view().wanted == {group: Wanted.STOPPED}
        another.want(group, Wanted.STARTED)
        assert store.view().wanted == {group: Wanted.STARTED}
        joined(store, A)
        store.leave(A.id)
        assert store.view().wanted == {group: Wanted.STARTED}
        assert store.view().wanted_partitions == {}

    def test_the_wanted_state_of_a_partition_lasts_until_that_of_its_group_is_set(self, store: ControlStore) -> None:
        group = BOOKS[0].group
        store.want(group, Wanted.STOPPED, BOOKS[1:3])
        assert store.view().wanted_partitions == dict.fromkeys(BOOKS[1:3], Wanted.STOPPED)
        assert store.view().wanted == {}
        store.want("other", Wanted.STARTED)
        assert store.view().wanted_partitions == dict.fromkeys(BOOKS[1:3], Wanted.STOPPED)
        store.want(group, Wanted.STARTED)
        assert store.view().wanted_partitions == {}
        assert store.view().wanted == {group: Wanted.STARTED, "other": Wanted.STARTED}

    def test_partitions_new_to_a_layout_have_free_leases(self, store: ControlStore, another: ControlStore) -> None:
        joined(store, A)
        store.take(A.id, BOOKS)
        other = GroupPartition("films", Partition(1, 0))
        store.want(BOOKS[3].group, Wanted.STOPPED, [BOOKS[1], BOOKS[3]])
        store.want(other.group, Wanted.STOPPED, [other])
        kept, halves = BOOKS[:2], Partition(2, 1).split()
        more = Partition(8, 2), Partition(8, 6)
        new = [each.partition for each in BOOKS[:2]] + [Partition(4, 3), *more]
        store.lay_out(BOOKS[0].group, new)
        seen = another.view()
        found = {lease.key.partition: lease.node for lease in seen.leases if lease.key.group == BOOKS[0].group}
        assert found == {one: A.id if one.modulus == 4 else "" for one in new}
        assert halves == (Partition(4, 1), Partition(4, 3))
        wanted = {key.partition: state for key, state in seen.wanted_partitions.items() if key.group == BOOKS[0].group}
        assert wanted == dict.fromkeys([kept[1].partition, Partition(4, 3)], Wanted.STOPPED)
        assert seen.wanted_partitions[other] is Wanted.STOPPED

    def test_splitting_or_merging_a_stopped_partition_yields_stopped_partitions(
        self, store: ControlStore, another: ControlStore
    ) -> None:
        joined(store, A)
        group = BOOKS[0].group
        store.want(group, Wanted.STOPPED, BOOKS[1:2])
        store.want(group, Wanted.PAUSED, BOOKS[2:3])
        store.want(group, Wanted.STARTED, BOOKS[3:])
        for partitions, stopped in (
            ([*layout(4)[:1], *layout(4)[2:], Partition(8, 1), Partition(8, 5)], {Partition(8, 1), Partition(8, 5)}),
            ([Partition(2, 0), Partition(2, 1)], {Partition(2, 1)}),
            (layout(3), set(layout(3))),
        ):
            store.lay_out(group, partitions)
            seen = another.view()
            of = {key.partition for key, state in seen.wanted_partitions.items() if state is Wanted.STOPPED}
            assert of == stopped
            assert {lease.key.partition for lease in seen.leases if lease.key.group == group} == set(partitions)

    def test_the_wanted_state_of_a_partition_can_be_withdrawn(self, store: ControlStore, another: ControlStore) -> None:
        group = BOOKS[0].group
        store.want(group, Wanted.STOPPED)
        store.want(group, Wanted.STARTED, BOOKS[:2])
        store.want(group, None, BOOKS[:1])
        assert another.view().wanted_partitions == {BOOKS[1]: Wanted.STARTED}
        assert another.view().wanted_of(BOOKS[0]) is Wanted.STOPPED
        store.want(group, None)
        assert (another.view().wanted, another.view().wanted_partitions) == ({}, {})

    def test_leases_of_removed_partitions_cannot_be_taken(self, store: ControlStore) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS)
        store.lay_out(BOOKS[0].group, [Partition(1, 0)])
        assert store.take(B.id, BOOKS) == ()
        whole = GroupPartition(BOOKS[0].group, Partition(1, 0))
        assert store.take(B.id, [whole]) == (whole,)

    def test_a_joining_node_does_not_change_the_layout_of_a_group(self, store: ControlStore) -> None:
        joined(store, A)
        store.lay_out(BOOKS[0].group, layout(2))
        joined(store, B)
        assert [lease.key.partition for lease in store.view().leases] == list(layout(2))

    def test_a_group_no_node_has_listed_can_get_a_layout(self, store: ControlStore) -> None:
        store.lay_out(BOOKS[0].group, layout(3))
        joined(store, A)
        assert [lease.key.partition for lease in store.view().leases] == list(layout(3))

    def test_a_node_can_be_kept_off_a_partition_for_a_time(
        self, store: ControlStore, let_pass: Callable[[float], None]
    ) -> None:
        joined(store, A)
        store.avoid(BOOKS[1], A.id, 60)
        assert [lease.avoids for lease in store.view().leases] == ["", A.id, "", ""]
        let_pass(61)
        assert [lease.avoids for lease in store.view().leases] == [""] * 4

    # Outages

    def test_an_error_of_other_code_is_not_an_outage(self, store: ControlStore) -> None:
        assert not store.is_outage(ValueError("no"))
