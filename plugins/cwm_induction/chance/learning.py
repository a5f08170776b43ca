"""The random model of an environment: its outputs in an order, each given those before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.chance.candidates import kernels
from cwm_induction.chance.kernels import OutcomeTarget
from cwm_induction.chance.quantities import KnownQuantity, OutcomeRows, is_whole
from cwm_induction.chance.regressions import regressions
from cwm_induction.chance.rewards import RandomReward, fit_reward
from cwm_induction.chance.trees import Grower, Kernel, Tree
from cwm_induction.effort import Effort

Array = np.ndarray


@dataclass(frozen=True)
class Output:
    """An output with its tree; an output that is always certain has one choice in every leaf."""

    target: OutcomeTarget
    tree: Tree


@dataclass(frozen=True)
class RandomModel:
    """All outputs in the order of the draws in the program, and the reward."""

    rows: OutcomeRows
    outputs: tuple[Output, ...]
    reward: RandomReward
    learn: Array

    @property
    def bits(self) -> float:
        """Description length of all outputs."""
        return sum(output.tree.bits for output in self.outputs)

    def refitted(self, mask: Array) -> "RandomModel":
        """Fit all parameters to other rows."""
        outputs = tuple(replace(o, tree=o.tree.refitted(mask)) for o in self.outputs)
        return replace(self, outputs=outputs)


def learn_model(data: Dataset, learn: Array, effort: Effort) -> RandomModel:
    """Find the model of a flat dataset.

    Args:
        data: Transitions with a box of numbers as observations.
        learn: Mask of the rows to learn from.
        effort: Work units to spend.
    """
    rows = OutcomeRows.of(data)
    after = [
        KnownQuantity(f"{part.text}_next", rows.after[:, n]) for n, part in enumerate(rows.now)
    ]
    reward = fit_reward(rows.knowing(*after), learn, effort)
    moved = [term for term in reward.terms if term.text.startswith("min(")]
    rows = replace(rows, derived=tuple(moved))
    states = [
        OutcomeTarget(q.text, q.values, _full(rows, low), _full(rows, high), own)
        for q, own, low, high in zip(after, rows.now, rows.low, rows.high, strict=True)
    ]
    first = [_output(target, rows, learn, effort) for target in states]
    order = np.argsort([output.tree.bits for output in first], kind="stable").tolist()
    ordered = [states[n] for n in order]
    certain = [states[n] for n in order if is_certain(first[n])]
    tried = [ordered]
    if reward.extra[learn].any():
        bounds = _full(rows, -np.inf), _full(rows, np.inf)
        extra = OutcomeTarget("extra", reward.extra, *bounds, is_label=bool(reward.values))
        later = [target for target in ordered if not any(target is each for each in certain)]
        tried = [[*ordered, extra], [*certain, extra, *later]]
    found = [_chained(targets, rows, reward, learn, effort) for targets in tried]
    return min(found, key=lambda model: model.bits)


def is_certain(output: Output) -> bool:
    """Whether every leaf of an output has one value."""
    return all(getattr(leaf, "is_certain", False) for leaf in output.tree.leaves())


def _full(rows: OutcomeRows, bound: float) -> Array:
    return np.full(len(rows), bound)


def _chained(
    targets: Sequence[OutcomeTarget],
    rows: OutcomeRows,
    reward: RandomReward,
    learn: Array,
    effort: Effort,
) -> RandomModel:
    """Fit outputs one after the other, each given those before it."""
    outputs = []
    for target in [*targets, *_end(rows, learn)]:
        output = _output(target, rows, learn, effort)
        outputs.append(output)
        rows = rows.knowing(KnownQuantity(target.name, target.values))
    return RandomModel(rows, tuple(outputs), reward, learn)


def _end(rows: OutcomeRows, learn: Array) -> Iterator[OutcomeTarget]:
    if rows.terminated[learn].any():
        ends = rows.terminated.astype(float)
        yield OutcomeTarget("terminated", ends, _full(rows, 0), _full(rows, 1), is_label=True)


def _output(target: OutcomeTarget, rows: OutcomeRows, learn: Array, effort: Effort) -> Output:
    found: Sequence[Kernel] = (
        kernels(target, rows, learn, effort)
        if is_whole(target.values)
        else regressions(target, rows, learn)
    )
    grower = Grower(found, rows.conditions(), rows.known, effort)
    return Output(target, grower.grow(learn))
