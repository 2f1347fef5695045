"""Ports fulfilled: memory, files, SQL databases."""
