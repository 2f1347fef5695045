"""Runs of jobs that exceed their time budgets."""

from __future__ import annotations

import logging

from opencqrs_py.jobs.runs import JobRun
from opencqrs_py.processing.notices import in_words

GRACE_SECONDS = 30.0
"""Seconds that a page or item may take beyond the time budget within which it began."""

_WARNINGS = 2  # after that time, and after twice that time

logger = logging.getLogger("opencqrs.jobs")


def warned_of(run: JobRun, seconds: float, budget: float, warned: int) -> int:
    """Log another warning if an attempt of a run has taken too long; return the number of warnings so far.

    Args:
        run: The run.
        seconds: How long the attempt has taken so far.
        budget: Its time budget in seconds; ``math.inf``: none.
        warned: How many warnings there were before.
    """
    due = min(_WARNINGS, int(seconds // (budget + GRACE_SECONDS)))
    if due <= warned:
        return warned
    text = "[job %s] run %s has taken %s so far, and its time budget is %s: what is in hand does not end; %s"
    fix = f"opencqrs jobs cancel {run.job} requests its end"
    extra = {"action": "long", "job": run.job, "run": run.id, "attempt": run.attempt}
    logger.warning(text, run.job, run.id, in_words(seconds), in_words(budget), fix, extra=extra)
    return due
