"""Cron expressions with five fields, or with six, seconds first."""

from __future__ import annotations

from datetime import UTC, datetime

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_WITH_SECONDS = 6  # fields


def cron_parts(expression: str) -> tuple[tuple[int, ...], str]:
    """Return the seconds of a cron expression and its five other fields, without common extensions.

    ``@daily`` and the like become fields, and ``?`` becomes ``*``. The seconds are separate because cron defines the
    meaning of a time of day that does not exist, or that occurs twice, for five fields only.

    Raises:
        ValueError: If it is not a cron expression.
    """
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 few settings have one

    said = " ".join(expression.split())
    standard = _MACROS.get(said.lower(), said).replace("?", "*")
    try:
        seconds = tuple(sorted(CronSim(standard, datetime(2000, 1, 1, tzinfo=UTC)).seconds))
    except CronSimError as error:
        raise ValueError(f"'{expression}' is not a cron expression: {error}") from None
    return seconds, standard.partition(" ")[2] if len(standard.split()) == _WITH_SECONDS else standard
