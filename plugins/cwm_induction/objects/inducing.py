"""Induce programs of objects from transitions, with separate rules for effects and rewards."""

from __future__ import annotations

import ast
from math import inf
from typing import Any
from zlib import crc32

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.objects import MISSION, OBJECTS
from cwm_induction.effort import Effort
from cwm_induction.objects.effects import fit_outcomes, fit_rules, write_reward, write_transition
from cwm_induction.objects.experience import Experience

UNITS = 4_000
"""Work units for the rules of one program, about 20 seconds of one core."""

MOST_KNOWN = 4000
"""Maximum number of states in a program's cache: a few megabytes."""

ENVIRONMENT = '''\
class Environment:
    """{about}"""

    def __init__(self):
        self.mission, self.table, self.state = "", None, ()
        self.known = {{}}  # cached states by table: planners revisit them

    def set_state(self, observation):
        """Set the observation to predict from."""
        self.mission, self.table = observation["mission"], observation["objects"]
        key = self.table.tobytes()
        if key not in self.known:
            taken = np.flatnonzero(self.table[:, 0])
            rows = self.table[: taken[-1] + 1 if len(taken) else 0].tolist()
            self.remember(key, tuple(map(decoded, range(len(rows)), rows)))
        self.state = self.known[key]

    def remember(self, key, state):
        """Cache a state; clear the cache when it is full."""
        if len(self.known) > {most}:
            self.known.clear()
        self.known[key] = state

    def step(self, action):
        """Predict the observation, the reward, and whether the episode ends."""
        state, action = self.state, int(action)
        after = transition(state, action)
        gained, done = reward(self.mission, state, action, after)
        table = self.table.copy()
        for one, two in zip(state, after):
            if one is not two:
                table[two.slot] = encoded(two)
        self.remember(table.tobytes(), after)
        self.table, self.state = table, after
        return {{"mission": self.mission, "objects": table}}, gained, done
'''

RECALLED = '''

# Transitions that no rule explains, by action and checksum: the rows that change, reward, end.
from zlib import crc32

RECALLED = {{
{table}}}


class Rules(Environment):
    """Predicts by rules."""


class Environment(Rules):
    """Predicts by rules, and looks up {count} transitions that they do not explain."""

    def step(self, action):
        """Look the transition up, or predict it by rules."""
        key = int(action), crc32(self.table.tobytes() + self.mission.encode())
        if key not in RECALLED:
            return super().step(action)
        changes, gained, done = RECALLED[key]
        table = self.table.copy()
        for slot, row in changes.items():
            table[slot] = row
        self.set_state({{"mission": self.mission, "objects": table}})
        return {{"mission": self.mission, "objects": table}}, gained, done
'''

TABLE_START = RECALLED[: RECALLED.index(",")]
"""Text at the beginning of a program's lookup table."""


def supports(data: Dataset) -> bool:
    """Return whether a dataset has objects with positions, and discrete actions."""
    fields = {name for name, _ in data.metadata.get("objects", {}).get("fields", ())}
    return {"x", "y"} <= fields and data.action_space.kind == "discrete"


def induce(data: Dataset) -> str:
    """Return a program that explains transitions of a dataset that `supports` accepts."""
    return program_of(Experience.of(data))


def program_of(seen: Experience) -> str:
    """Return a program of rules for effects, rewards and ends.

    Rules apply only to kinds of objects that occur in the data. A table contains the transitions
    that the rules predict wrongly.
    """
    spend = Effort(UNITS, inf).spend
    transition = write_transition(seen, fit_rules(seen, spend))
    reward = write_reward(seen, fit_outcomes(seen, spend))
    about = f"Rules over objects, induced from {len(seen.rows)} transitions."
    world = ENVIRONMENT.format(about=about, most=MOST_KNOWN)
    moves = f"MOVES = {dict(seen.moves)!r}\n" if "MOVES" in transition + reward else ""
    prelude = _used(seen.language.text, transition + reward + world)
    program = "\n\n".join(part for part in (prelude, moves, transition, reward, world) if part)
    recalled = _unexplained(seen, program)
    if not recalled:
        return program
    table = "".join(f"    {key!r}: {value!r},\n" for key, value in recalled.items())
    return program + RECALLED.format(table=table, count=len(recalled))


def forgetful(program: str) -> str:
    """Return a program without its table of transitions that no rule explains."""
    return program.partition(TABLE_START)[0]


def _used(prelude: str, rules: str) -> str:
    """Return the prelude without unused functions."""
    tree = ast.parse(prelude)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    lines = prelude.splitlines()
    wanted: set[str] = set()
    pending: list[ast.AST] = [ast.parse(rules)]
    while pending:
        names = {node.id for node in ast.walk(pending.pop()) if isinstance(node, ast.Name)}
        for name in names & set(functions) - wanted:
            wanted.add(name)
            pending.append(functions[name])
    for name, node in reversed(functions.items()):
        if name not in wanted:
            del lines[node.lineno - 1 : (node.end_lineno or node.lineno) + 2]
    return "\n".join(lines).strip() + "\n"


def _unexplained(seen: Experience, program: str) -> dict[Any, Any]:
    """Return the transitions that a program predicts wrongly.

    Keys are action and checksum; values are changed rows, reward and end.
    """
    space: dict[str, Any] = {}
    exec(compile(program, "<program>", "exec"), space)  # noqa: S102  # ours
    world, recalled = space["Environment"](), {}
    encoded = seen.language.space["encoded"]
    for row in seen.rows:
        table = np.array([encoded(thing) for thing in row.before], np.int64)
        world.set_state({MISSION: row.mission, OBJECTS: table})
        observation, gained, done = world.step(row.action)
        after = np.array([encoded(thing) for thing in row.after], np.int64)
        same = np.array_equal(observation[OBJECTS], after)
        if same and abs(gained - row.reward) <= 1e-9 * (1 + abs(gained)) and done == row.done:
            continue
        slots = np.flatnonzero((table != after).any(1)).tolist()
        key = row.action, crc32(table.tobytes() + row.mission.encode())
        recalled[key] = {slot: tuple(after[slot].tolist()) for slot in slots}, row.reward, row.done
    return recalled
