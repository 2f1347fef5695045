"""Why a selection may have found nothing."""

from __future__ import annotations

from opencqrs_py.cli.output import clean, stderr
from opencqrs_py.model.selection import Selection

__all__ = ["reasons", "tell_reasons"]

_EXACTLY = "types are compared exactly"


def reasons(selection: Selection, after: int) -> list[str]:
    """Return what may be meant otherwise where nothing was found; all of it may also be meant as it was written.

    Args:
        selection: What was looked for.
        after: Position behind which it was looked for. Behind the beginning it is ordinary that nothing has come.
    """
    return [*_of_subject(selection.subject), *_of_types(sorted(selection.types or ()), after)]


def tell_reasons(selection: Selection, after: int = 0) -> bool:
    """Print them on standard error, and return whether there were any."""
    told = reasons(selection, after)
    for reason in told:
        stderr().print(clean(f"nothing found: {reason}"), style="yellow", markup=False, soft_wrap=True)
    return bool(told)


def _of_subject(subject: str) -> list[str]:
    meant = "/" + subject.strip("/*") if subject.endswith("*") else "/" + subject.lstrip("/")
    if not subject.startswith("/"):
        return [f"most subjects begin with a slash: did you mean --subject {meant}?"]
    if subject.endswith("*"):
        return [f"children of a subject are found without '*': did you mean --subject {meant}?"]
    return []


def _of_types(types: list[str], after: int) -> list[str]:
    patterns = [f"{_EXACTLY}: '{each}' is no pattern here" for each in types if "*" in each or "?" in each]
    lists = [f"{_EXACTLY}: '{each}' is one type; for several repeat --type" for each in types if "," in each]
    ordinary = [f"{_EXACTLY}; 'opencqrs events stats' shows those that there are"] if types and after == 0 else []
    return patterns + lists or ordinary
