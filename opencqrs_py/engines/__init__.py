"""Engines: who calls the processing core, and when. Two of them, on the same core."""
