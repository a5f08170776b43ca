"""Ten small environments from ten fields, by an author who had not seen induction."""

from benchmarks.registering import register

_ENTRY_POINTS: dict[str, tuple[str, int]] = {
    "Culture": ("life", 150),
    "Spike": ("life", 200),
    "Ferry": ("motion", 150),
    "Satellite": ("motion", 200),
    "Cascade": ("plants", 150),
    "Coldroom": ("plants", 200),
    "Orchard": ("yards", 100),
    "Tram": ("yards", 100),
    "Frogs": ("decisions", 100),
    "Press": ("decisions", 100),
}

IDS = register(__name__, _ENTRY_POINTS)
