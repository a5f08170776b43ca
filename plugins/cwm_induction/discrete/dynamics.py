"""A model of how a state of several factors changes."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.factors import Layout, split
from cwm_induction.discrete.moves import Assumption, Move
from cwm_induction.discrete.scene import Scene, Sizes
from cwm_induction.discrete.slides import Slide
from cwm_induction.discrete.tables import Column, Rules


class Effect(NamedTuple):
    """What happens to a factor instead of its nominal move: keep, set, add, copy or site."""

    kind: str
    value: int = 0

    def apply(self, old: np.ndarray, factor: int, sizes: Sizes) -> np.ndarray:
        """Return the factor's next values in states `old`."""
        values: np.ndarray = old[:, self.value if self.kind == "copy" else factor]
        if self.kind == "set":
            values = np.full(len(old), self.value)
        if self.kind == "add":
            values = np.clip(values + self.value, 0, sizes.radices[factor] - 1)
        if self.kind == "site" and sizes.landmarks:
            here = sizes.landmarks.here(old)
            values = np.where(here >= 0, here, values)
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
    slide: Slide | None = None

    def predict(self, before: np.ndarray, action: np.ndarray) -> Scene:
        """Foresee what follows observed states."""
        scene = aim(self.moves, split(before, self.layout), action, self.slide)
        if self.block:
            scene = apply_block(scene, self.block, self.sizes)
        for change in self.changes:
            scene = apply_change(scene, change, self.sizes)
        return scene


def aim(
    moves: tuple[Move, ...], old: np.ndarray, action: np.ndarray, slide: Slide | None = None
) -> Scene:
    """Move every factor nominally."""
    columns = [move.apply(old, action, factor) for factor, move in enumerate(moves)]
    aimed, unknown = np.stack(columns, axis=1), np.zeros(len(old), dtype=np.int64)
    if slide:
        aimed = slide.landing(old, action)
    leaves = [move.leaves(old, action, factor) for factor, move in enumerate(moves)]
    return Scene(action, old, aimed, aimed, unknown, unknown, np.any(leaves, axis=0))


def apply_block(scene: Scene, block: Block, sizes: Sizes) -> Scene:
    """Undo the moves where the rules say so."""
    stays = block.rules.apply(scene.pool(block.columns, sizes)).astype(bool)
    return scene._replace(new=np.where(stays[:, None], scene.old, scene.new))


def apply_change(scene: Scene, change: Change, sizes: Sizes) -> Scene:
    """Apply the effects on one factor where the rules say so."""
    labels = change.rules.apply(scene.pool(change.columns, sizes))
    new = scene.new.copy()
    for label, effect in enumerate(change.effects, start=1):
        rows = labels == label
        new[rows, change.factor] = effect.apply(scene.old[rows], change.factor, sizes)
    return scene._replace(new=new)
