"""What must not be shown: passwords in URLs and values whose key speaks of a secret."""

from __future__ import annotations

import re

__all__ = ["MASK", "holds_secret", "mask_url"]

MASK = "***"
"""What is shown in place of a secret."""

_USER_PASSWORD = re.compile(r"(://[^:/@\s]*:).*(?=@)", re.DOTALL)
_USER_TOKEN = re.compile(r"\b((?:eventsourcingdb(?:\+https?)?|esdb|https?):/?/?)[^\s]*(?=@)", re.IGNORECASE)
_PARAMETER = re.compile(
    r"\b([a-z_.-]*(?:password|passwd|pwd|passphrase|token|secret|api[-_]?key|access[-_]?key)[a-z_.-]*=)[^&;\s]*",
    re.IGNORECASE,
)
_SECRET_KEY = re.compile(
    r"password|passwd|passphrase|secret|token|credential|(?:api|access|private)[-_.]?key", re.IGNORECASE
)


def mask_url(url: str) -> str:
    """Return ``url`` with its password, and any parameter that speaks of a secret, shown as ``***``.

    In a URL of HTTP or EventSourcingDB the user is hidden, too, since a token often stands there. Everything up to the
    last ``@`` counts as password, since passwords are not always escaped as they should be: rather too much is hidden
    than too little.
    """
    for secret in (_USER_TOKEN, _USER_PASSWORD, _PARAMETER):
        url = secret.sub(rf"\1{MASK}", url)
    return url


def holds_secret(key: str) -> bool:
    """Return whether ``key`` (``spark.ssl.keyPassword``) names something secret.

    Source:
        Spark configuration, ``spark.redaction.regex``, and a few more words.
    """
    return _SECRET_KEY.search(key) is not None
