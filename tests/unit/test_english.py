"""Words that the package and its documentation must not use; CONTRIBUTING lists what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\banew\b": "again",
    r"\bwho asks\b": "the caller",
    r"\b(is|are) away\b": "is unavailable",
    r"\bgoes on\b": "continues",
    r"\bsee to it\b": "make sure",
    r"\bof late\b": "lately",
    r"\bstretch(es)?\b": "range",
    r"\btrouble[sd]?\b": "failure, failing",
    r"\btake in (that|what|how)\b": "note that, read",
    r"\bis told\b": "is notified, gets an error",
    r"(?<!\bthere )\b(is|are|was|were) no (?!longer\b|more\b|such position\b)[a-z{]": "is not a",
    r'"""Say\b': "Return whether, report",
    r"\bwithout a word\b|\bin silence\b": "silently, without a message",
    r"\bfor good\b": "permanently",
    r"\bfor ever\b|\bwithout end\b": "forever, endlessly",
    r"\b(whoever|somebody)\b": "a caller, another process",
    r"\bonce more\b": "again",
    r"\ball the same\b": "nevertheless, still",
    r"\b(is|are|was|were) given up\b": "is abandoned",
    r"\b(is|are) taken for\b": "is treated as, is mistaken for",
    r"\btakes? the place of\b": "replaces",
    r"\b(stands?|stood) still\b": "makes no progress, pauses",
    r"\bin vain\b": "without success, until the timeout",
    r"\bneed be\b": "if necessary",
    r"\bled by (leases|locks)\b": "uses leases, uses locks",
    r"\btype the (command|same) again\b": "run the command again",
}

IN_NAMES = {
    **{word: better for word, better in WORDS.items() if word.startswith(r"\b")},
    r"\b(who|whom|nobody)\b(?! (cancelled|made) it)": "a caller, another process, no handler",
    r"\b(is|are) told\b": "is reported, is notified",
    r"\bgo on\b": "continue",
    r"\bat work\b": "active",
    r"\bof ones own\b": "your own, user-defined",
    r"^test (nor|so does|what can|what has)\b": "a name that needs no other test to be understood",
}
"""What the names of tests do without, with blanks for underscores."""

NAME = re.compile(r"^ *def (test_\w+)", re.MULTILINE)

TEXTS = sorted(
    file
    for pattern in (
        *("opencqrs_py/**/*.py", "tests/support/*.py", "dev.py"),
        *("docs/**/*.md", "README.md", "CHANGELOG.md", "examples/**/*.md", "examples/**/*.py"),
    )
    for file in ROOT.glob(pattern)
)


@pytest.mark.parametrize("word", WORDS)
def test_discouraged_words_are_not_used(word: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()} (write {WORDS[word]!r})"
        for file in TEXTS
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(word, line, re.IGNORECASE)
    ]
    assert found == []


@pytest.mark.parametrize("word", IN_NAMES)
def test_names_of_tests_use_plain_words(word: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}: {name} (write {IN_NAMES[word]!r})"
        for file in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("opencqrs_py/testing/contracts/*.py"))
        for name in NAME.findall(file.read_text(encoding="utf-8"))
        if re.search(word, name.replace("_", " "))
    ]
    assert found == []


def test_enough_files_are_checked() -> None:
    assert len(TEXTS) > 100


# Plurals that must not follow a number in braces, as it may be 1. `counted` of model.naming writes both forms.
COUNTED = re.compile(r"""\{[^{}'"]+\} (events|sequences|attempts|handlers|files|tasks|times|partitions)\b""")
ALWAYS_SEVERAL = (
    "{len(call.chunk)} events",
    "{len(chunk)} events",
    "{len(found)} events match",
    "{len(own)} sequences",
    "{len(inherited)} handlers",
    "{_TRIES} times",
    "{notice.attempt} times",
    "{settings.life_cycle.partitions} partitions",
    "{MOST_ENTRIES:,} files",
)


def test_numbers_that_may_be_1_are_not_followed_by_a_plural() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in TEXTS
        if file.suffix == ".py" and file.is_relative_to(ROOT / "opencqrs_py")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if COUNTED.search(line) and not any(several in line for several in ALWAYS_SEVERAL)
    ]
    assert found == []
