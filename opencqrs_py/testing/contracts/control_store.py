"""The contract of control stores: nodes, leases, and what is wanted of groups."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import ControlView, GroupPartition, TaskLoad, Wanted
from opencqrs_py.model.partition import layout
from opencqrs_py.testing.contracts.control_records import (
    BOOKS,
    FILM,
    SECONDS,
    A,
    B,
    C,
    joined,
    leases,
    owner,
    owners,
)
from opencqrs_py.testing.contracts.control_requests import ControlRequestsContract


class ControlStoreContract(ControlRequestsContract):
    """What nodes rely on.

    Give ``store``, which is empty; ``another``, which sees the same as a second process would; and ``let_pass``, which
    advances the store's clock by a number of seconds.
    """

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
        assert sorted(lease.key for lease in another.view().leases) == sorted([*BOOKS, FILM])
        assert owners(another.view()) == [""] * 4

    def test_nodes_are_seen_in_the_order_in_which_they_started(self, store: ControlStore) -> None:
        joined(store, C, A, B)
        assert [record.node for record in store.view().nodes] == [A, B, C]
        seen = store.beat(C.id, SECONDS)
        assert seen is not None
        assert [record.node for record in seen.nodes] == [A, B, C]

    def test_leaving_forgets_the_node_and_frees_its_leases_at_once(self, store: ControlStore) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS)
        store.leave(A.id)
        assert [record.node for record in store.view().nodes] == [B]
        assert owners(store.view()) == [""] * 4
        assert sorted(store.take(B.id, BOOKS)) == BOOKS
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
        assert sorted(store.take(A.id, BOOKS[:3])) == BOOKS[:3]
        assert owners(another.view()) == [A.id, A.id, A.id, ""]
        lease = leases(another.view())[0]
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
        assert [lease.term for lease in leases(store.view())] == [1] * 4

    def test_a_returned_lease_can_be_taken_at_once(self, store: ControlStore, another: ControlStore) -> None:
        joined(store, A, B)
        for turn in range(10):
            node = (A, B)[turn % 2]
            assert (store, another)[turn % 2].take(node.id, BOOKS[:1]) == (BOOKS[0],)
            store.give_back(node.id, BOOKS[:1])
        assert leases(store.view())[0].term == 10
        assert owners(store.view()) == [""] * 4

    def test_only_the_returned_leases_end(self, store: ControlStore) -> None:
        joined(store, A)
        store.take(A.id, [*BOOKS, FILM])
        store.give_back(A.id, BOOKS[1:2])
        assert owners(store.view()) == [A.id, "", A.id, A.id]
        assert owner(store.view(), FILM) == A.id

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

    @pytest.mark.parametrize(
        "beat",
        [lambda store: store.beat(B.id, SECONDS), lambda store: store.beat_as(B, SECONDS)],
        ids=["beat", "beat_as"],
    )
    def test_a_heartbeat_extends_no_lease_of_another_node(
        self, store: ControlStore, let_pass: Callable[[float], None], beat: Callable[[ControlStore], ControlView | None]
    ) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS[:1])
        store.take(B.id, BOOKS[1:])
        for _ in range(2):
            let_pass(0.9 * SECONDS)
            assert beat(store) is not None
        assert list(store.view().alive) == [B.id]
        assert owners(store.view()) == ["", B.id, B.id, B.id]
        assert store.take(B.id, BOOKS) == (BOOKS[0],)

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
        assert sorted(another.take(B.id, BOOKS[:2])) == BOOKS[:2]
        assert [lease.term for lease in leases(store.view())] == [2, 2, 1, 1]

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
        assert sorted(store.take(again.id, BOOKS)) == BOOKS

    def test_a_node_declared_dead_cannot_come_back(self, store: ControlStore) -> None:
        joined(store, A, B)
        store.take(A.id, BOOKS)
        assert sorted(store.take(B.id, BOOKS, dead=[A.id])) == BOOKS
        assert store.beat(A.id, SECONDS) is None
        assert store.take(A.id, BOOKS) == ()
        assert not store.view().nodes[0].alive
        store.give_back(A.id, BOOKS)
        assert owners(store.view()) == [B.id] * 4

    def test_only_the_nodes_declared_dead_lose_their_leases(self, store: ControlStore) -> None:
        joined(store, A, B, C)
        store.take(B.id, BOOKS[:1])
        store.take(C.id, BOOKS[1:2])
        assert sorted(store.take(A.id, BOOKS, dead=[B.id])) == [BOOKS[0], *BOOKS[2:]]
        assert set(store.view().alive) == {A.id, C.id}
        assert owners(store.view()) == [A.id, C.id, A.id, A.id]

    def test_an_expired_node_that_leaves_is_forgotten_and_others_keep_the_leases_they_took(
        self, store: ControlStore, another: ControlStore, let_pass: Callable[[float], None]
    ) -> None:
        joined(store, A)
        store.take(A.id, BOOKS)
        let_pass(SECONDS + 1)
        joined(another, B)
        assert sorted(another.take(B.id, BOOKS[:2])) == BOOKS[:2]
        store.leave(A.id)
        assert store.beat(A.id, SECONDS) is None
        joined(store, replace(A, id="id-a-2"))
        assert {record.node.id: record.alive for record in another.view().nodes} == {"id-a-2": True, B.id: True}
        assert owners(another.view()) == [B.id, B.id, "", ""]
        assert sorted(store.take("id-a-2", BOOKS)) == BOOKS[2:]

    def test_a_node_does_not_declare_itself_dead(self, store: ControlStore) -> None:
        joined(store, A)
        assert sorted(store.take(A.id, BOOKS, dead=[A.id, "unknown"])) == BOOKS

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
            assert [lease.term for lease in leases(store.view())] == [turn + 1] * 4

    def test_nodes_can_join_concurrently(self, store: ControlStore, another: ControlStore) -> None:
        nodes = [replace(A, id=f"id-{number}") for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: (store, another)[n % 2].join(nodes[n], SECONDS), range(8)))
        assert len(store.view().nodes) == 8
        assert sorted(lease.key for lease in store.view().leases) == sorted([*BOOKS, FILM])

    # Outages

    def test_an_error_of_other_code_is_not_an_outage(self, store: ControlStore) -> None:
        assert not store.is_outage(ValueError("no"))
