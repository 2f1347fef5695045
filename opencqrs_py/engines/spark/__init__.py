"""The Spark engine: the driver coordinates, executors read, decode, handle and commit."""
