"""Assembly: the only room that sees settings and machinery together."""
