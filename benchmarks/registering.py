"""Registration of the environments of a suite with Gymnasium."""

from collections.abc import Mapping

import gymnasium


def register(package: str, entry_points: Mapping[str, tuple[str, int]]) -> tuple[str, ...]:
    """Register environments, and return their ids `NAME-v0`.

    Args:
        package: Name of the package of the suite.
        entry_points: Module and maximum number of steps of each class.

    Raises:
        ValueError: Another suite has an environment of the same name.
    """
    for name, (module, limit) in entry_points.items():
        entry_point = f"{package}.{module}:{name}"
        known = gymnasium.registry.get(f"{name}-v0")
        if known is not None and known.entry_point != entry_point:
            raise ValueError(f"{name}-v0 is already {known.entry_point}")
        if known is None:
            gymnasium.register(id=f"{name}-v0", entry_point=entry_point, max_episode_steps=limit)
    return tuple(f"{name}-v0" for name in entry_points)
