"""Twenty small environments from many fields, to test induction on unfamiliar dynamics."""

from benchmarks.registering import register

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

IDS = register(
    __name__, {name: (module, 100) for module, names in _MODULES.items() for name in names}
)
