"""The log of runs: how their attempts begin and end, and which of them take too long."""

from __future__ import annotations

import logging

from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.naming import counted
from opencqrs_py.processing.loggers import enable_loggers

logger = logging.getLogger("opencqrs.jobs")


def log_begin(run: JobRun) -> None:
    """Log that an attempt of a run begins."""
    attempt = f", attempt {run.attempt}" if run.attempt > 1 else ""
    logger.debug(
        "[job %s] run %s begins (%s%s)", run.job, run.id, run.trigger.value, attempt, extra=_extra(run, "begin")
    )


def log_end(run: JobRun, ended: JobRun | None, *, released: bool = False) -> None:
    """Log how an attempt of a run ended; ``None`` if it was no longer this process's, which may have released it."""
    enable_loggers()
    if ended is None and released:
        text = "run %s was released as the application stopped; it continues at the next start or in another process"
        logger.info("[job %s] " + text, run.job, run.id, extra=_extra(run, "released"))  # noqa: G003 one text
        return
    if ended is None:
        text = "run %s was taken over by another process; nothing more of it was written here"
        logger.warning("[job %s] " + text, run.job, run.id, extra=_extra(run, "fenced"))  # noqa: G003 one text
        return
    items = f", {counted(ended.position.items, 'item')}" if ended.position.items else ""
    reason = f": {ended.reason}" if ended.reason else ""
    first_line = ended.error.partition("\n")[0]
    extra = _extra(ended, ended.status.value)
    match ended.status:
        case RunStatus.FAILED:
            logger.error("[job %s] run %s failed: %s", run.job, run.id, ended.error, extra=extra)
        case RunStatus.RETRYING if first_line and not ended.reason:  # else released, and the error is an older one
            due = ended.due_at.isoformat(timespec="seconds") if ended.due_at else "soon"
            text = "[job %s] run %s failed on attempt %d (%s); next attempt at %s"
            logger.warning(text, run.job, run.id, run.attempt, first_line, due, extra=extra)
        case RunStatus.RETRYING:
            logger.info("[job %s] run %s continues later%s", run.job, run.id, reason, extra=extra)
        case _:
            text = "[job %s] run %s %s%s%s"
            logger.info(text, run.job, run.id, ended.status.value, items, reason, extra=extra)


def _extra(run: JobRun, action: str) -> dict[str, object]:
    return {"action": action, "job": run.job, "run": run.id, "attempt": run.attempt, "trigger": run.trigger.value}
