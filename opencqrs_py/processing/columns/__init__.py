"""Columns: the events of a chunk as tables, and the types of their fields."""
