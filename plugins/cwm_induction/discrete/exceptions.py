"""What the nominal moves do not explain: where nothing moves, and what else changes."""

from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.dynamics import (
    Block,
    Change,
    Effect,
    apply_block,
    apply_change,
)
from cwm_induction.discrete.landmarks import Landmarks
from cwm_induction.discrete.layers import fit_layers
from cwm_induction.discrete.scene import Scene, Sizes
from cwm_induction.discrete.tables import Column, Examples, Rules, Table, error_bits
from cwm_induction.discrete.trees import MAX_KINDS, fit_tree

ROUGH_COLUMNS = 2
FULL_COLUMNS = 4
Key = tuple[int, ...]
MOST_WEIGHT = 3


class Options(NamedTuple):
    """Which hypotheses are considered.

    `rank` is the place of the layout among the best, `shapes` admits trees
    and runs beside tables, `blocks` that all moves are blocked at once. Without
    `moves` what follows is looked up.
    """

    rank: int = 0
    shapes: bool = True
    blocks: bool = True
    moves: bool = True


class Found(NamedTuple):
    """Exceptions and their description length."""

    block: Block | None
    changes: tuple[Change, ...]
    bits: float


class Exceptions(NamedTuple):
    """What the nominal moves of a layout do not explain; `full` looks at more combinations."""

    scene: Scene
    after: np.ndarray
    counts: np.ndarray
    noise: float
    sizes: Sizes
    options: Options
    full: bool

    def blocked(self) -> Found:
        """Explain what can be by states in which nothing moves, the rest factor by factor."""
        scene, sizes = self.scene, self.sizes
        stays = (self.after == scene.old).all(axis=1)
        ambiguous = (scene.aimed == scene.old).all(axis=1)
        columns = sizes.columns(scene, "action", "part", "old", "new", "edge", "outside")
        rules = self._rules(columns, scene, stays.astype(np.int64), ~ambiguous)
        block = Block(columns, rules)
        rest = self.changes(apply_block(scene, block, sizes))
        return rest._replace(block=block, bits=rest.bits + rules.bits)

    def changes(self, scene: Scene) -> Found:
        """Explain what is left factor by factor, each seeing those before it."""
        sizes, changes, bits = self.sizes, [], 0.0
        for factor in range(len(sizes.radices)):
            effects, labels = self._effects(scene, factor)
            if effects:
                kinds = ("action", "part", "old", "new", "aimed", "meets", "at")
                columns = sizes.columns(scene, *kinds)
                rules = self._direct(columns, scene, labels, factor) or self._rules(
                    columns, scene, labels, labels >= 0
                )
                bits += rules.bits
                if rules.layers:
                    bits += sum(map(self._price, effects))
                    changes.append(Change(factor, effects, columns, rules))
                    scene = apply_change(scene, changes[-1], sizes)
        return Found(None, tuple(changes), bits)

    def _direct(
        self, columns: tuple[Column, ...], scene: Scene, labels: np.ndarray, factor: int
    ) -> Rules | None:
        """Say by action when something is taken up or put down, if that explains all rows."""
        landmarks = self.sizes.landmarks
        if landmarks is None or landmarks.item != factor:
            return None
        item, held = landmarks.item, landmarks.held
        index = {(column.kind, column.factor): n for n, column in enumerate(columns)}
        action, lies = index["action", -1], index["old", item]
        chosen: list[tuple[Key, Key]] = [((action, index["at", item]), (1,))]
        if landmarks.target is None:
            chosen.append(((action, lies, index["site", -1]), (held, 1)))
        for goal in landmarks.goals(self.sizes.radices):
            kind = "perhaps" if landmarks.optimistic else "at"
            chosen.append(((action, lies, index[kind, goal]), (held, 1)))
        layers = []
        for label, (places, values) in enumerate(chosen, 1):
            rows = labels == 1 if label == 1 else labels > 1
            keys = [(number, *values) for number in np.unique(scene.action[rows]).tolist()]
            table = tuple(columns[place] for place in places)
            layers.append(Table(table, places, dict.fromkeys(keys, label)))
        rules = Rules(tuple(layers), 0.0)
        right = (rules.apply(scene.pool(columns, self.sizes)) == labels).all()
        return rules if right else None

    def _rules(
        self, columns: tuple[Column, ...], scene: Scene, labels: np.ndarray, rows: np.ndarray
    ) -> Rules:
        """Say in which of some rows which label holds."""
        weights = np.minimum(self.counts, MOST_WEIGHT).astype(float)
        kinds = max(2, int(labels.max(initial=0)) + 1)
        price = error_bits(self.noise, kinds)
        pool = scene.pool(columns, self.sizes)
        examples = Examples(pool, labels, weights, price).select(rows)
        if not self.full:
            return fit_layers(examples, ROUGH_COLUMNS, runs=False)
        return choose_rules(examples, self.options)

    def _price(self, effect: Effect) -> float:
        """Price the description of an effect; what is looked up is described by its keys."""
        if not self.options.moves:
            return 0.0
        radices = self.sizes.radices
        choices = len(radices) if effect.kind == "copy" else max(radices)
        return _EFFECT_BITS[effect.kind] + log2(choices)

    def _effects(self, scene: Scene, factor: int) -> tuple[tuple[Effect, ...], np.ndarray]:
        """Cover the values that are not as foreseen with few effects; label every row."""
        target = self.after[:, factor]
        labels = np.zeros(len(target), dtype=np.int64)
        left = scene.new[:, factor] != target
        if not left.any():
            return (), labels
        landmarks = self.sizes.landmarks
        if landmarks and landmarks.item == factor:
            return self._taken_and_put(scene, landmarks, left)
        chosen: list[Effect] = []
        candidates = self._candidates(scene, factor, left)
        hits = np.stack(
            [effect.apply(scene.old, factor, self.sizes) == target for effect in candidates]
        )
        handicaps = np.array([_HANDICAP[effect.kind] for effect in candidates])
        while left.any():
            support = (hits & left).sum(axis=1)
            best = int((support - handicaps).argmax())
            if support.max() == 1:  # each explains one row: none is better than its value
                break
            chosen.append(candidates[best])
            labels[left & hits[best]] = len(chosen)
            left = left & ~hits[best]
        labels[left] = len(chosen) + 1 + np.unique(target[left], return_inverse=True)[1].reshape(-1)
        chosen += [Effect("set", int(value)) for value in np.unique(target[left])]
        return tuple(chosen), labels

    def _taken_and_put(
        self, scene: Scene, landmarks: Landmarks, left: np.ndarray
    ) -> tuple[tuple[Effect, ...], np.ndarray]:
        """Say that what lies somewhere is taken up, and put down where another factor says."""
        old, item = scene.old, landmarks.item
        put, labels = left & (old[:, item] == landmarks.held), left.astype(np.int64)
        effects = [Effect("set", landmarks.held)]
        if landmarks.target is None:
            effects.append(Effect("site"))
            labels[put] = len(effects)
        for goal in landmarks.goals(self.sizes.radices):
            effects.append(Effect("copy", goal))
            labels[put & landmarks.at(old, goal)] = len(effects)
        return tuple(effects), labels

    def _candidates(self, scene: Scene, factor: int, left: np.ndarray) -> list[Effect]:
        """List the effects that could explain the rows that are left."""
        target, old = self.after[left, factor], scene.old[left]
        radices = self.sizes.radices
        values = [Effect("set", int(value)) for value in np.unique(target)]
        if not self.options.moves:
            return values
        shifts = [
            Effect("add", int(shift)) for shift in np.unique(target - old[:, factor]) if shift
        ]
        copies = [
            Effect("copy", other)
            for other in range(len(radices))
            if other != factor and 2 < radices[other] <= radices[factor] + 1
        ]
        return [Effect("keep"), *values, *shifts, *copies]


def choose_rules(examples: Examples, options: Options) -> Rules:
    """Return the shorter of layers and, where shapes are admitted, a tree."""
    layers = fit_layers(examples, FULL_COLUMNS, runs=options.shapes)
    if not options.shapes or not examples.labels.any() or examples.kinds > MAX_KINDS:
        return layers
    return min(layers, fit_tree(examples), key=lambda rules: rules.bits)


_EFFECT_BITS = {"keep": 0.0, "set": 1.0, "add": 2.0, "copy": 3.0, "site": 3.0}

_HANDICAP = {"keep": 0.0, "set": 0.3, "add": 0.5, "copy": 1.2}
"""How many more rows an effect must explain than a plainer one."""
