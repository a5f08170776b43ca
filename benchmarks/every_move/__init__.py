"""A search through every kind of move, answered from a file of prepared completions."""
