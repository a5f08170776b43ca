"""What a program gets wrong, part by part, and which part a failure belongs to."""

import ast
from collections.abc import Iterable, Sequence

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import match
from cwm_cli.search.contracts import Move
from cwm_induction.continuous.latents import MATCH, latents
from cwm_induction.continuous.samples import Array, Samples


def losses(data: Dataset, predictions: Columns, held_back: Array) -> dict[str, float]:
    """Return the share of rows of a vector of numbers in which each part is wrong."""
    columns = data.columns
    reward = np.abs(predictions["rewards"] - columns["rewards"])
    size = 1 + np.abs(columns["rewards"])
    shares = {
        "reward": float((reward > MATCH * size).mean()),
        "terminated": float((predictions["terminations"] != columns["terminations"]).mean()),
    }
    samples = Samples.of(data, held_back)
    behind = latents(samples)
    seen = predictions["next_observations"].reshape(samples.after.shape)
    wrong = np.abs(seen - samples.after) > MATCH * (1 + np.abs(samples.after))
    for component, share in enumerate(wrong[samples.smooth].mean(0).tolist()):
        owner = behind.owner(component)
        shares[owner] = max(shares.get(owner, 0.0), share)
    return shares


def wrong_rows(predictions: Columns, data: Dataset) -> Array:
    """Return the mask of the rows that are not predicted in every part."""
    matches = match(predictions, data)
    return matches.losses(data.columns["terminations"]) > 0


def culprit(move: Move) -> frozenset[str]:
    """Return the part that the failing line of a program computes, if that can be told."""
    failure = move.verdict.failure if move.verdict else None
    if failure is None or failure.line is None:
        return frozenset()
    names = assigned_at(move.program, failure.line)
    return frozenset(name.removesuffix("_next") for name in names)


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
