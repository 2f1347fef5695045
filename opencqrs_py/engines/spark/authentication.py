"""Whether a Spark authenticates the programs that connect to it.

Without ``spark.authenticate``, each program that reaches a port of the driver or of an executor can fetch the blocks of
a run, and can send objects that the JVM deserialises. Runs on the driver, before any work is given to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from opencqrs_py.errors import EngineError

__all__ = ["SECURE_CLUSTER", "SECURE_LOCAL", "is_local", "refuse_unauthenticated"]

SECURE_LOCAL: Mapping[str, str] = {"spark.authenticate": "true"}
"""Defaults with a local master: Spark itself makes a random secret, which appears in no setting."""

SECURE_CLUSTER: Mapping[str, str] = {"spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true"}
"""Defaults with a cluster. Both need ``spark.authenticate`` and have no effect without it."""

_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_OWN_SECRETS = re.compile(r"yarn|k8s://.*")


def is_local(master: str) -> bool:
    """Return whether all of Spark runs in one JVM, with Python workers that are its child processes.

    Args:
        master: Spark master URL. ``local-cluster[...]`` is no local one: its executors are JVMs of their own.
    """
    return _LOCAL.fullmatch(master) is not None


def refuse_unauthenticated(master: str, authenticate: str | None, *, existing: bool = False) -> None:
    """Refuse a Spark that does not authenticate the programs that connect to it.

    Args:
        master: Spark master URL.
        authenticate: The value of ``spark.authenticate``, ``None`` if it is not set.
        existing: Whether the session was active before, made by the program itself.

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
