"""Engines: they call the processing core, and decide when. There are two, on the same core."""
