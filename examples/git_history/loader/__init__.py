"""The loader of the git history example: from ``git log`` to CloudEvents, as a stream."""
