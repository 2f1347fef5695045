"""The types of single settings that only jobs have."""

from __future__ import annotations

import re
from typing import Annotated

from opencqrs_py.config.choices import Engine
from opencqrs_py.config.problems import Code
from opencqrs_py.config.value_types import Fact, Reads, read_cron, refusal, text_of

NO_CRON = "-"
"""The cron expression that never fires, as in Spring."""

_QUARTZ_FIELDS = 7
_ID_SOURCE = re.compile(r"subject|id|data(\.[^.\s]+)+")
_ID_SOURCE_FIX = "write subject, id, or a field of the data like data.invoice or data.order.id"
_ENGINES = (Engine.THREAD, Engine.SPARK)


def _job_cron(value: object) -> str | None:
    text = text_of(value).strip()
    if text == NO_CRON:
        return None
    if len(text.split()) == _QUARTZ_FIELDS:
        fix = (
            "write five fields like 0 3 * * * (each day at three), or six with seconds first like 0 0 3 * * *; "
            "there is no field for the year"
        )
        raise refusal("it has seven fields, as only Quartz takes them", fix)
    return read_cron(text)


def _id_source(value: object) -> str:
    text = text_of(value).strip()
    if _ID_SOURCE.fullmatch(text):
        return text
    raise refusal("an event has no id there", _ID_SOURCE_FIX)


def _job_engine(value: Engine) -> Engine:
    if value in _ENGINES:
        return value
    raise refusal("that engine runs groups, not jobs", f"use one of {', '.join(_ENGINES)}", Code.CHOICE)


JobCron = Annotated[str | None, Reads(_job_cron, {"type": "string"}), Fact(unit="cron expression, or - for none")]
"""A cron expression of five fields, of six with seconds first, or ``@daily`` and the like; ``None`` for ``-``."""
IdSource = Annotated[str, Reads(_id_source, {"type": "string", "pattern": r"^\s*(subject|id|data\..+)\s*$"})]
"""Where an event's id for a job comes from: ``subject``, ``id``, or the path of a field of the data."""
JobEngine = Annotated[Engine, Reads(_job_engine, after=True)]
"""An engine that runs jobs: one of ours."""
