"""Twenty-four hard environments, by an author who had not seen induction."""

from benchmarks.registering import register

_ENTRY_POINTS: dict[str, tuple[str, int]] = {
    "Slab": ("hybrid", 150),
    "Lorry": ("hybrid", 160),
    "Autoclave": ("hybrid", 120),
    "Lock": ("hybrid", 100),
    "Towboat": ("hybrid", 180),
    "Paddleball": ("hybrid", 200),
    "Bakery": ("chance", 70),
    "Ward": ("chance", 90),
    "Stamping": ("chance", 120),
    "Rapids": ("chance", 60),
    "Dicerace": ("chance", 100),
    "Pasture": ("chance", 80),
    "Moonrover": ("memory", 120),
    "Vault": ("memory", 200),
    "Anaesthesia": ("memory", 120),
    "Courier": ("memory", 150),
    "Tidemill": ("memory", 110),
    "Submarine": ("memory", 160),
    "Warehouse": ("objects", 100),
    "Lamps": ("objects", 60),
    "Carousel": ("objects", 120),
    "Sheepdog": ("objects", 80),
    "Stacks": ("objects", 60),
    "Shunting": ("objects", 60),
}
IDS = register(__name__, _ENTRY_POINTS)
GROUPS: dict[str, str] = {f"{name}-v0": group for name, (group, _) in _ENTRY_POINTS.items()}
