"""Ten small environments of ten fields, written without sight of the tool that must learn them."""

import gymnasium

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

IDS: tuple[str, ...] = tuple(f"{name}-v0" for name in _ENTRY_POINTS)

for _name, (_module, _limit) in _ENTRY_POINTS.items():
    if f"{_name}-v0" not in gymnasium.registry:
        gymnasium.register(
            id=f"{_name}-v0",
            entry_point=f"{__name__}.{_module}:{_name}",
            max_episode_steps=_limit,
        )
