"""Run a project on a Spark cluster of two workers, kill its parts at random, and compare the read models.

    python benchmarks/spark_soak.py --faults 100 --seed 7 --log events.ndjson.gz

Events are appended to PostgreSQL while the project runs. The faults: ``executor``, ``python`` (a Python worker),
``daemon`` (the process that starts Python workers), ``worker`` (of the cluster; another one is started), ``driver``
(another one is started) and ``database`` (stopped, fast or as in a crash, and started again). All but the last use
SIGKILL. Speculation is on: Spark runs a second copy of a task that takes longer than 50 ms, and the soak fails if that
never happened. After each fault the read models must make progress within two minutes. The exit code is 1 if they do
not, or if an event is missing or was applied twice, out of order, or with a second attempt.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pyspark
from failover_soak import Feed
from servers import Server, machine
from soaking import Project, existing_file, made_up

from opencqrs_py.engines.spark.java import find_java

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Hosts of the workers."""

PATIENCE = 120.0
"""Seconds within which the read models must make progress after a fault."""

PAUSE = 3.0
"""Longest pause in seconds between progress and the next fault."""

EXECUTOR, DAEMON = "CoarseGrainedExecutorBackend", "pyspark.daemon"
"""Strings by which the command lines of these processes are recognised."""


class Cluster:
    """A standalone cluster on the loopback interface."""

    def __init__(self, folder: Path) -> None:
        self.secret = secrets.token_hex(16)
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        settings = folder / "cluster.conf"
        settings.touch(0o600)
        settings.write_text(f"spark.authenticate true\nspark.authenticate.secret {self.secret}\n")
        self._work = folder / "work"
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._shared = ("--properties-file", str(settings), "--webui-port", "0")
        master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
        self._master, self.url = self._started("127.0.0.1", r"spark://127\.0\.0\.1:\d+", *master)
        for _ in HOSTS:
            self.add_worker()

    def add_worker(self) -> None:
        """Start a worker with two cores, and wait until it is registered with the master.

        Each worker has a separate address, because Spark runs no copy of a task on the host of the original.
        """
        host = next(host for host in HOSTS if host not in self.workers)
        size = ("--cores", "2", "--memory", "1g", "--work-dir", str(self._work), "--host", host)
        worker = ("org.apache.spark.deploy.worker.Worker", *size)
        self.workers[host], _ = self._started(host, "Successfully registered with master", *worker, last=self.url)

    def end(self, host: str) -> None:
        """Kill a worker and all its descendants."""
        worker = self.workers.pop(host)
        for process in (worker.pid, *_below(worker.pid)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        worker.wait()

    def close(self) -> None:
        """Kill all processes of the cluster."""
        for host in tuple(self.workers):
            self.end(host)
        self._master.kill()
        self._master.wait()

    def _started(self, host: str, pattern: str, *arguments: str, last: str = "") -> tuple[subprocess.Popen[bytes], str]:
        """Start a process of the cluster; return it and the part of its log that matches a pattern.

        Its log is a file: an unread pipe would fill up, and the process would block.
        """
        home = Path(pyspark.__file__).parent
        environment = {**os.environ, "JAVA_HOME": str(find_java(os.environ).home), "SPARK_LOCAL_IP": host}
        command = [str(home / "bin" / "spark-class"), *arguments, *self._shared, *filter(None, [last])]
        log = self._logs / str(len(list(self._logs.iterdir())))
        with log.open("wb") as written:
            process = subprocess.Popen(command, env=environment, stderr=written, stdout=subprocess.DEVNULL)
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            if process.poll() is not None:
                sys.exit(f"a process of the cluster ended, and its log does not match {pattern!r}")
            time.sleep(0.05)
        return process, found.group(0)


class Faults:
    """Injects faults into a run, and checks that it makes progress after each."""

    def __init__(self, project: Project, cluster: Cluster, server: Server, start: Callable[[], None]) -> None:
        self.done: Counter[str] = Counter()
        self.longest = 0.0
        self.wrong: list[str] = []
        self.driver: subprocess.Popen[bytes] | None = None
        self._project = project
        self._cluster = cluster
        self._server = server
        self._start = start

    def run(self, count: int, chance: Random) -> None:
        """Inject this many faults, each after the run has made progress since the previous one."""
        names = ("executor", "python", "daemon", "worker", "driver", "database")
        for number in range(1, count + 1):
            self._await_progress(f"fault {number - 1}" if number > 1 else "the start")
            if self.wrong:
                return
            time.sleep(chance.uniform(0, PAUSE))
            name = chance.choice(names)
            self.done[name] += getattr(self, f"_{name}")(chance)
            print(f"  fault {number}: {name}; longest without progress {self.longest:.0f} s", flush=True)
        self._await_progress("the last fault")

    def _await_progress(self, after: str) -> None:
        began, before = time.monotonic(), self._project.position()
        while (now := self._project.position()) <= before or not before:
            before = before or now
            self._supervise()
            if time.monotonic() - began > PATIENCE:
                self.wrong.append(f"no progress within {PATIENCE:g} s of {after}:\n{self._project.last_messages()}")
                return
            time.sleep(0.05)
        self.longest = max(self.longest, time.monotonic() - began)

    def _supervise(self) -> None:
        """Start the driver again if it has ended: a driver that starts without its database ends (OCQ-304)."""
        if self.driver is not None and self.driver.poll() is not None:
            self._start()

    def _executor(self, chance: Random) -> bool:
        return self._kill(chance, lambda command, _: EXECUTOR in command)

    def _python(self, chance: Random) -> bool:
        return self._kill(chance, lambda command, parent: DAEMON in command and DAEMON in parent)

    def _daemon(self, chance: Random) -> bool:
        return self._kill(chance, lambda command, parent: DAEMON in command and DAEMON not in parent)

    def _kill(self, chance: Random, chosen: Callable[[str, str], bool]) -> bool:
        below = [process for worker in self._cluster.workers.values() for process in _below(worker.pid)]
        found = [process for process in below if chosen(_command(process), _command(_parent(process)))]
        if found:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(found), signal.SIGKILL)
        return bool(found)

    def _worker(self, chance: Random) -> bool:
        self._cluster.end(chance.choice(HOSTS))
        self._cluster.add_worker()
        return True

    def _driver(self, _: Random) -> bool:
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()
        self._start()
        return True

    def _database(self, chance: Random) -> bool:
        self._server.stop(chance.choice(["fast", "immediate"]))
        time.sleep(chance.uniform(0, 2))
        self._server.start()
        return True


