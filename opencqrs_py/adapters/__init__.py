"""Implementations of the ports: memory, files, SQL databases."""
