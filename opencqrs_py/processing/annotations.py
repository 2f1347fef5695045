"""Annotations as they are written, also those whose names only type checkers know.

From Python 3.14 on, annotations are evaluated on access, which ``inspect.signature`` does, too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations


def written_annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function, where they may not be defined as texts."""
    if sys.version_info >= (3, 14):
        return get_annotations(function, format=Format.STRING)
    return getattr(function, "__annotations__", {})


def signature_of(call: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a callable without evaluating its annotations."""
    if sys.version_info >= (3, 14):
        return inspect.signature(call, annotation_format=Format.STRING)
    return inspect.signature(call)


def why_not_called_with(call: Callable[..., Any], *arguments: object) -> str:
    """Return why a callable does not take these arguments; empty if it does, or its signature cannot be read."""
    try:
        signature = signature_of(call)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return str(error)
    return ""
