"""Which process runs which tests: a file stays in one process, and so do all tests of Spark."""

from __future__ import annotations

from typing_extensions import override
from xdist.scheduler import LoadFileScheduling

FOLDERS = ("tests/acceptance/", "tests/hostile/", "tests/integration/", "tests/spark/")
"""Those in which names with Spark mean a real one."""

NAMES = ("spark", "dataframes", "data_frames")


class OneSparkScheduling(LoadFileScheduling):
    """Runs files as wholes, but all tests of Spark in one process, which alone starts a Java and Spark's workers."""

    @override
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        of_spark = file.startswith(FOLDERS) and any(name in nodeid.lower() for name in NAMES)
        return "spark" if of_spark else file
