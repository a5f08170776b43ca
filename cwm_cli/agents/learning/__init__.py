"""Learning online: an agent that writes a program of its environment while it acts in it.

`actor` is the contract between the loop and the kinds of worlds: what is unknown in one, and how
to act on its program. `counted` knows situations that can be counted, `real` real numbers.
"""
