"""World models of two programs: one for transitions, and one for the reward of each mission.

Transitions do not depend on the mission. So a correct transition program is kept, and a new mission
needs only a reward program: first a guess from the rewards of the most similar missions, which is
fixed when data contradict it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from string import Template
from textwrap import indent

from cwm_cli.data.objects import MISSION, OBJECTS
from cwm_learn.missions import StateView, entry_point, program_head, words

TRANSITION, REWARD = "transition", "reward_func"
"""The entry points of transition programs and reward programs."""


def distance(left: str, right: str) -> float:
    """Return the edit distance of two missions in words, as a share of the longer mission."""
    a, b = words(left), words(right)
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1] / max(len(a), len(b), 1)


def nearest_missions(mission: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the most similar known missions, the most similar first."""
    return sorted(known, key=lambda other: (distance(mission, other), other))[:count]


_TAIL = '''

class Environment:
    """Predicts the next state, and the reward of the mission."""

    def set_state(self, observation):
        self.observation, self.state = observation, $decode

    def step(self, action):
        name = ACTIONS[action - $first] if ACTIONS else action
        before, changed = $copies, $copies
        answer = dynamics(changed, name)
        after = changed if answer is None else answer
        observation = $encode
        pays = REWARDS.get($mission)
        reward, done = pays(before, name, $after) if pays else (0.0, False)
        self.observation, self.state = observation, after
        return observation, float(reward), bool(done)
'''
_JUDGE_TAIL = '''

class Environment:
    """Returns the reward of a recorded step from the states before and after it."""

    def set_state(self, pair):
        self.observation, self.pair = pair[0], pair

    def step(self, action):
        name = ACTIONS[action - $first] if ACTIONS else action
        before, after = ($decode for observation in self.pair)
        reward, done = REWARDS[$mission](before, name, after)
        return self.pair, float(reward), bool(done)
'''


@dataclass(frozen=True)
class WorldProgram:
    """A transition program, and the reward program of each mission."""

    transition: str = ""
    rewards: Mapping[str, str] = field(default_factory=dict)

    def with_reward(self, mission: str, code: str) -> WorldProgram:
        """Return a copy with another reward program for a mission."""
        return WorldProgram(self.transition, {**self.rewards, mission: code})

    def is_complete(self, mission: str) -> bool:
        """Return whether both programs for a mission have their entry points."""
        reward = entry_point(self.rewards.get(mission, ""), REWARD)
        return bool(reward and entry_point(self.transition, TRANSITION))

    def source(self, view: StateView, note: str = "") -> str:
        """Return the program of the class `Environment` for planning."""
        return self._source(view, _TAIL, note)

    def reward_source(self, view: StateView) -> str:
        """Return the program of an `Environment` that computes rewards of recorded steps."""
        return self._source(view, _JUDGE_TAIL, "")

    def _source(self, view: StateView, tail: str, note: str) -> str:
        parts = [program_head(view), _isolate("dynamics", self.transition, TRANSITION,
                                       "predicts the next state")]  # fmt: skip
        for number, (mission, code) in enumerate(self.rewards.items()):
            purpose = f"the reward of the mission: {mission}"
            parts.append(_isolate(f"pays_{number}", code, REWARD, purpose))
        pairs = ", ".join(f"{mission!r}: pays_{n}" for n, mission in enumerate(self.rewards))
        parts.append(f"REWARDS = {{{pairs}}}\n")
        objects, slots = f"observation[{OBJECTS!r}]", f"len(self.observation[{OBJECTS!r}])"
        encoded = f"{{**self.observation, {OBJECTS!r}: encode(after, {slots})}}"
        tail = Template(tail).substitute(
            first=view.first,
            decode=f"decode({objects})" if view.schema else "observation",
            copies="clone(self.state)" if view.schema else "self.state",
            after="clone(after)" if view.schema else "after",
            encode=encoded if view.schema else "after",
            mission=f"self.observation[{MISSION!r}]" if view.has_mission else "''",
        )
        return (f'"""{note}"""\n\n' if note else "") + "\n\n".join(parts) + tail


@lru_cache(1024)
def _isolate(name: str, code: str, entry: str, purpose: str) -> str:
    """Put code into a function, so that programs do not share names."""
    function = entry_point(code, entry)
    if not function:
        return f"def {name}(*_):  # {_line(purpose)}\n    raise NameError('there is no {entry}')\n"
    # Indentation would change strings of several lines.
    is_plain = all(line.count(q) % 2 == 0 for line in code.splitlines() for q in ('"""', "'''"))
    plain = code if is_plain else ast.unparse(ast.parse(code))
    body = indent(plain.strip(), "    ")
    head = f"def _{name}():  # {_line(purpose)}"
    return f"{head}\n{body}\n    return {function}\n\n\n{name} = _{name}()\n"


def _line(text: str) -> str:
    return " ".join(text.split())
