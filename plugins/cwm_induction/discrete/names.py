"""Names of factors, after what they do."""

from cwm_induction.discrete.dynamics import Dynamics
from cwm_induction.discrete.scene import FLAG


def factor_names(dynamics: Dynamics) -> list[str]:
    """Name every factor after what it does: a place that actions move, an item or a flag."""
    radices = dynamics.sizes.radices
    changed = {change.factor for change in dynamics.changes}
    places = [index for index, move in enumerate(dynamics.moves) if move.steps]
    words = _PLACES.get(len(places), tuple(f"place_{n}" for n in range(len(places))))
    names = dict(zip(places, words, strict=True))
    others = [index for index in range(len(radices)) if index not in names]
    for index in others:
        changes = index in changed or dynamics.moves[index].moves
        names[index] = _other_name(
            radices[index], moves=dynamics.moves[index].moves, changes=changes
        )
    landmarks = dynamics.sizes.landmarks
    if landmarks:
        names |= dict.fromkeys(landmarks.goals(radices), "target")
    if len(radices) == 1 and not places:
        return ["state"]
    counts = [list(names.values()).count(names[index]) for index in range(len(radices))]
    return [f"{names[i]}_{i}" if count > 1 else names[i] for i, count in enumerate(counts)]


def _other_name(radix: int, *, moves: bool, changes: bool) -> str:
    """Name a factor that is no place."""
    if not changes:
        return "setting"
    return "flag" if radix == FLAG else "value" if moves else "item"


_PLACES = {0: (), 1: ("position",), 2: ("row", "column"), 3: ("layer", "row", "column")}
