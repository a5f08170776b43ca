"""Rightly predicted steps for an improve prompt: a change of the program has to keep them right."""

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.problems.feedback.kinds import StepKinds
from cwm_cli.problems.feedback.steps import RecordedSteps
from cwm_cli.text import clean, estimated_tokens

HEAD = "Predicted rightly; keep these steps right"
"""Beginning of the section."""


def right_steps(rows: Dataset, right: np.ndarray, tokens: int) -> str:
    """Return as many rightly predicted steps as fit, or "" if there are none.

    Steps that show an effect, a mode or an extreme that no step before them shows come first, then
    steps that lie far from each other.

    Args:
        rows: The rows that prompts may show.
        right: The mask of the rows that are right in every part.
        tokens: The allowance, in estimated tokens.
    """
    steps = RecordedSteps(rows)
    changes = "changed cells" if steps.is_board else "next observation"
    lines = [f"{HEAD} (observation | action | {changes} | reward):"]
    tokens -= estimated_tokens(f"{lines[0]}\n")
    board = None
    for row in _varied(StepKinds(steps), right):
        line = steps.line(row, like=board)
        tokens -= estimated_tokens(f"{line}\n")
        if tokens < 0:
            break
        board = row if board is None and steps.is_board else board
        lines.append(line)
    return clean("\n".join(lines), newlines=True) if len(lines) > 1 else ""


def _varied(kinds: StepKinds, right: np.ndarray) -> list[int]:
    """Return right rows, ordered by the variety that they add."""
    chosen = dict.fromkeys(_covering(kinds.effects, right))
    if not kinds.steps.is_board:
        for column in (*kinds.steps.before.T, kinds.steps.rewards):
            some = np.where(right & np.isfinite(column), column, np.nan)
            if not np.isnan(some).all() and np.nanmin(some) < np.nanmax(some):
                chosen |= dict.fromkeys((int(np.nanargmin(some)), int(np.nanargmax(some))))
    most = min(int(right.sum()), 200)
    far = np.where(right, np.inf, -np.inf)
    for row in chosen:
        far = np.minimum(far, kinds.distances(row))
    while len(chosen) < most:
        row = int(far.argmax())
        if far[row] <= 0:
            break
        chosen[row] = None
        far = np.minimum(far, kinds.distances(row))
    return list(chosen)


def _covering(effects: list[np.ndarray], right: np.ndarray) -> list[int]:
    """Return few rows that show every effect that a right row shows."""
    table = np.stack(effects, axis=1) & right[:, None] if effects else np.zeros((len(right), 0))
    table = table.astype(np.bool_)
    rows: list[int] = []
    left = table.any(axis=0)
    while left.any():
        rows.append(int(table[:, left].sum(axis=1).argmax()))
        left &= ~table[rows[-1]]
    return rows
