"""The inbox: parked sequences and scheduled batches, tried again until they are handled."""
