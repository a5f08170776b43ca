"""What the agent asks for, in words: a transition program, a reward program, or what is missing.

The structure is that of Tang, Key and Ellis (2024), the words are our own. The same question is
also plain data, for whoever answers without reading: `ProgramQuestion`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cwm_cli.data.dataset import Transition
from cwm_cli.search.contracts import Message
from cwm_cli.search.reading import blocks, unfenced
from cwm_learn.missions import REWARD, TRANSITION, StateView, compiles
from cwm_worldcoder.evaluating import Answered

Asked = Literal["transition", "reward", "mend transition", "mend reward", "reach", "guess reward"]

TOKENS_FIRST, TOKENS_MENDING = 5120, 6500
"""Tokens that examples may take in a prompt: those for a first program, those for mending one."""

CHARACTERS = 4
"""Characters of a token, as a rule of thumb: no tokenizer has to be fetched."""

SYSTEM = (
    "You model a world of objects in Python. You are shown what was done in it and what came of "
    "that, and write short, general functions that explain it: rules about classes of objects and "
    "how they lie to each other, never a list of the cases that you were shown."
)


class Shown(NamedTuple):
    """A row, and what a program made of it, where it was asked."""

    row: Transition
    said: Answered | None = None


@dataclass(frozen=True)
class ProgramQuestion:
    """What a program is asked for: what kind of one, in which world, and with what in view.

    `right` are examples that the code handles, `wrong` one that it does not. `others` are the
    rewards of near missions, `start` the observation from which the mission is not reached.
    """

    asked: Asked
    view: StateView
    mission: str = ""
    transition: str = ""
    reward: str = ""
    right: tuple[Shown, ...] = ()
    wrong: Shown | None = None
    start: object = None
    others: Mapping[str, str] | None = None

    def messages(self) -> tuple[Message, ...]:
        """Return the question as a language model reads it, with as many examples as fit."""
        kept = list(self.right)
        limit = TOKENS_MENDING if self.wrong else TOKENS_FIRST
        while len(kept) > (0 if self.wrong else 1) and _tokens(self._examples(kept)) > limit:
            kept.pop()
        write: dict[Asked, Callable[[Sequence[Shown]], str]] = {
            "transition": self._first_transition,
            "reward": self._first_reward,
            "mend transition": self._mend_transition,
            "mend reward": self._mend_reward,
            "reach": lambda _: self._reach(),
            "guess reward": lambda _: self._guess(),
        }
        words = write[self.asked](kept)
        return (
            Message(role="system", content=SYSTEM),
            Message(role="user", content=f"{self.view.api}\n\n{words}"),
        )

    def _first_transition(self, kept: Sequence[Shown]) -> str:
        return (
            f"# What happened\n\n{self._examples(kept)}\n\n# What to write\n\n{_TRANSITION}\n"
            f"{_ENDING.format(TRANSITION)}"
        )

    def _first_reward(self, kept: Sequence[Shown]) -> str:
        return (
            f"# What happened\n\nThe mission was: {self.mission}\n\n{self._examples(kept)}\n\n"
            f"# What to write\n\n{_REWARD}\n{_ENDING.format(REWARD)}"
        )

    def _mend_transition(self, kept: Sequence[Shown]) -> str:
        return (
            f"# The program so far\n\n{_fenced(self.transition)}\n\n{self._mending(kept)}\n\n"
            f"# What to write\n\n{_TRANSITION}\n{_ENDING.format(TRANSITION)}"
        )

    def _mend_reward(self, kept: Sequence[Shown]) -> str:
        return (
            f"# The program so far\n\nThe mission is: {self.mission}\n\n{_fenced(self.reward)}\n\n"
            f"{self._mending(kept)}\n\n# What to write\n\n{_REWARD}\n{_ENDING.format(REWARD)}"
        )

    def _mending(self, kept: Sequence[Shown]) -> str:
        """Show what is handled and what is not, and ask about it step by step."""
        shown = f"# What it gets right\n\n{self._examples(kept)}\n\n" if kept else ""
        wrong = self._example(self.wrong) if self.wrong else ""
        return (
            f"{shown}# What it gets wrong\n\n{wrong}\n\n"
            "Answer in words first: What does the program say otherwise than what happened? Why "
            "does the world do that? Which part of the program is responsible? How is it to be "
            "mended, so that what is right stays right?"
        )

    def _reach(self) -> str:
        start = "\n".join(self.view.lines(self.start))
        return (
            f"# The programs so far\n\n{_fenced(self.transition)}\n\n{_fenced(self.reward)}\n\n"
            f"# Unreachable mission\n\nThe mission is: {self.mission}\n\n"
            f"From this state\n\n{start}\n\n"
            "no sequence of actions leads to a reward above 0 with which the episode is done, as "
            "these programs have it. In the world it can be done: the programs lack something that "
            "nobody has seen yet.\n\nAnswer in words first: Which goals have to be reached one "
            "after the other? Which of them can the agent not reach in these programs? What "
            "would have to be so in the world for that? Then change the programs, so that the "
            "mission can be done, and all that they say of what was seen stays.\n\n"
            f"# What to write\n\n{_TRANSITION}\n{_REWARD}\nWrite both `{TRANSITION}` and "
            f"`{REWARD}`, whole, in fenced Python blocks."
        )

    def _guess(self) -> str:
        others = "\n\n".join(
            f"The mission: {mission}\n{_fenced(code)}"
            for mission, code in (self.others or {}).items()
        )
        return (
            f"# What is known\n\n{others}\n\n# What to write\n\nThe new mission is: {self.mission}"
            f"\n\n{_REWARD}\n{_ENDING.format(REWARD)}"
        )

    def _examples(self, some: Sequence[Shown]) -> str:
        numbered = (f"## Example {n}\n\n{self._example(e)}" for n, e in enumerate(some, 1))
        return "\n\n".join(numbered)

    def _example(self, example: Shown) -> str:
        """Show a row: the action, the state before, what changed, what was paid."""
        row, view = example.row, self.view
        before = "\n".join(view.lines(row.observation))
        changed = _changes(view, row.observation, row.next_observation)
        parts = [f"Action: {view.action(row.action)}", f"State before:\n{before}", changed]
        pays = "reward" in self.asked
        if pays:
            parts.append(f"Reward: {row.reward:g}, done: {row.terminated}")
        if (said := example.said) is not None and self.wrong is example:
            if said.error:
                parts.append(f"The program failed: {said.error}")
            elif pays:
                parts.append(f"The program says: reward {said.reward:g}, done: {said.done}")
            else:
                wrong = _changes(view, row.observation, said.observation)
                parts.append(f"The program says otherwise. {wrong}")
        return "\n".join(parts)


_TRANSITION = (
    f"`{TRANSITION}(state, action)` returns the state after the action. It may change the state "
    "that it is given."
)
_REWARD = (
    f"`{REWARD}(state, action, next_state)` returns `(reward, done)`: what the step from `state` "
    "to `next_state` pays for this mission, and whether that ends the episode. It changes nothing."
)
_ENDING = (
    "Think step by step; then write all of `{}` in a fenced Python block, with the helpers that it "
    "needs. The classes and functions named above are there already."
)


def programs_in(text: str) -> list[str]:
    """Return the blocks of an answer that are Python; where none is fenced, what is whole."""
    fenced = [block for block in blocks(text) if block.strip()]
    found = [block for block in fenced if compiles(block)]
    return found or ([] if fenced else [bare for bare in unfenced(text) if compiles(bare)][:1])


def _changes(view: StateView, before: object, after: object) -> str:
    lines = view.difference(before, after)
    return "Then (- is gone, + is new):\n" + "\n".join(lines) if lines else "Nothing changed."


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _tokens(text: str) -> int:
    return len(text) // CHARACTERS
