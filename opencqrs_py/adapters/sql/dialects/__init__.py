"""Dialects: what differs from one database to another, one class per database."""
