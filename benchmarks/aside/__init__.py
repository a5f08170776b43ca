"""Sixteen small environments from many fields, written without knowledge of induction.

Induction was tuned on them later.
"""

from benchmarks.registering import register

_MODULES: dict[str, tuple[str, ...]] = {
    "life": ("ReefFishery", "Infusion", "Greenhouse"),
    "plants": ("JacketedReactor", "DataHall"),
    "vehicles": ("DockingRover", "PlanetDescent"),
    "mechanics": ("DetentRotor",),
    "depots": ("ForkliftYard", "GoodsLift", "DriftBarge"),
    "boards": ("SowingSolitaire", "RingPuzzle"),
    "computing": ("RegisterMachine", "PacketRelay"),
    "market": ("GrainTrader",),
}

IDS = register(
    __name__, {name: (module, 100) for module, names in _MODULES.items() for name in names}
)
