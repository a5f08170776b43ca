"""How programs are put into words: statements in order, names, numbers, line breaks."""
