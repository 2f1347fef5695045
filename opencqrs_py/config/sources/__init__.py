"""Where settings stand: one module for each kind of place, each yielding entries."""
