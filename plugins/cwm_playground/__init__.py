"""Small worlds whose rules are to be found in words: a door, and a playground."""
