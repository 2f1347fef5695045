"""The code of a project: fingerprints by which a changed handler is noticed, wherever it runs."""
