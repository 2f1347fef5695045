"""Spark Connect: whether a session is one, or would be opened as one. Groups cannot run there.

Its sessions have no SparkContext: no jobs of Python functions (``parallelize``), no pools, no descriptions, no
``statusTracker``, by which tasks are started, observed and cancelled. Runs on the driver, before a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.util import default_api_mode

from opencqrs_py.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HANDED_IN, ACTIVE = "the session that was handed in", "the session that is active in this process"
"""The origin of a session, for messages."""

_OPEN_ONE = "open a session without .remote(…), on a cluster by spark.master"


def refuse_connect(conf: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Refuse anything that has opened a Spark Connect session in this process, or would open one.

    Args:
        conf: Settings of Spark that a session is opened with.
        environ: Environment variables of the process.

    Raises:
        EngineError: OCQ-416.
    """
    if "SPARK_CONNECT_MODE_ENABLED" in environ:
        raise _refused(ACTIVE, _OPEN_ONE)
    if "SPARK_REMOTE" in environ:
        raise _refused("environment variable SPARK_REMOTE", "unset it, and name a cluster by spark.master")
    if "spark.remote" in conf:
        raise _refused("spark.remote in spark.conf", "remove it, and name a cluster by spark.master")
    mode = conf.get("spark.api.mode") or environ.get("SPARK_API_MODE") or default_api_mode()
    if mode.lower() == "connect":
        raise _refused("spark.api.mode connect", "set spark.api.mode to classic in spark.conf")


def require_usable(session: SparkSession, where: str = HANDED_IN) -> None:
    """Refuse an existing session that cannot run groups.

    Raises:
        EngineError: OCQ-416, if it is of Spark Connect, OCQ-417, if it has been stopped.
    """
    if not hasattr(session, "sparkContext"):
        raise _refused(where, _OPEN_ONE)
    if _has_ended(session.sparkContext):
        raise ended(where)


def _has_ended(context: Any) -> bool:
    """Return whether a context was stopped: also by Spark itself, such as after its master is lost, or with its JVM."""
    if not hasattr(context, "_jsc"):
        return False
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())  # noqa: SLF001 the only way
    except (Py4JError, OSError):
        return True


def ended(where: str) -> EngineError:
    """Return the error for an existing session that can no longer be used."""
    fix = (
        "use a running session, and stop it after the application; if Spark has ended it, as when its master is "
        "lost, call its stop() and open a new one; if its Java has ended, start the program again"
    )
    return EngineError("OCQ-417", "the Spark session has been stopped", where, fix)


def _refused(where: str, fix: str) -> EngineError:
    what = "groups cannot run on Spark Connect: its sessions have no SparkContext, which starts and cancels their tasks"
    return EngineError("OCQ-416", what, where, f"{fix}; or set processing.engine: thread")
