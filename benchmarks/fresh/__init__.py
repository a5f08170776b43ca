"""Twelve environments, written last, by an author who had not seen induction."""

from benchmarks.registering import register

_ENTRY_POINTS: dict[str, tuple[str, int]] = {
    "Drawbridge": ("hybrid", 180),
    "Airbrake": ("hybrid", 180),
    "Hydrofoil": ("hybrid", 160),
    "Callcentre": ("chance", 120),
    "Excavation": ("chance", 80),
    "Apiary": ("chance", 100),
    "Irrigation": ("memory", 120),
    "Squirrel": ("memory", 120),
    "Crossing": ("memory", 100),
    "Recycler": ("objects", 90),
    "Avalanche": ("objects", 100),
    "Airspace": ("objects", 80),
}
IDS = register(__name__, _ENTRY_POINTS)
GROUPS: dict[str, str] = {f"{name}-v0": group for name, (group, _) in _ENTRY_POINTS.items()}
