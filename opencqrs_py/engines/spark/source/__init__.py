"""The Spark data source ``opencqrs``: events as rows, for batch queries and streams."""
