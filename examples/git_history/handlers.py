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
    """Create the tables; a row of theirs belongs to one path, so one partition alone writes it, in order."""
    TABLES.create_all(connection, [churn, churn_authors, churn_renames])


@event_handling("churn")
def add_churn(change: FileEvent, raw: Event, connection: Connection) -> None:
    """Count one more change of a file, and its author if it is the author's first."""
    author = connection.execute(ADD_AUTHOR, {"path": change.path, "author": change.author})
    row = {
        "path": change.path,
        "commits": 1,
        "lines_added": change.lines_added or 0,
        "lines_deleted": change.lines_deleted or 0,
        "authors": author.rowcount,
        "last_change": moment_of(raw).astimezone(UTC).isoformat(),
        "deleted": isinstance(change, FileDeleted),
        "position": raw.position,
    }
    connection.execute(ADD_CHURN, row)


@event_handling("churn")
def remember_name(rename: FileRenamed, raw: Event, connection: Connection) -> None:
    """Note where a file was before; who reads the churn adds up the names of a file."""
    row = {"path": rename.path, "previous_path": rename.previous_path, "position": raw.position}
    connection.execute(SET_PREVIOUS, row)


@on_start("activity")
def create_activity(connection: Connection) -> None:
    """Create the table; the commits of a week share a row, so it is only ever added to."""
    TABLES.create_all(connection, [activity])


@event_handling("activity")
def add_activity(commit: CommitAuthored, raw: Event, connection: Connection) -> None:
    """Count a commit in the ISO week in which its author wrote it, by the author's own clock."""
    year, week, _ = moment_of(raw).isocalendar()
    lines = commit.lines_added + commit.lines_deleted
    row = {"week": f"{year}-W{week:02}", "commits": 1, "files": commit.files, "lines": lines}
    connection.execute(ADD_ACTIVITY, row)


@on_start("hotspots")
def create_hotspots(connection: Connection) -> None:
    """Create the table; which folders are hot, its reader decides from the months."""
    TABLES.create_all(connection, [hotspots])


@event_handling("hotspots")
def add_heat(change: FileEvent, raw: Event, connection: Connection) -> None:
    """Count a change for the folder that the file lies in, in the month of the change."""
    lines = (change.lines_added or 0) + (change.lines_deleted or 0)
    row = {
        "folder": dirname(change.path) or ".",
        "month": f"{moment_of(raw):%Y-%m}",
        "changes": 1,
        "lines": lines,
    }
    connection.execute(ADD_HEAT, row)


def moment_of(event: Event) -> datetime:
    """Return when an event happened, with its own offset from UTC; the loader gives each event a time."""
    return datetime.fromisoformat(event.time or "")
