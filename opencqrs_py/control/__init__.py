"""The control plane: which nodes are alive, what is requested for groups, and which node holds what. Pure."""
