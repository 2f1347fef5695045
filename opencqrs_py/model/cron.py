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


def standard_cron(expression: str) -> str:
    """Return a cron expression without common extensions: ``@daily`` and the like, and ``?`` for ``*``.

    Six fields that begin with second 0 equal the other five, for which cron defines the meaning of a time
    of day that does not exist, or that occurs twice.

    Raises:
        ValueError: If it is not a cron expression.
    """
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 few settings have one

    said = " ".join(expression.split())
    standard = _MACROS.get(said.lower(), said).replace("?", "*")
    try:
        CronSim(standard, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ValueError(f"'{expression}' is not a cron expression: {error}") from None
    return standard.removeprefix("0 ") if len(standard.split()) == _WITH_SECONDS else standard
