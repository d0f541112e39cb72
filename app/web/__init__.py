"""The page, the documentation, and their static files."""
