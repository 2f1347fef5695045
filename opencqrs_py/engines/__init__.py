"""Engines: they call the processing core, and decide when. Two of them, on the same core."""
