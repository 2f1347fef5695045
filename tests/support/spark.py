"""A Spark whose jobs run in this process."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Signal
from types import SimpleNamespace

from py4j.protocol import Py4JNetworkError

from opencqrs_py.engines.spark.kept_recipes import Permit


class Context:
    """A Spark context whose jobs run on the thread that collects them."""

    defaultParallelism = 2  # noqa: N815 Spark's name

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.cancelled: list[str] = []
        self.tags: list[str] = []
        self.before: list[Callable[[], None]] = []  # what happens to the next jobs before their tasks run
        self.after: list[Callable[[], None]] = []  # and after them
        self.on_cancel: Callable[[], None] = lambda: None
        self.active = 0
        self.looked = Signal()

    def setJobGroup(self, group: str, _description: str, *, interruptOnCancel: bool) -> None:  # noqa: N802, N803 Spark's
        assert interruptOnCancel
        self.groups.append(group)

    def addJobTag(self, tag: str) -> None:  # noqa: N802 Spark's name
        self.tags.append(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802 Spark's name
        self.cancelled.append(tag)
        self.on_cancel()

    def parallelize(self, lines: list[str], slices: int) -> SimpleNamespace:
        assert len(lines) == slices

        def collect(handler: Callable[[str], str]) -> list[str]:
            if self.before:
                self.before.pop(0)()
            results = [handler(line) for line in lines]
            if self.after:
                self.after.pop(0)()
            return results

        return SimpleNamespace(map=lambda handler: SimpleNamespace(collect=lambda: collect(handler)))

    def statusTracker(self) -> SimpleNamespace:  # noqa: N802 Spark's name
        self.looked.set()
        stage = SimpleNamespace(numActiveTasks=self.active)
        return SimpleNamespace(getActiveStageIds=lambda: [1], getStageInfo=lambda _: stage)


class Sessions:
    """Sessions with that context."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.gone = False

    will_start = ""

    def require_authentication(self) -> None: ...

    def open(self) -> SimpleNamespace:
        return SimpleNamespace(sparkContext=self.context)

    def handed_over(self, recipe: object) -> object:
        return recipe

    def check(self) -> None:
        if self.gone:
            raise Py4JNetworkError

    def permit(self) -> Permit:
        return Permit()

    def close(self, patience: float) -> None: ...
