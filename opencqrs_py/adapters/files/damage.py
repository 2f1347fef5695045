"""Files whose content is not what their name says, or that are not complete."""

from __future__ import annotations

import zlib

from opencqrs_py.errors import DamagedFileError

__all__ = ["DAMAGE", "REPAIR", "REPAIR_WHOLE", "damaged"]

DAMAGE = (EOFError, OSError, zlib.error)  # what is raised on compressed bytes that are cut off or not what they seem
REPAIR = "repair the file, then restart"
REPAIR_WHOLE = (
    "repair the file, then clear log_fingerprint in the rows of opencqrs_progress that lie in it, since it is another "
    "file now (OCQ-316), and restart"
)


def damaged(why: object, where: str) -> DamagedFileError:
    """Return the error that says that a file cannot be read to its end."""
    fix = f"if it is still being written, wait for its end, and write it under a hidden name next time; else {REPAIR}"
    return DamagedFileError("OCQ-213", f"the file cannot be read to its end ({why})", where, fix)
