"""Masking: the single rule by which secrets are hidden wherever something is shown.

It knows which keys name a secret, where a secret is in a URL or connection string of any kind, and the secret values
that this process uses. These are removed from texts of other programs (drivers, servers, handlers), which may repeat
them anywhere.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = "***"
"""What is shown instead of a secret."""

_KEYS = (
    r"(?:api|access|account|shared|private|secret|signing|encryption|functions)(?:[-_.]|%5F|%2D)?key|"
    r"\b(?:db|pg)[-_.]?pass\b"
)
_SURE_WORDS = rf"password|passwd|passphrase|pwd|secret|{_KEYS}"
_WORDS = rf"{_SURE_WORDS}|token|credential|signature|\bsas\b"
_SECRET_KEY = re.compile(rf"{_WORDS}|(?:\A|[-_.])(?:auth|authorization|pass)\Z", re.IGNORECASE)
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
_VALUE = rf"(?:{_QUOTED}|\{{[^}}]*\}}|[^&;\s]*)"

# Each pattern matches what is kept, as its only group, and then what is hidden.
_USER_TOKEN = re.compile(r"\b((?:eventsourcingdb(?:\+https?)?|esdb|https?):/?/?)[^\s]*(?=@)", re.IGNORECASE)
_USER_PASSWORD = re.compile(r"(://[^:/@\s]*:).*(?=@)", re.DOTALL)
_NO_SCHEME = re.compile(r"\A(?!jdbc:)([^:/@\s]*:)(?!/)[^\s]+(?=@)")
_ORACLE = re.compile(r"(\bjdbc:oracle:\w+:[^/@\s]{0,200}/)(?!/)[^\s]{0,4000}(?=@)", re.IGNORECASE)
_NAME = r"(?:[\w.-]|%5F|%2D)++"  # no backtracking: other programs' texts may make it costly
_NAMED = rf"(?=[\w.-]*?(?:{_WORDS})){_NAME}"
_QUERY = re.compile(rf"([?&]{_NAMED}=)[^&]*", re.IGNORECASE)  # where & alone ends a value
_PARAMETER = re.compile(rf"((?<![\w.-]){_NAMED}\s?(?:=|%3D)\s?){_VALUE}", re.IGNORECASE)
_SHORT_PARAMETER = re.compile(rf"([?&;](?:sig|sas|pass|pw|key|auth|authorization)=){_VALUE}", re.IGNORECASE)
_OF_REDIS = re.compile(r"(\brediss?://)[^\s:/@]+(?=@)", re.IGNORECASE)  # a password alone
_SECRET_NAME = rf"[^{{}}:]*(?:{_WORDS}|(?<![A-Za-z0-9])(?:auth|authorization|pass)(?=:))[^{{}}:]*"
_DEFAULT = re.compile(  # of a placeholder; another placeholder may be part of it
    rf"(\$\{{{_SECRET_NAME}:)(?:[^{{}}]|\{{[^{{}}]*\}})+(?=\}})", re.IGNORECASE
)
_OF_URL = (_DEFAULT, _USER_TOKEN, _USER_PASSWORD, _NO_SCHEME, _ORACLE, _OF_REDIS, _QUERY, _PARAMETER, _SHORT_PARAMETER)

# Written by programs: fields of JSON and of Python, lines of YAML, headers of HTTP, arguments of commands. Before a
# colon only what names a secret beyond doubt counts, and only a value that ends the phrase: "password: too long" stays.
_FIELD = rf"(?i)((?P<quote>[\"'])(?:{_NAMED}|auth|authorization|pass)(?P=quote)\s*:\s*)(?:{_QUOTED})"
_NO_VALUE = r"(?!(?:yes|no|str|bytes|none|null|true|false)\b)"
_LAST = r"[^\s,;()\[\]{}]+(?=\s*(?:[,;)\]}\n]|\Z))"
_LINE = rf"(?i)((?<![\w.-])(?=[\w.-]*?(?:{_SURE_WORDS})){_NAME}:[ \t]+){_NO_VALUE}(?:{_QUOTED}|{_LAST})"
_HEADER = r"(?i)(\bAuthorization\s*[:=]\s*(?:(?:Bearer|Basic|Token)\s+)?)[^\s\"',;)]+"
_BEARER = r"(\bBearer\s+)(?=[^\s\"',;)]*[0-9])[^\s\"',;)]+"
_ARGUMENT = (
    rf"(?i)((?<!\S)--(?:[\w.-]*(?:{_SURE_WORDS}|token)|pass|auth)\s+)"
    rf"(?!-|(?:or|and|to|is|in|for|with|was)\b)(?:{_QUOTED}|\S+)"
)

# In a text there may be several URLs, so what is hidden ends with the URL.
_IN_TEXT = (
    r"(?i)\b((?:eventsourcingdb(?:\+https?)?|esdb|https?)://)[^\s/'\"]{0,4000}(?=@)",
    r"(://[^:/@\s]*:)[^\s'\"]{0,4000}(?=@)",
    _DEFAULT,
    _ORACLE,
    _OF_REDIS,
    rf"(?i)([?&]{_NAMED}=)(?:{_QUOTED})?[^&\s]*",
    _PARAMETER,
    _SHORT_PARAMETER,
    _FIELD,
    _LINE,
    _HEADER,
    _BEARER,
    _ARGUMENT,
)

_LEAST = 4  # characters of a value to hide; a shorter one would be found in ordinary words
_MOST = 1_000  # values that are remembered
_NO_SECRETS = frozenset({"true", "false", "null", "none"})
_lock = Lock()
_remembered: dict[str, None] = {}


def holds_secret(key: str) -> bool:
    """Return whether ``key`` (``spark.ssl.keyPassword``, ``DB_PASSWORD``) names something secret.

    Source:
        Spark configuration, ``spark.redaction.regex``; Hadoop's keys of Azure storage; and a few more words.
    """
    return _SECRET_KEY.search(key) is not None


def mask_url(url: str) -> str:
    """Return a URL or connection string with its password, and each parameter that names a secret, as ``***``.

    In a URL of HTTP or EventSourcingDB the user is hidden, too, since it is often a token. Everything up to the last
    ``@`` counts as password, since passwords are not always escaped as they should be: rather too much is hidden than
    too little.
    """
    for secret in _OF_URL:
        url = secret.sub(rf"\g<1>{MASK}", url)
    return url


def masked(key: str, value: Any) -> Any:
    """Return a value as it is shown: hidden if ``key`` names a secret, else with the secrets in its texts hidden.

    Args:
        key: Name of the field or setting; the last part is enough.
        value: Texts, and mappings and sequences of such; anything else is returned as it is.
    """
    match value:
        case dict():
            return {name: masked(str(name), item) for name, item in value.items()}
        case str() if value and holds_secret(key):
            return MASK
        case str():
            return _without_known(mask_url(value))
        case list() | tuple():
            return type(value)(masked(key, item) for item in value)
        case _:
            return value


def scrubbed(text: str) -> str:
    """Return another program's text without the secrets that this process uses, and without those in its URLs."""
    for secret in _in_text():
        text = secret.sub(rf"\g<1>{MASK}", text)
    return _without_known(text)


