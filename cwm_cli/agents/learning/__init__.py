"""Learning online: an agent that writes a program of its environment while it acts in it.

`learn` is what `cwm learn` does. `loop` acts, compares, has programs written and trusts them last;
`actor` is its contract with the kinds of worlds: what is unknown in one, and how to act on its
program. `counted` knows situations that can be counted, `real` real numbers. `repairing` writes
the programs. `certificate` is what may be promised in the end, `questions` what stays open, and
`runs` the folder in which all of it is kept.
"""
