"""The queries of the report."""

__all__ = ["ACTIVITY", "CHURN", "HOTSPOTS"]

CHURN = """
WITH RECURSIVE
    followed (old, new, position) AS (
        SELECT old.path, renamed.path, max(renamed.position)
        FROM churn_renames renamed JOIN churn old ON old.path = renamed.previous_path
        WHERE old.position < renamed.position
        GROUP BY old.path),
    name (path, latest) AS (
        SELECT path, path FROM churn WHERE path NOT IN (SELECT old FROM followed)
        UNION ALL
        SELECT followed.old, name.latest FROM followed JOIN name ON name.path = followed.new),
    file AS (
        SELECT latest, sum(commits) AS commits, sum(lines_added) AS added, sum(lines_deleted) AS deleted
        FROM name JOIN churn USING (path) GROUP BY latest)
SELECT latest, file.commits, added, file.deleted,
    (SELECT count(DISTINCT author) FROM name JOIN churn_authors USING (path)
     WHERE name.latest = file.latest),
    substr(last_change, 1, 10)
FROM file JOIN churn ON churn.path = latest
WHERE NOT churn.deleted
ORDER BY added + file.deleted DESC, latest LIMIT ?
"""
"""The existing files with the most changed lines.

A renamed file counts under its latest name, including what it had under the earlier ones. If an earlier name was
used again after the rename, each name counts separately.
"""

HOTSPOTS = """
WITH newest AS (SELECT max(month) AS month FROM hotspots WHERE month <= ?)
SELECT folder, sum(changes), sum(lines), sum(changes) * sum(lines) AS heat, max(hotspots.month)
FROM hotspots, newest
WHERE hotspots.month <= newest.month
    AND hotspots.month > strftime('%Y-%m', newest.month || '-01', '-6 months')
GROUP BY folder
ORDER BY heat DESC, folder LIMIT ?
"""
"""The folders that change most: file changes times lines changed, in the newest six months."""

ACTIVITY = "SELECT week, commits, files, lines FROM activity WHERE week <= ? ORDER BY week"
"""The weeks with commits, without those in the future, which come from wrong clocks."""