def remember(values: Iterable[str]) -> None:
    """Remember secret values, which :func:`scrubbed` hides from now on; the newest thousand are kept.

    Values shorter than four characters, and ordinary words of settings, are ignored.
    """
    with _lock:
        for value in values:
            if len(value) >= _LEAST and value.casefold() not in _NO_SECRETS and "${" not in value and value != MASK:
                _remembered.pop(value, None)
                _remembered[value] = None
        while len(_remembered) > _MOST:
            del _remembered[next(iter(_remembered))]


def secrets_in(url: str) -> frozenset[str]:
    """Return the secrets in a URL or connection string, as written and decoded."""
    hidden = {match.group()[len(match[1]) :].strip("\"'") for secret in _OF_URL for match in secret.finditer(url)}
    parts = {part for each in hidden for part in (each, each.partition(":")[2]) if part}
    return frozenset(parts | {unquote(part) for part in parts})


def forget() -> None:
    """Forget all secret values; for tests."""
    with _lock:
        _remembered.clear()


@cache
def _in_text() -> list[re.Pattern[str]]:
    """Return what finds secrets in a text, compiled when the first text is shown: most commands show none."""
    return [re.compile(each) for each in _IN_TEXT]


def _without_known(text: str) -> str:
    known = tuple(_remembered)
    return _pattern_of(known).sub(MASK, text) if known else text


@lru_cache(maxsize=4)
def _pattern_of(values: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds ``values``, the longest first, as whole words."""
    longest_first = sorted(values, key=len, reverse=True)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9])")
