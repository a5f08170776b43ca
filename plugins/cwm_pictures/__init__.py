"""Small worlds that are seen as pictures, made to be solved in minutes and known exactly."""
