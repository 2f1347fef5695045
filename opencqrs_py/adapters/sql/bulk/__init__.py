"""Bulk writes: many rows by one statement, from mappings, tables or data frames."""
