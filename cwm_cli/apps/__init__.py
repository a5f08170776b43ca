"""The coding benchmark: run many problems, and report what was found."""
