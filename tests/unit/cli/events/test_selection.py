from __future__ import annotations

import pytest

from opencqrs_py.cli.events.selection import reasons
from opencqrs_py.model.selection import Selection

EXACT = "types are compared exactly"
SHOWN = f"{EXACT}; 'opencqrs events stats' shows the existing ones"


def selection(*types, subject="/"):
    return Selection(subject, recursive=True, types=frozenset(types) or None)


@pytest.mark.parametrize(
    ("selected", "why"),
    [
        (selection(), []),
        (selection(subject="/books"), []),
        (selection("library.*"), [f"{EXACT}: 'library.*' is not a pattern here"]),
        (selection("b?", "a*", "c"), [f"{EXACT}: 'a*' is not a pattern here", f"{EXACT}: 'b?' is not a pattern here"]),
        (selection("a,b"), [f"{EXACT}: 'a,b' is one type; for several repeat --type"]),
        (selection("Library.Lent"), [SHOWN]),
        (selection(subject="books"), ["most subjects begin with a slash: did you mean --subject /books?"]),
        (selection(subject=""), ["most subjects begin with a slash: did you mean --subject /?"]),
        (
            selection(subject="/books/*"),
            ["children of a subject are found without '*': did you mean --subject /books?"],
        ),
        (selection(subject="books/**"), ["most subjects begin with a slash: did you mean --subject /books?"]),
        (selection(subject="/*"), ["children of a subject are found without '*': did you mean --subject /?"]),
        (
            selection("t", subject="books"),
            ["most subjects begin with a slash: did you mean --subject /books?", SHOWN],
        ),
    ],
)
def test_suspicious_selections_are_explained(selected, why):
    assert reasons(selected, after=0) == why


def test_an_exact_type_after_the_start_of_the_log_is_not_suspicious():
    assert reasons(selection("t"), after=9) == []
    assert reasons(selection("t*"), after=9) == [f"{EXACT}: 't*' is not a pattern here"]
