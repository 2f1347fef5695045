"""Whether a Spark master can be reached and authenticates programs, and why it does not accept this one.

Spark itself would try for a minute to reach a master, and then give no reason; with YARN it tries for many minutes.
Without ``spark.authenticate``, each program that reaches a port of the driver or of an executor can fetch the blocks
of a run, and can send objects that the JVM deserialises. Runs on the driver, before any work is given to Spark.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from opencqrs_py.engines.spark.cluster_addresses import (
    LaunchSettings,
    kubernetes_addresses,
    lacks_hadoop_settings,
    yarn_addresses,
    yarn_site,
)
from opencqrs_py.errors import EngineError

ANSWER_SECONDS = 5.0  # for a master to accept a connection
_STANDALONE = "spark://"
_OTHERS = re.compile(r"local(\[(\*|[1-9]\d*)( *, *\d+)?\])?|local-cluster\[( *\d+ *,){2} *\d+ *\]|yarn|k8s://.+")
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/@,\[\]]+):(?P<port>\d{1,5})")
_FORMS = "local[*], spark://HOST:7077 (several: spark://HOST1:7077,HOST2:7077), yarn or k8s://https://HOST:443"

SECURE_LOCAL: Mapping[str, str] = {"spark.authenticate": "true"}
"""Defaults with a local master: Spark itself makes a random secret, which appears in no setting."""

SECURE_CLUSTER: Mapping[str, str] = {"spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true"}
"""Defaults with a cluster."""

NEEDS_AUTHENTICATION = "spark.network.crypto.enabled"
"""With it, Spark does not start without ``spark.authenticate``."""

_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_OWN_SECRETS = re.compile(r"yarn|k8s://.*")


def require_form(master: str) -> None:
    """Refuse with OCQ-351 a text that is not a URL of a master, before it is used."""
    _addresses(master)


def require_master(master: str, launch: LaunchSettings | None = None) -> None:
    """Refuse a master that does not accept a connection; of several, one is enough.

    With Kubernetes the API server is tried, with YARN the ResourceManager.

    Args:
        master: Spark master URL.
        launch: What the JVM will find; ``None`` if another program has launched it. Then, except for standalone
            clusters, only the form of the master is checked.

    Raises:
        EngineError: OCQ-350 with each address and why it cannot be reached, OCQ-351 if it is not a URL of a master.
    """
    addresses, what = _addresses(master), "the Spark master"
    fix = "start the master, or correct spark.master: the master's page and log show its URL, spark://HOST:PORT"
    if launch is not None and master.startswith("k8s://"):
        addresses, what = kubernetes_addresses(master, launch), "the API server of Kubernetes"
        fix = "correct spark.master, k8s://https://HOST:PORT: 'kubectl cluster-info' shows the URL"
    elif launch is not None and master == "yarn":
        _require_hadoop_settings(launch)
        addresses, what = yarn_addresses(launch), "the ResourceManager of YARN"
        fix = (
            "start it, or correct yarn.resourcemanager.address or yarn.resourcemanager.hostname "
            "in the yarn-site.xml of HADOOP_CONF_DIR"
        )
        if yarn_site(launch) is None:
            what += ", which no yarn-site.xml names,"
            fix = "set HADOOP_CONF_DIR to the folder of the cluster's yarn-site.xml: it contains none"
    if reasons := _unreachable(addresses, ANSWER_SECONDS):
        raise EngineError("OCQ-350", f"{what} cannot be reached: {'; '.join(reasons)}", _where(master), fix)


def _require_hadoop_settings(launch: LaunchSettings) -> None:
    if lacks_hadoop_settings(launch):
        what = "the ResourceManager of YARN is not known: neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"
        fix = "set HADOOP_CONF_DIR to the folder of the cluster's yarn-site.xml and core-site.xml"
        raise EngineError("OCQ-350", what, "spark.master yarn", fix)


def _where(master: str) -> str:
    return "spark.master " + re.sub(r"//[^/@]*@", "//", master.partition("?")[0])  # without password and token


def not_registered(master: str, reason: str) -> EngineError | None:
    """Return why a standalone cluster did not accept this program; ``reason`` is Spark's message.

    ``None`` with another kind of master, and for settings that Spark refuses before it contacts one.
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
        shown = master.partition(";")[0]  # what follows in a URL of Spark Connect may be a token
        raise EngineError("OCQ-351", what, f"spark.master {shown}", f"use {_FORMS}")
    return addresses


def _unreachable(addresses: Sequence[tuple[str, int]], seconds: float) -> list[str]:
    """Return why each address cannot be reached; nothing if one can. All are tried at once, since DNS takes time."""
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


def is_local(master: str) -> bool:
    """Return whether all of Spark runs in one JVM, with Python workers that are its child processes.

    ``local-cluster[...]`` is not a local master: its executors are separate JVMs.
    """
    return _LOCAL.fullmatch(master) is not None


def refuse_unauthenticated(master: str, authenticate: str | None, *, existing: bool = False) -> None:
    """Refuse a Spark that does not authenticate the programs that connect to it.

    Args:
        master: Spark master URL.
        authenticate: The value of ``spark.authenticate``, ``None`` if it is not set.
        existing: Whether the session was already active, opened by the program itself.

    Raises:
        EngineError: OCQ-404, unless ``authenticate`` is true.
    """
    if (authenticate or "").strip().lower() == "true":
        return
    what = (
        "Spark does not authenticate the programs that connect to it: "
        "each of them could read the settings of the groups and run code here"
    )
    where = f"spark.authenticate {authenticate or 'is not set'}, spark.master {master}"
    if existing:
        where += ", the session that was active in this process"
    fix = f"{_remedy(master, existing=existing)}; if no untrusted program can reach Spark's ports, "
    raise EngineError("OCQ-404", what, where, f"{fix}set opencqrs.spark.allow-unauthenticated: true")


def _remedy(master: str, *, existing: bool) -> str:
    if existing:
        secret = "" if is_local(master) or _OWN_SECRETS.fullmatch(master) else ' and "spark.authenticate.secret"'
        return f'create the session with "spark.authenticate" set to "true"{secret}'
    if is_local(master):
        return "remove spark.authenticate from spark.conf, so that it is true"
    if _OWN_SECRETS.fullmatch(master):
        return "set spark.authenticate to true in spark.conf"
    return "set spark.authenticate to true and spark.authenticate.secret to the cluster's secret in spark.conf"
