"""The shipped problems, one module each: statement, reference, generators and solutions.

The inputs of a problem are lists of arguments of its `FUNCTION`, or texts for standard input if
`FUNCTION` is empty. `reference` computes the answers. `brute` computes the answers of the inputs
from `small` by another method, as a check.
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
"""Names of the modules, in the order of the ids of the problems."""
