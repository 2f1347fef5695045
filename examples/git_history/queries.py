"""What the report asks the read models."""

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
"""The files that are there, with most lines changed.

A file that was renamed counts under its latest name with what it had under the earlier ones, unless the
earlier name was used again after the rename: then each name counts for itself.
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
"""The folders that change often and much: file changes times lines changed in the newest six months."""

ACTIVITY = "SELECT week, commits, files, lines FROM activity WHERE week <= ? ORDER BY week"
"""The weeks with commits; a clock that ran ahead has put some in the future."""
