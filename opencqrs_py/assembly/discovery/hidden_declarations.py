"""Whether an import may declare groups and jobs that no text shows, as a helper of another package may do."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable

from opencqrs_py.assembly.discovery.source_text import SourceText

_LOAD_OTHERS = {"importlib", "runpy"}  # whatever these load may declare something
_DECLARE_NOTHING = {
    *("attr", "attrs", "backoff", "cachetools", "celery", "click", "django", "fastapi", "flask", "httpx", "msgspec"),
    *("numba", "numpy", "opencqrs_py", "opentelemetry", "pandas", "polars", "prometheus_client", "pyarrow"),
    *("pydantic", "pydantic_settings", "pyspark", "requests", "sentry_sdk", "sqlalchemy", "sqlmodel", "starlette"),
    *("structlog", "tenacity", "typer", "typing_extensions", "wrapt"),
}
_KNOWN = (sys.stdlib_module_names | _DECLARE_NOTHING) - _LOAD_OTHERS


def hides_declarations(used: Collection[SourceText], files: Iterable[SourceText]) -> bool:
    """Return whether an import of some files may declare more than their text shows.

    That is so if they, or files of the project that they import, use a package that is not known to declare nothing;
    or if such a file declares something, and is not examined itself.

    Args:
        used: The files, which are examined.
        files: All files of the project.
    """
    own = {text.name: text for text in files}
    tops = {name.partition(".")[0] for name in own}
    examined = {text.path for text in used}
    waiting, seen = list(used), set(examined)
    while waiting:
        text = waiting.pop()
        if text.path not in examined and (text.names_groups or text.may_have_jobs):
            return True
        for name in text.imports:
            top = name.partition(".")[0]
            if top not in tops:
                if top not in _KNOWN:
                    return True
            elif (found := own.get(name)) is not None and found.path not in seen:
                seen.add(found.path)
                waiting.append(found)
    return False
