"""Laws that hold in a part of the rows, and rules that select the law of a row."""
