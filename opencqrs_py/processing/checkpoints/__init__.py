"""Self-checkpointing: participants say which of their events' effects are durable, and progress follows."""
