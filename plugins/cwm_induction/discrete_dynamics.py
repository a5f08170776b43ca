"""A model of how a state of several factors changes."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete_factors import Layout, split
from cwm_induction.discrete_moves import Assumption, Move
from cwm_induction.discrete_scene import Scene, Sizes
from cwm_induction.tables import Column, Rules


class Effect(NamedTuple):
    """What happens to a factor instead of its nominal move: keep, set, add or copy."""

    kind: str
    value: int = 0

    def apply(self, old: np.ndarray, factor: int, radix: int) -> np.ndarray:
        """Return the factor's next values in states `old`."""
        values: np.ndarray = old[:, self.value if self.kind == "copy" else factor]
        if self.kind == "set":
            values = np.full(len(old), self.value)
        if self.kind == "add":
            values = np.clip(values + self.value, 0, radix - 1)
        return values


class Change(NamedTuple):
    """The effects on one factor and the rules that say when: label 1 is the first effect."""

    factor: int
    effects: tuple[Effect, ...]
    columns: tuple[Column, ...]
    rules: Rules


class Block(NamedTuple):
    """The rules that say when nothing moves."""

    columns: tuple[Column, ...]
    rules: Rules


@dataclass(frozen=True)
class Dynamics:
    """A layout of the state and how its factors change."""

    layout: Layout
    sizes: Sizes
    moves: tuple[Move, ...]
    block: Block | None
    changes: tuple[Change, ...]
    assumed: tuple[Assumption, ...]
    bits: float

    def predict(self, before: np.ndarray, action: np.ndarray) -> Scene:
        """Foresee what follows observed states."""
        scene = aim(self.moves, split(before, self.layout), action)
        if self.block:
            scene = apply_block(scene, self.block, self.sizes)
        for change in self.changes:
            scene = apply_change(scene, change, self.sizes)
        return scene


def aim(moves: tuple[Move, ...], old: np.ndarray, action: np.ndarray) -> Scene:
    """Move every factor nominally."""
    columns = [move.apply(old, action, factor) for factor, move in enumerate(moves)]
    aimed, unknown = np.stack(columns, axis=1), np.zeros(len(old), dtype=np.int64)
    return Scene(action, old, aimed, aimed, unknown, unknown)


def apply_block(scene: Scene, block: Block, sizes: Sizes) -> Scene:
    """Undo the moves where the rules say so."""
    stays = block.rules.apply(scene.pool(block.columns, sizes)).astype(bool)
    return scene._replace(new=np.where(stays[:, None], scene.old, scene.new))


def apply_change(scene: Scene, change: Change, sizes: Sizes) -> Scene:
    """Apply the effects on one factor where the rules say so."""
    labels = change.rules.apply(scene.pool(change.columns, sizes))
    new, radix = scene.new.copy(), sizes.radices[change.factor]
    for label, effect in enumerate(change.effects, start=1):
        rows = labels == label
        new[rows, change.factor] = effect.apply(scene.old[rows], change.factor, radix)
    return scene._replace(new=new)
