"""What a process answers over HTTP: a small server, looks that are kept for a moment, and metrics."""
