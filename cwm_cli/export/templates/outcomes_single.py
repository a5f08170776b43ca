"""The function `step` with plain numbers: it draws from the outcomes that `program.py` lists."""

import json
from bisect import bisect_right
from pathlib import Path

TABLE = json.loads(Path(__file__).with_name("outcomes.json").read_text(encoding="utf-8"))
FIRST_STATE, FIRST_ACTION, ACTIONS = (
    TABLE[name] for name in ("first_state", "first_action", "actions")
)
CHANCES, STATES, REWARDS, ENDS = (TABLE[name] for name in ("chances", "states", "rewards", "ends"))


def step(state: int, action: int, draw: float) -> tuple[int, float, bool]:
    """Take an action in one environment; `draw` is a random number from 0 to 1.

    Returns the next state, the reward, and whether the episode ended.
    """
    row = (state - FIRST_STATE) * ACTIONS + action - FIRST_ACTION
    outcome = bisect_right(CHANCES[row], draw)
    return STATES[row][outcome], REWARDS[row][outcome], ENDS[row][outcome]
