"""Jobs: what must happen at a time, once, in a cluster. Pure decisions and ports: no threads, SQL, Spark, settings."""
