"""Three read models of a git history: churn per file, activity per week, hotspots per folder."""

from datetime import UTC, datetime
from posixpath import dirname

from events import CommitAuthored, FileDeleted, FileEvent, FileRenamed
from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import insert
from tables import TABLES, activity, churn, churn_authors, churn_renames, hotspots, upsert

from opencqrs_py import Event, event_handling, on_start

ADD_AUTHOR = insert(churn_authors).on_conflict_do_nothing()
SUMS_OF_A_FILE = ("commits", "lines_added", "lines_deleted", "authors")
ADD_CHURN = upsert(churn, add=SUMS_OF_A_FILE, replace=("last_change", "deleted", "position"))
SET_PREVIOUS = upsert(churn_renames, replace=("previous_path", "position"))
ADD_ACTIVITY = upsert(activity, add=("commits", "files", "lines"))
ADD_HEAT = upsert(hotspots, add=("changes", "lines"))


@on_start("churn")
def create_churn(connection: Connection) -> None:
    """Create the tables. A row belongs to one path, so only one partition writes it, in order."""
    TABLES.create_all(connection, [churn, churn_authors, churn_renames])


@event_handling("churn")
def add_churn(change: FileEvent, raw: Event, connection: Connection) -> None:
    """Count a change of a file, and its author if this is the author's first change of the file."""
    author = connection.execute(ADD_AUTHOR, {"path": change.path, "author": change.author})
    row = {
        "path": change.path,
        "commits": 1,
        "lines_added": change.lines_added or 0,
        "lines_deleted": change.lines_deleted or 0,
        "authors": author.rowcount,
        "last_change": time_of(raw).astimezone(UTC).isoformat(),
        "deleted": isinstance(change, FileDeleted),
        "position": raw.position,
    }
    connection.execute(ADD_CHURN, row)


@event_handling("churn")
def record_rename(rename: FileRenamed, raw: Event, connection: Connection) -> None:
    """Record the previous path of a file; the query of the churn adds up all names of a file."""
    row = {"path": rename.path, "previous_path": rename.previous_path, "position": raw.position}
    connection.execute(SET_PREVIOUS, row)


@on_start("activity")
def create_activity(connection: Connection) -> None:
    """Create the table. The commits of a week share a row, so handlers only add to it."""
    TABLES.create_all(connection, [activity])


@event_handling("activity")
def add_activity(commit: CommitAuthored, raw: Event, connection: Connection) -> None:
    """Count a commit in the ISO week in which its author wrote it, by the author's own clock."""
    year, week, _ = time_of(raw).isocalendar()
    lines = commit.lines_added + commit.lines_deleted
    row = {"week": f"{year}-W{week:02}", "commits": 1, "files": commit.files, "lines": lines}
    connection.execute(ADD_ACTIVITY, row)


@on_start("hotspots")
def create_hotspots(connection: Connection) -> None:
    """Create the table. The query decides from the months which folders are hot."""
    TABLES.create_all(connection, [hotspots])


@event_handling("hotspots")
def add_heat(change: FileEvent, raw: Event, connection: Connection) -> None:
    """Count a change for the folder of the file, in the month of the change."""
    lines = (change.lines_added or 0) + (change.lines_deleted or 0)
    row = {
        "folder": dirname(change.path) or ".",
        "month": f"{time_of(raw):%Y-%m}",
        "changes": 1,
        "lines": lines,
    }
    connection.execute(ADD_HEAT, row)


def time_of(event: Event) -> datetime:
    """Return the time of an event, with its offset from UTC. The loader gives each event a time."""
    return datetime.fromisoformat(event.time or "")
