"""Spark's settings on their way into a JVM that is launched: by a file, never by arguments.

Every user of a machine can read the arguments of all processes. PySpark would pass settings as ``--conf key=value``;
here they stand in a properties file that only its owner can read, and that is deleted as soon as the JVM runs.

Runs on the driver, while the session is opened.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SubmitArguments", "properties_text", "settings_by_file", "value_before_launch"]

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_FILE_OPTION = "--properties-file"
_SETTING_OPTIONS = ("--conf", "-c")
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


@dataclass(frozen=True)
class SubmitArguments:
    """What ``PYSPARK_SUBMIT_ARGS`` says.

    Attributes:
        settings: Its ``--conf``.
        file: Its ``--properties-file``, empty without one.
        others: All other arguments.
    """

    settings: Mapping[str, str]
    file: str
    others: tuple[str, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SubmitArguments:
        """Take them from an environment."""
        settings: dict[str, str] = {}
        file = ""
        others: list[str] = []
        words = iter(shlex.split(environ.get(_ARGUMENTS, "pyspark-shell")))
        for word in words:
            option, joined, value = word.partition("=")
            if option not in (*_SETTING_OPTIONS, _FILE_OPTION):
                others.append(word)
                continue
            value = value if joined else next(words, "")
            if option == _FILE_OPTION:
                file = value
            else:
                key, _, setting = value.partition("=")
                settings[key] = setting
        return cls(settings, file, tuple(others))


def properties_text(settings: Mapping[str, str]) -> str:
    """Return settings in the format of ``java.util.Properties``, in ASCII."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


@contextmanager
def settings_by_file(settings: Mapping[str, str]) -> Iterator[None]:
    """Have a JVM that PySpark launches in this block read settings from a file, which exists as long as the block.

    What the user's ``PYSPARK_SUBMIT_ARGS`` sets is in the file, too, and wins. ``spark-defaults.conf`` applies unless
    those arguments name a properties file, as without this block.
    """
    before = os.environ.get(_ARGUMENTS)
    submitted = SubmitArguments.of(os.environ)
    base = Path(submitted.file).read_text(encoding="utf-8") + "\n\n" if submitted.file else ""
    handle, name = tempfile.mkstemp(prefix="opencqrs-spark-", suffix=".properties")  # with mode 0600
    try:
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - a handle, not a path
            file.write(base + properties_text({**settings, **submitted.settings}))
        defaults = () if submitted.file else ("--load-spark-defaults",)
        os.environ[_ARGUMENTS] = shlex.join([_FILE_OPTION, name, *defaults, *submitted.others])
        yield
    finally:
        Path(name).unlink(missing_ok=True)
        if before is None:
            os.environ.pop(_ARGUMENTS, None)
        else:
            os.environ[_ARGUMENTS] = before


def value_before_launch(key: str, settings: Mapping[str, str], environ: Mapping[str, str], home: str) -> str | None:
    """Return the value that a setting will have in a JVM that is launched now; ``None`` without one.

    Args:
        key: Its full name.
        settings: What the session is opened with.
        environ: The environment.
        home: Spark's folder, for ``spark-defaults.conf`` if ``SPARK_CONF_DIR`` is not set.
    """
    submitted = SubmitArguments.of(environ)
    for said in (settings, submitted.settings):
        if key in said:
            return said[key]
    folder = environ.get("SPARK_CONF_DIR") or str(Path(home, "conf"))
    file = Path(submitted.file or Path(folder, "spark-defaults.conf"))
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = re.findall(rf"^[ \t]*{re.escape(key)}(?:[ \t]*[=:][ \t]*|[ \t]+)(\S*)", text, re.MULTILINE)
    return str(found[-1]) if found else None


def _escaped(text: str) -> str:
    """Escape what has a meaning in a key or in a value; more than necessary does no harm."""
    return "".join(
        _ESCAPED.get(c) or (f"\\{c}" if c in " =:#!" else c if c.isascii() else _as_unicode(c)) for c in text
    )


def _as_unicode(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
