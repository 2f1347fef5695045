"""Jobs of an application: how settings and functions become runs, and what people and programs see of them."""
