"""Discovery: which modules of a project are imported, and what decorators have marked in them."""
