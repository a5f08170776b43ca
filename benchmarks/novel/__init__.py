"""Twenty small environments from many fields, to test induction on unfamiliar dynamics."""

import gymnasium

_MODULES = {
    "process": ("ArrheniusReactor", "TwoTanks"),
    "ecology": ("PredatorPrey", "EpidemicControl"),
    "mechanics": ("CoulombCart", "BouncingBall", "DuffingDrive"),
    "vehicles": ("PlanarQuadrotor", "DockingUnicycle"),
    "grids": ("KeyDoor", "IceSlide", "BoxPusher"),
    "puzzles": ("LightsOut", "TakeAwayNim"),
    "services": ("Elevator", "VendingMachine"),
    "chance": ("MachineMaintenance", "PortalDrift"),
    "hybrid": ("HysteresisHeater", "GearboxCar"),
}

IDS: tuple[str, ...] = tuple(f"{name}-v0" for names in _MODULES.values() for name in names)

for _module, _names in _MODULES.items():
    for _name in _names:
        gymnasium.register(
            id=f"{_name}-v0",
            entry_point=f"benchmarks.novel.{_module}:{_name}",
            max_episode_steps=100,
        )
