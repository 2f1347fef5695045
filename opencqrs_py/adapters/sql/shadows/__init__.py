"""Shadows: the second tables of a group that is rebuilt, and their swap with the live ones, per database."""