def main() -> int:
    """Run the soak and return the exit code."""
    options = _options()
    print(machine())
    chance = Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="opencqrs-spark-") as name:
        folder = Path(name)
        log = options.log or made_up(folder / "events.ndjson.gz", options.events, chance)
        (folder / "project").mkdir()
        server = Server(folder / "data")
        cluster = Cluster(folder)
        try:
            return _soak(folder, log, server, cluster, options.faults, chance)
        finally:
            cluster.close()
            server.close()


def _soak(folder: Path, log: Path, server: Server, cluster: Cluster, count: int, chance: Random) -> int:
    project = Project(folder / "project", server.fresh(), server.fresh(), engine="spark", batch_size=100, partitions=8)
    events = folder / "spark-events"
    events.mkdir()
    settings = _settings(cluster, events)

    def start() -> None:
        faults.driver = project.opencqrs("run", *settings)

    faults = Faults(project, cluster, server, start)
    began = time.monotonic()
    start()
    with Feed(project.store_url, log) as feed:
        faults.run(count, chance)
        feed.finish()
    assert faults.driver is not None
    faults.driver.terminate()
    faults.driver.wait()
    project.opencqrs("run", "--until-caught-up", *settings).wait()
    wrong = [*faults.wrong, *project.differences(log)]
    project.close()
    copies = sum(file.read_bytes().count(b'"Speculative":true') for file in events.rglob("*") if file.is_file())
    if not copies:
        wrong.append("Spark has run no task twice")
    done = ", ".join(f"{times} {name}" for name, times in sorted(faults.done.items()))
    print(f"  {done}; {copies} copies by speculation; longest without progress {faults.longest:.0f} s")
    print(f"  {time.monotonic() - began:.0f} s in all")
    print("\n".join(f"  WRONG: {line}" for line in wrong) or "  equal: each event was applied exactly once, in order")
    return 1 if wrong else 0


def _settings(cluster: Cluster, events: Path) -> list[str]:
    os.environ["OPENCQRS__SPARK__CONF__SPARK_AUTHENTICATE_SECRET"] = cluster.secret
    conf = {
        "spark.authenticate": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "20ms",
        "spark.speculation.task.duration.threshold": "50ms",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    chosen = {"spark.master": cluster.url, **{f"spark.conf.{key}": value for key, value in conf.items()}}
    return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]


def _parent(process: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _command(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace")
    return ""


def _below(process: int) -> Iterator[int]:
    parents = {int(folder.name): _parent(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")}
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return iter(found - {process})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=10, help="number of faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same plan (default: %(default)s)")
    parser.add_argument("--log", type=existing_file, metavar="FILE", help="CloudEvents as NDJSON, .gz too")
    parser.add_argument("--events", type=int, default=100_000, help="events to make up without a log")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
