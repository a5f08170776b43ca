"""The problems that ship, one module each: statement, reference, generators, and solutions.

A module whose `FUNCTION` is empty is about standard input: what it generates are
texts. Otherwise they are lists of arguments. `reference` answers them, and `brute`
answers those of `small` in another way, as a check.
"""

MODULES = (
    "trolley",
    "label",
    "skyline",
    "tank",
    "battery",
    "tunnel",
    "kitchen",
    "ferry",
    "cleaning",
    "lanterns",
    "banner",
    "archipelago",
)
"""In the order of their ids."""
