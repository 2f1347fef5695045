"""Rebuilds of groups: new tables beside the live ones, filled from the log, then swapped with them."""
