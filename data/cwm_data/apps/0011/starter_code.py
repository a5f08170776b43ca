def islands(heights, levels):
    """Both are lists, the first of rows; return a list with a number for each level."""
