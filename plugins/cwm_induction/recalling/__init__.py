"""Programs that remember a board; each observation shows a window of the board."""
