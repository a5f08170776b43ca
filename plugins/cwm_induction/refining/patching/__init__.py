"""The refiner `patch`: correct the text of a program where it mispredicts recorded rows."""
