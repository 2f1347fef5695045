"""The contract of control stores, as far as it is about requests: what is wanted of groups, and their layouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import GroupPartition, Wanted
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.testing.contracts.control_records import (
    BOOKS,
    FILM,
    SECONDS,
    A,
    B,
    ControlStores,
    joined,
    leases,
    owner,
    partitions,
)


class ControlRequestsContract(ControlStores):
    """What people who request something of groups rely on."""

    def test_the_wanted_state_of_a_group_lasts_until_it_is_changed(
        self, store: ControlStore, another: ControlStore
    ) -> None:
        group = BOOKS[0].group
        store.want(group, Wanted.STOPPED)
        assert another.view().wanted == {group: Wanted.STOPPED}
        another.want(group, Wanted.STARTED)
        assert store.view().wanted == {group: Wanted.STARTED}
        assert store.view().wanted_partitions == {}

    @pytest.mark.parametrize(
        "change",
        [
            lambda store: store.join(B, SECONDS),
            lambda store: store.leave(A.id),
            lambda store: store.lay_out(BOOKS[0].group, [BOOKS[0].partition, Partition(4, 2), Partition(2, 1)]),
            lambda store: store.lay_out(FILM.group, layout(2)),
        ],
        ids=["join", "leave", "lay_out", "lay_out_another_group"],
    )
    def test_requests_outlast_nodes_and_layouts(
        self, store: ControlStore, another: ControlStore, change: Callable[[ControlStore], None]
    ) -> None:
        joined(store, A)
        store.want(BOOKS[0].group, Wanted.PAUSED)
        store.want(BOOKS[0].group, Wanted.STARTED, BOOKS[:1])
        change(store)
        assert another.view().wanted == {BOOKS[0].group: Wanted.PAUSED}
        assert another.view().wanted_partitions == {BOOKS[0]: Wanted.STARTED}

    def test_the_wanted_state_of_a_partition_lasts_until_that_of_its_group_is_set(self, store: ControlStore) -> None:
        group = BOOKS[0].group
        store.want(group, Wanted.STOPPED, BOOKS[1:3])
        assert store.view().wanted_partitions == dict.fromkeys(BOOKS[1:3], Wanted.STOPPED)
        assert store.view().wanted == {}
        store.want(FILM.group, Wanted.STARTED)
        assert store.view().wanted_partitions == dict.fromkeys(BOOKS[1:3], Wanted.STOPPED)
        store.want(group, Wanted.STARTED)
        assert store.view().wanted_partitions == {}
        assert store.view().wanted == {group: Wanted.STARTED, FILM.group: Wanted.STARTED}

    def test_partitions_new_to_a_layout_have_free_leases(self, store: ControlStore, another: ControlStore) -> None:
        joined(store, A)
        store.take(A.id, [*BOOKS, FILM])
        store.want(BOOKS[3].group, Wanted.STOPPED, [BOOKS[1], BOOKS[3]])
        store.want(FILM.group, Wanted.STOPPED, [FILM])
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
        assert seen.wanted_partitions[FILM] is Wanted.STOPPED
        assert owner(seen, FILM) == A.id

    def test_splitting_or_merging_a_stopped_partition_yields_stopped_partitions(
        self, store: ControlStore, another: ControlStore
    ) -> None:
        joined(store, A)
        group = BOOKS[0].group
        store.want(group, Wanted.STOPPED, BOOKS[1:2])
        store.want(group, Wanted.PAUSED, BOOKS[2:3])
        store.want(group, Wanted.STARTED, BOOKS[3:])
        for these, stopped in (
            ([*layout(4)[:1], *layout(4)[2:], Partition(8, 1), Partition(8, 5)], {Partition(8, 1), Partition(8, 5)}),
            ([Partition(2, 0), Partition(2, 1)], {Partition(2, 1)}),
            (layout(3), set(layout(3))),
        ):
            store.lay_out(group, these)
            seen = another.view()
            of = {key.partition for key, state in seen.wanted_partitions.items() if state is Wanted.STOPPED}
            assert of == stopped
            assert partitions(seen) == sorted(these)

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
        assert partitions(store.view()) == list(layout(2))

    def test_a_group_no_node_has_listed_can_get_a_layout(self, store: ControlStore) -> None:
        store.lay_out(BOOKS[0].group, layout(3))
        joined(store, A)
        assert partitions(store.view()) == list(layout(3))

    def test_a_node_can_be_kept_off_a_partition_for_a_time(
        self, store: ControlStore, let_pass: Callable[[float], None]
    ) -> None:
        joined(store, A)
        store.avoid(BOOKS[1], A.id, 60)
        assert [lease.avoids for lease in leases(store.view())] == ["", A.id, "", ""]
        let_pass(61)
        assert [lease.avoids for lease in leases(store.view())] == [""] * 4
