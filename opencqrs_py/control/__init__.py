"""The control plane: which nodes live, what is wanted of groups, and who holds which partition. Pure."""
