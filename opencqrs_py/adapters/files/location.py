"""Where files of events are: from a URL to a path."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from opencqrs_py.errors import EventStoreError

__all__ = ["path_of_url"]


def path_of_url(url: str, folder: Path) -> Path:
    """Return the file or folder that ``file:///path`` or ``file:relative/path`` means.

    Args:
        url: The URL; ``%20`` and the like stand for what they stand for in URLs.
        folder: Folder that a relative path counts from.

    Raises:
        EventStoreError: OCQ-344, if it is no URL of a file on this machine.
    """
    fix = "write file:///absolute/path, or file:path that counts from the project's folder"
    scheme, colon, rest = url.partition(":")
    if scheme.lower() != "file" or not colon:
        raise EventStoreError("OCQ-344", f"{url!r} is no URL of a file or folder", fix=fix)
    try:
        host = urlsplit(url).netloc
    except ValueError:
        host = "?"
    if host not in ("", "localhost"):
        what = f"{url!r} names the machine {host!r}; files are read on this machine only"
        raise EventStoreError("OCQ-344", what, fix=fix)
    path = unquote(rest.removeprefix("//").removeprefix(host))
    if not path or "\0" in path:
        raise EventStoreError("OCQ-344", f"{url!r} names no file or folder", fix=fix)
    return folder / path
