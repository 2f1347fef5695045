"""The pure core: from events, handlers, a progress tracker and a clock to outcomes. No threads, no Spark, no SQL."""
