"""Choosing between programs: every candidate runs in the sandbox before it is believed."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cwm_cli.llm import Action, Move
from cwm_cli.packing import Columns
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.transitions import Dataset
from cwm_induction.continuous import induce, write
from cwm_induction.effort import Effort
from cwm_induction.emission import EmissionError
from cwm_induction.hypothesis import Hypothesis
from cwm_induction.latents import MATCH, latents
from cwm_induction.samples import Array, Samples

CHECK_SHARE = 5
"""One row of the fit part in this many is held back, to choose between explanations."""

DEFAULT = Hypothesis()
WITHOUT = {
    "mechanics": Hypothesis(mechanics=False),
    "regimes": Hypothesis(regimes=False),
}
SIMPLE = Hypothesis(level=1, mechanics=False, regimes=False)


class Candidate(NamedTuple):
    """A program that ran, and its scores on rows held back and on the whole fit part."""

    program: str
    held_back: float
    fit: float

    @property
    def is_right(self) -> bool:
        """Whether every row that may be looked at is predicted."""
        return self.fit >= 1.0


@dataclass(frozen=True)
class Portfolio:
    """Tries hypotheses in turn until one explains everything, and returns the best program."""

    problem: WorldModelProblem
    fit: Dataset
    seed: int
    effort: Effort

    def best(self, move: Move) -> Candidate | None:
        """Return the best program that runs, other than the one that the move starts from."""
        best: Candidate | None = None
        waiting = self._hypotheses(move)
        while waiting and not (best is not None and best.is_right):
            hypothesis = waiting.pop(0)
            if best is not None and not self.effort.spend(0):
                break
            program, families = self._program(hypothesis)
            candidate = self.judged(program) if program != move.program else None
            if candidate is not None and (best is None or candidate[1:] > best[1:]):
                best = candidate
            if hypothesis == DEFAULT:
                waiting += [WITHOUT[family] for family in sorted(families)]
        return best

    def judged(self, program: str) -> Candidate | None:
        """Run a program on the fit part and score it, or return None if it fails."""
        predictions = self._predictions(program)
        if predictions is None:
            return None
        mask = self.held_back
        part = {name: column[mask] for name, column in predictions.items()}
        held_back = self.problem.metric.score(part, self.fit[mask]).accuracy if mask.any() else 0.0
        whole = self.problem.metric.score(predictions, self.fit).accuracy
        return Candidate(program, held_back, whole)

    @property
    def held_back(self) -> Array:
        """Mask of the rows that equations are not fitted to."""
        mask = np.zeros(len(self.fit), bool)
        order = np.random.default_rng([self.seed, len(self.fit)]).permutation(len(self.fit))
        mask[order[: len(self.fit) // CHECK_SHARE]] = True
        return mask

    def _program(self, hypothesis: Hypothesis) -> tuple[str, set[str]]:
        """Write the program of a hypothesis; return the families that it uses as well."""
        rng = np.random.default_rng(self.seed)
        try:
            findings = induce(self.fit, self.held_back, hypothesis, rng, self.effort)
            return write(findings), findings.dynamics.families
        except (EmissionError, np.linalg.LinAlgError):
            return "", set()

    def _hypotheses(self, move: Move) -> list[Hypothesis]:
        """Return what to try, the likeliest first."""
        if move.action is Action.IMPROVE:
            return [*self._improvements(move.program), DEFAULT, SIMPLE]
        if move.action is Action.FIX:
            return [replace(DEFAULT, plain=self._culprit(move)), DEFAULT, SIMPLE]
        return [DEFAULT]

    def _improvements(self, program: str) -> Iterator[Hypothesis]:
        """Yield hypotheses that look deeper at the part that is wrong most, then at all of them."""
        losses = self._losses(program)
        wrong = sorted((part for part in losses if losses[part] > 0), key=lambda p: -losses[p])
        if wrong:
            yield replace(DEFAULT, deeper=frozenset(wrong[:1]))
            yield replace(DEFAULT, deeper=frozenset(wrong))

    def _losses(self, program: str) -> dict[str, float]:
        """Return the share of rows in which a program gets each part wrong."""
        predictions = self._predictions(program)
        if predictions is None:
            return {}
        columns = self.fit.columns
        reward = np.abs(predictions["rewards"] - columns["rewards"])
        size = 1 + np.abs(columns["rewards"])
        losses = {
            "reward": float((reward > MATCH * size).mean()),
            "terminated": float((predictions["terminations"] != columns["terminations"]).mean()),
        }
        samples = Samples.of(self.fit, self.held_back)
        behind = latents(samples)
        seen = predictions["next_observations"].reshape(samples.after.shape)
        wrong = np.abs(seen - samples.after) > MATCH * (1 + np.abs(samples.after))
        for component, share in enumerate(wrong[samples.smooth].mean(0).tolist()):
            owner = behind.owner(component)
            losses[owner] = max(losses.get(owner, 0.0), share)
        return losses

    def _culprit(self, move: Move) -> frozenset[str]:
        """Return the part that the failing line computes, if that can be told."""
        failure = move.verdict.failure if move.verdict else None
        if failure is None or failure.line is None:
            return frozenset()
        names = assigned_at(move.program, failure.line)
        return frozenset(name.removesuffix("_next") for name in names)

    def _predictions(self, program: str) -> Columns | None:
        """Run a program on the fit part; None when it fails."""
        predictions = self.problem.sandbox.predict(program, self.fit, seed=self.problem.seed)
        return predictions.columns if predictions.failure is None else None


def assigned_at(program: str, line: int) -> set[str]:
    """Return the names that the statement at a line of a program sets."""
    try:
        tree = ast.parse(program)
    except SyntaxError:
        return set()
    return set(_targets(node for node in ast.walk(tree) if _covers(node, line)))


def _covers(node: ast.AST, line: int) -> bool:
    """Whether a node is a simple assignment that extends over a line."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return False
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _targets(nodes: Iterable[ast.AST]) -> Sequence[str]:
    names = [name for node in nodes for name in ast.walk(node) if isinstance(name, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]
