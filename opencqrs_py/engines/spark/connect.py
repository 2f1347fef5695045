"""Spark Connect: whether a session, or what would open one, is of it. Groups cannot run there.

Its sessions have no SparkContext: no jobs of Python functions (``parallelize``), no pools, no descriptions, no look at
what runs (``statusTracker``). That is how tasks are started, seen and cancelled. Runs on the driver, before a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.util import default_api_mode

from opencqrs_py.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPEN_ONE = "open a session without .remote(…), on a cluster by spark.master"


def refuse_connect(conf: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Refuse what has opened a session of Spark Connect in this process, or would open one.

    Args:
        conf: Settings of Spark that a session is opened with.
        environ: Environment variables of the process.

    Raises:
        EngineError: OCQ-416.
    """
    if "SPARK_CONNECT_MODE_ENABLED" in environ:
        raise _refused("the session that is active in this process", _OPEN_ONE)
    if "SPARK_REMOTE" in environ:
        raise _refused("environment variable SPARK_REMOTE", "unset it, and name a cluster by spark.master")
    if "spark.remote" in conf:
        raise _refused("spark.remote in spark.conf", "remove it, and name a cluster by spark.master")
    mode = conf.get("spark.api.mode") or environ.get("SPARK_API_MODE") or default_api_mode()
    if mode.lower() == "connect":
        raise _refused("spark.api.mode connect", "set spark.api.mode to classic in spark.conf")


def require_usable(session: SparkSession) -> None:
    """Refuse a session that was handed in and cannot run groups.

    Raises:
        EngineError: OCQ-416, if it is of Spark Connect, OCQ-417, if it has been stopped.
    """
    where = "the session that was handed in"
    if not hasattr(session, "sparkContext"):
        raise _refused(where, _OPEN_ONE)
    if getattr(session.sparkContext, "_jsc", session) is None:
        fix = "hand in a session that runs, and stop it after the application"
        raise EngineError("OCQ-417", "the Spark session has been stopped", where, fix)


def _refused(where: str, fix: str) -> EngineError:
    what = "groups cannot run on Spark Connect: its sessions have no SparkContext, which starts and cancels their tasks"
    return EngineError("OCQ-416", what, where, f"{fix}; or set processing.engine: thread")
