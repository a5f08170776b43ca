"""Requests of the agent: a transition program, a reward program, or missing rules.

The prompts have the structure of Tang, Key and Ellis (2024), with our own texts. A
`ProgramQuestion` also has the content of its prompt as data, for backends that do not read text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cwm_cli.data.dataset import Transition
from cwm_cli.search.contracts import Message
from cwm_cli.search.reading import blocks, unfenced
from cwm_learn.missions import StateView, compiles
from cwm_worldcoder.evaluating import Prediction
from cwm_worldcoder.world_program import REWARD, TRANSITION

QuestionKind = Literal[
    "transition", "reward", "fix transition", "fix reward", "reach", "guess reward"
]

MAX_TOKENS, MAX_TOKENS_FIX = 5120, 6500
"""Maximum tokens of the examples in a prompt for a first program and for a fix."""

SYSTEM = (
    "You model an environment of objects in Python. You see actions and their effects, and write "
    "short, general functions that explain them: rules about classes of objects and their "
    "relative positions, never a list of the examples."
)


class ShownRow(NamedTuple):
    """A row in a prompt, and optionally the prediction of the program for it."""

    row: Transition
    prediction: Prediction | None = None


@dataclass(frozen=True)
class ProgramQuestion:
    """A request for a program.

    `right` are rows that the program predicts correctly, and `wrong` is one that it does not.
    `others` are the reward programs of similar missions. `start` is an observation without a plan.
    """

    kind: QuestionKind
    view: StateView
    mission: str = ""
    transition: str = ""
    reward: str = ""
    right: tuple[ShownRow, ...] = ()
    wrong: ShownRow | None = None
    start: object = None
    others: Mapping[str, str] | None = None

    def messages(self) -> tuple[Message, ...]:
        """Return the prompt, with as many examples as the token limit allows."""
        shown = list(self.right)
        limit = MAX_TOKENS_FIX if self.wrong else MAX_TOKENS
        characters_per_token = 4  # an approximation, so that no tokenizer has to be downloaded
        while len(shown) > (0 if self.wrong else 1):
            if len(self._examples(shown)) // characters_per_token <= limit:
                break
            shown.pop()
        if self.kind == "reach":
            text = self._reach()
        else:
            is_reward = "reward" in self.kind
            purpose, name = (_REWARD, REWARD) if is_reward else (_TRANSITION, TRANSITION)
            text = self._guess() if self.kind == "guess reward" else self._write_or_fix(shown)
            text += f"\n\n# What to write\n\n{purpose}\n{_ENDING.format(name)}"
        return (
            Message(role="system", content=SYSTEM),
            Message(role="user", content=f"{self.view.api}\n\n{text}"),
        )

    def _write_or_fix(self, shown: Sequence[ShownRow]) -> str:
        """Return the examples for a first program, or a program with its mistake."""
        is_reward = "reward" in self.kind
        mission = f"The mission is: {self.mission}\n\n" if is_reward else ""
        if self.wrong is None:
            return f"# Examples\n\n{mission}{self._examples(shown)}"
        program = _fenced(self.reward if is_reward else self.transition)
        right = f"# Correct predictions\n\n{self._examples(shown)}\n\n" if shown else ""
        return (
            f"# The program so far\n\n{mission}{program}\n\n{right}"
            f"# Wrong prediction\n\n{self._example(self.wrong)}\n\n"
            "First answer in words: How does the prediction differ from the recorded step? Why "
            "does the environment do that? Which part of the program is responsible? How can it "
            "be fixed, so that correct predictions stay correct?"
        )

    def _guess(self) -> str:
        others = "\n\n".join(
            f"The mission: {mission}\n{_fenced(code)}"
            for mission, code in (self.others or {}).items()
        )
        return (
            f"# Known missions\n\n{others}\n\n# New mission\n\nThe new mission is: {self.mission}"
        )

    def _reach(self) -> str:
        start = "\n".join(self.view.lines(self.start))
        return (
            f"# The programs so far\n\n{_fenced(self.transition)}\n\n{_fenced(self.reward)}\n\n"
            f"# Unreachable mission\n\nThe mission is: {self.mission}\n\nFrom this state\n\n"
            f"{start}\n\nno sequence of actions ends the episode with a reward above 0 in these "
            "programs. In the environment it is possible: the programs lack a rule that was not "
            "observed yet.\n\nFirst answer in words: Which goals have to be reached one after the "
            "other? Which goals can the agent not reach in these programs? Which rules of the "
            "environment would make that possible? Then change the programs, so that the "
            "mission can be reached, and all their predictions of recorded steps stay the same.\n\n"
            f"# What to write\n\n{_TRANSITION}\n{_REWARD}\nWrite both `{TRANSITION}` and "
            f"`{REWARD}`, complete, in fenced Python blocks."
        )

    def _examples(self, shown: Sequence[ShownRow]) -> str:
        numbered = (f"## Example {n}\n\n{self._example(each)}" for n, each in enumerate(shown, 1))
        return "\n\n".join(numbered)

    def _example(self, shown: ShownRow) -> str:
        """Write a row: action, state before, changes, and for reward programs the reward."""
        row, view = shown.row, self.view
        before = "\n".join(view.lines(row.observation))
        changes = _changes(view, row.observation, row.next_observation)
        parts = [f"Action: {view.action(row.action)}", f"State before:\n{before}", changes]
        is_reward = "reward" in self.kind
        if is_reward:
            parts.append(f"Reward: {row.reward:g}, done: {row.terminated}")
        if (found := shown.prediction) is not None and self.wrong is shown:
            if found.error:
                parts.append(f"The program failed: {found.error}")
            elif is_reward:
                parts.append(f"The program predicts: reward {found.reward:g}, done: {found.done}")
            else:
                changes = _changes(view, row.observation, found.observation)
                parts.append(f"The prediction of the program is different. {changes}")
        return "\n".join(parts)


_TRANSITION = (
    f"`{TRANSITION}(state, action)` returns the state after the action. It may change the given "
    "state."
)
_REWARD = (
    f"`{REWARD}(state, action, next_state)` returns `(reward, done)`: the reward of the step from "
    "`state` to `next_state` for this mission, and whether it ends the episode. It changes nothing."
)
_ENDING = (
    "Think step by step; then write all of `{}` in a fenced Python block, with the helpers that it "
    "needs. The classes and functions named above exist already."
)


def extract_programs(text: str) -> list[str]:
    """Return the fenced Python blocks of an answer; without fences, the first unfenced program."""
    fenced = [block for block in blocks(text) if block.strip()]
    found = [block for block in fenced if compiles(block)]
    return found or ([] if fenced else [bare for bare in unfenced(text) if compiles(bare)][:1])


def _changes(view: StateView, before: object, after: object) -> str:
    lines = view.difference(before, after)
    return "Then (- is removed, + is new):\n" + "\n".join(lines) if lines else "Nothing changed."


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"
