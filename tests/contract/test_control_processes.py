"""Leases under eight processes, two of which are killed: no partition has two owners, and none is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.processes import has_ended
from opencqrs_py.adapters.sql import Database, SqlControlStore

SECONDS = 300  # longest wait for a process
PROCESSES, KILLED = 8, 2

WORKER = '''
import sys

from opencqrs_py.adapters.processes import has_ended, this_process
from opencqrs_py.adapters.sql import Database, SqlControlStore
from opencqrs_py.control.records import GroupPartition, Node, Runnable
from opencqrs_py.model.partition import layout

url, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = Database(url).for_control()
store, keys = SqlControlStore(database), [GroupPartition("books", each) for each in layout(3)]


def tried(action):
    """Do something again while the database is busy with the others."""
    while True:
        try:
            return action()
        except Exception as error:
            if not store.is_outage(error):
                raise


def write(statement):
    with database.writing() as connection:
        connection.exec_driver_sql(statement)


def turn():
    """Take what is free, and let go of it; fail if another process has it meanwhile."""
    view = tried(store.view).without(has_ended)
    dead = [record.node.id for record in view.nodes if not record.alive]
    got = tried(lambda: store.take(name, keys, dead))
    for key in got:
        residue = key.partition.residue
        for one in dead:
            tried(lambda: write(f"DELETE FROM held WHERE residue = {residue} AND node = '{one}'"))
        tried(lambda: write(f"INSERT INTO held VALUES ({residue}, '{name}')"))
    for key in got:
        tried(lambda: write(f"DELETE FROM held WHERE residue = {key.partition.residue}"))
    tried(lambda: store.give_back(name, got))
    return len(got)


tried(lambda: store.join(Node(name, name, this_process(), {"books": Runnable(3)}), 600.0))
print("joined", flush=True)
while rounds:
    rounds -= bool(turn())
tried(lambda: store.leave(name))
'''


@pytest.mark.release(kind="sqlite")
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("rounds_of_each", [3, *(pytest.param(each, marks=pytest.mark.release) for each in (8, 25))])
@pytest.mark.release(kind="mariadb")  # threads show it, in test_control_stores.py
def test_eight_processes_never_own_a_partition_at_the_same_time(
    open_database: Callable[[], Database], url: str, tmp_path: Path, seed: int, rounds_of_each: int
) -> None:
    control = open_database().for_control()
    assert control is not None
    with control.writing() as connection:
        connection.execute(text("CREATE TABLE held (residue INTEGER PRIMARY KEY, node VARCHAR(20) NOT NULL)"))
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    killed = [f"k{number}" for number in range(KILLED)]
    names = [*killed, *(f"n{number}" for number in range(PROCESSES - KILLED))]
    rounds = {name: 10**9 if name in killed else rounds_of_each for name in names}
    running = {
        name: subprocess.Popen(
            [sys.executable, str(script), url, name, str(rounds[name])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        for name in names
    }
    try:
        for name in Random(seed).sample(killed, KILLED):
            process = running[name]
            assert process.stdout is not None
            assert process.stdout.readline() == "joined\n"
            process.kill()
        for name, process in running.items():
            _, err = process.communicate(timeout=SECONDS)
            assert (process.returncode == 0) is (name not in killed), err
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    store = SqlControlStore(control)
    view = store.view().without(has_ended)
    assert view.alive == {}
    assert {lease.node for lease in view.leases} <= {"", *killed}
    assert all(lease.term >= 1 for lease in view.leases)
    store.close()
