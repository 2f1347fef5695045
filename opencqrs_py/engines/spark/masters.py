"""Whether a Spark master can be reached, and why it does not take a program.

Runs on the driver, before a JVM is launched: Spark itself would try for a minute, and then give no reason.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from opencqrs_py.errors import EngineError

ANSWER_SECONDS = 5.0  # that a master has to accept a connection
_STANDALONE = "spark://"
_OTHERS = re.compile(r"local(-cluster)?\[.*\]|local|yarn|k8s://.+")
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/@,\[\]]+):(?P<port>\d{1,5})")
_FORMS = "local[*], spark://HOST:7077 (several: spark://HOST1:7077,HOST2:7077), yarn or k8s://https://HOST:443"


def require_form(master: str) -> None:
    """Refuse a text that is no URL of a master, before anything is asked of it.

    Raises:
        EngineError: OCQ-351.
    """
    _addresses(master)


def require_master(master: str) -> None:
    """Refuse a master of a standalone cluster that does not accept a connection; of several, one is enough.

    Args:
        master: Spark master URL. Those of other kinds are looked at only for their form.

    Raises:
        EngineError: OCQ-350 with each address and why it cannot be reached, OCQ-351 if it is no URL of a master.
    """
    reasons = _unreachable(_addresses(master), ANSWER_SECONDS)
    if reasons:
        what = f"the Spark master cannot be reached: {'; '.join(reasons)}"
        fix = "start the master, or correct spark.master: the master's page and log show its URL, spark://HOST:PORT"
        raise EngineError("OCQ-350", what, f"spark.master {master}", fix)


def not_registered(master: str, reason: str) -> EngineError | None:
    """Return why a standalone cluster did not take this program.

    ``None`` with another kind of master, and for settings that Spark refuses before it asks one.

    Args:
        master: Spark master URL.
        reason: What Spark says.
    """
    if not master.startswith(_STANDALONE) or "INVALID_SPARK_CONFIG" in reason:
        return None
    pages = [f"{host}:{port}" for host, port in _addresses(master) if _speaks_http(host, port)]
    if pages:
        what = f"{pages[0]} is a web page, not the port of a Spark master"
        fix = "use the URL that the master's page and log show, spark://HOST:PORT; its port is 7077 by default"
    else:
        what = f"the Spark master did not register this program ({reason})"
        fix = (
            "check that it is a Spark master of the same version as pyspark, that spark.authenticate.secret is that of "
            "the cluster, and that the master can reach this machine (spark.driver.host)"
        )
    return EngineError("OCQ-352", what, f"spark.master {master}", fix)


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each master of a standalone cluster; none for other kinds of master."""
    if _OTHERS.fullmatch(master):
        return []
    found = [_ADDRESS.fullmatch(each) for each in master.removeprefix(_STANDALONE).split(",")]
    addresses = [(match["host"].strip("[]"), int(match["port"])) for match in found if match]
    if not master.startswith(_STANDALONE) or len(addresses) < len(found) or any(port > 65_535 for _, port in addresses):
        connect = "Spark Connect cannot be used: " if master.startswith("sc://") else ""
        what = f"{connect}spark.master is not the URL of a Spark master"
        raise EngineError("OCQ-351", what, f"spark.master {master}", f"use {_FORMS}")
    return addresses


def _unreachable(addresses: Sequence[tuple[str, int]], seconds: float) -> list[str]:
    """Return why each address cannot be reached; nothing if one can. All are tried at once, since names take time."""
    if not addresses:
        return []
    answers: SimpleQueue[tuple[tuple[str, int], str]] = SimpleQueue()
    for address in addresses:
        Thread(target=_try, args=(address, seconds, answers), name="opencqrs-master", daemon=True).start()
    reasons = dict.fromkeys(addresses, f"no answer within {seconds:g} s")
    until = time.monotonic() + seconds
    with suppress(Empty):
        for _ in set(addresses):
            address, reason = answers.get(timeout=max(0.0, until - time.monotonic()))
            if not reason:
                return []
            reasons[address] = reason
    return [f"{host}:{port}: {reason}" for (host, port), reason in reasons.items()]


def _try(address: tuple[str, int], seconds: float, answers: SimpleQueue[tuple[tuple[str, int], str]]) -> None:
    try:
        socket.create_connection(address, seconds).close()
    except TimeoutError:
        return  # as if it were still tried
    except socket.gaierror:
        answers.put((address, "there is no host of this name"))
    except (OSError, UnicodeError) as error:
        answers.put((address, (getattr(error, "strerror", None) or str(error)).lower()))
    else:
        answers.put((address, ""))


def _speaks_http(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), ANSWER_SECONDS) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False
