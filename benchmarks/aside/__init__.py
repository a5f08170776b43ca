"""Sixteen small environments from many fields, written without knowledge of induction.

Induction was tuned on them later.
"""

import gymnasium

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
_STEPS = 100

IDS: tuple[str, ...] = tuple(f"{name}-v0" for names in _MODULES.values() for name in names)

for _module, _names in _MODULES.items():
    for _name in _names:
        gymnasium.register(
            id=f"{_name}-v0",
            entry_point=f"{__name__}.{_module}:{_name}",
            max_episode_steps=_STEPS,
        )
