"""Optimism with a language model: a mission can be reached, so a program without a way lacks rules.

Where a mission was never rewarded, data say nothing of what would be. A language model is asked
what the world may do beyond the program, as one function over its things; what it invents may
contradict no row, and has to hold a plan that is paid and done. Acting on it then confirms or
refutes it: what is refuted is told the next time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.search.contracts import Message, Usage, total
from cwm_cli.search.reading import blocks
from cwm_cli.worlds.remote import ProgramFailed
from cwm_learn.imagination import SearchImagination
from cwm_learn.missions import (
    INVENTED,
    StateView,
    entry,
    layered,
    merged,
    telling_words,
)
from cwm_learn.writing import SHOWN, AskedModel, WrittenProgram

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox

MOST_INVENTED = 20
"""Inventions after which a model is asked no more: each costs an attempt in the environment."""

NODES, DEPTH = 4000, 50
"""Situations of a search for a plan, and its longest plan: for small worlds, in some seconds."""

SYSTEM = (
    "You explore a world of objects whose rules are known in part. You invent, briefly and in "
    "Python, what the world may do beyond what was seen, so that a mission can be reached in it."
)


@dataclass
class Optimist:
    """Has a language model invent what would make a mission possible that was never rewarded."""

    model: AskedModel
    sandbox: Sandbox
    view: StateView
    seed: int = 0
    refuted: list[str] = field(default_factory=list)
    """What was invented before, and did not come true."""
    _reaching: dict[str, bool] = field(default_factory=dict, init=False, repr=False)
    _usages: list[Usage] = field(default_factory=list, init=False, repr=False)

    def invent(self, program: str, rows: Dataset, start: Any) -> WrittenProgram | None:
        """Return the program with what was invented, None where that is not wanted or not had.

        It is wanted where rows show no reward that ends an episode, there is a mission, and a
        search finds no way to it in the program.
        """
        paid = rows.columns["terminations"] & (rows.columns["rewards"] > 0)
        if paid.any() or not self.view.mission(start) or len(self.refuted) >= MOST_INVENTED:
            return None
        if self._reaches(program, rows, start):
            return None
        complaint = ""
        for _ in range(self.model.left):
            text, usage = self._answer(program, start, complaint)
            self._usages.append(usage)
            code = merged(*blocks(text))
            if not entry(code, INVENTED):
                complaint = f"The answer had no function `{INVENTED}`."
                continue
            self.refuted.append(code)  # until it comes true, and then nobody asks
            invented = layered(program, code, self.view)
            wrong = self._wrong(invented, rows)
            if wrong.any():
                complaint = self._contradicted(rows, int(np.flatnonzero(wrong)[0]))
            elif self._reaches(invented, rows, start):
                none, usage = np.zeros(len(rows), bool), total(self._usages)
                self._usages.clear()
                return WrittenProgram(invented, "optimism", program, none, none, usage=usage)
            else:
                complaint = "With that, still no sequence of actions reaches the mission."
        return None

    def _answer(self, program: str, start: Any, complaint: str) -> tuple[str, Usage]:
        """Ask once."""
        messages = (
            Message(role="system", content=SYSTEM),
            Message(role="user", content=self._words(program, start, complaint)),
        )
        completion = self.model.ask(messages, self.seed, self)
        return (completion.text, completion.usage) if completion else ("", Usage())

    def _words(self, program: str, start: Any, complaint: str) -> str:
        """Say what cannot be, what was tried, and what to write."""
        state = "\n".join(self.view.lines(start))
        tried = "\n\n".join(f"```python\n{code.strip()}\n```" for code in self.refuted[-3:])
        parts = [
            self.view.api,
            f"# The program so far\n\n```python\n{program[:SHOWN]}\n```",
            f"# What cannot be\n\nThe mission is: {self.view.mission(start)}\n\nFrom this state\n\n"
            f"{state}\n\nno sequence of actions leads to a reward above 0 with which the episode "
            "is done, as the program has it. In the world it can be done.",
            f"# What was invented before, and is not so\n\n{tried}" if tried else "",
            complaint,
            f"# What to write\n\n`{INVENTED}(state, action, next_state, reward, done)` gets what "
            "the program says of a step, and returns `(next_state, reward, done)`: the same, but "
            "where the world may do otherwise than was seen. It may change `next_state`.\n"
            "Answer in words first: which goals have to be reached one after the other, and what "
            "would have to be so for that? Then write the function in a fenced Python block.",
        ]
        return "\n\n".join(part for part in parts if part)

    def _contradicted(self, rows: Dataset, place: int) -> str:
        row = rows.row(place)
        changed = "\n".join(self.view.difference(row.observation, row.next_observation))
        action = self.view.action(row.action)
        return (
            f"The last invention contradicts what was seen: {action} led to reward {row.reward:g}, "
            f"done {row.terminated}, and this change:\n{changed or 'none'}"
        )

    def _wrong(self, program: str, rows: Dataset) -> np.ndarray:
        """Return a mask of rows of which a program says otherwise."""
        try:
            with self._imagination(program, rows) as imagination:
                said = imagination.ask(
                    "missions:predict_rows",
                    rows.select("observations", "actions"),
                    space=rows.observation_space.to_json(),
                )
        except ProgramFailed:
            return np.ones(len(rows), bool)
        wrong: np.ndarray = said["errors"] != ""
        wrong |= said["terminations"] != rows.columns["terminations"]
        wrong |= ~np.isclose(said["rewards"], rows.columns["rewards"], atol=1e-6)
        for place in np.flatnonzero(~wrong & ~rows.columns["terminations"]):
            seen = rows.observation_space.unpack("next_observations", said, int(place))
            wrong[place] = not self.view.same(seen, rows.row(int(place)).next_observation)
        return wrong

    def _reaches(self, program: str, rows: Dataset, start: Any) -> bool:
        """Whether a search finds a way to the mission in a program."""
        key = f"{self.view.key(start)}\n{program}"
        if key not in self._reaching:
            try:
                with self._imagination(program, rows) as imagination:
                    found = imagination.ask(
                        "missions:find_plans",
                        rows.observation_space.pack("observations", [start]),
                        space=rows.observation_space.to_json(),
                        words=telling_words(self.view.mission(start)),
                        actions=self.view.actions,
                        schema=self.view.schema.to_json() if self.view.schema else None,
                        budget=NODES,
                        depth=DEPTH,
                    )
                self._reaching[key] = bool(found["reached"][0])
            except ProgramFailed:
                self._reaching[key] = False
        return self._reaching[key]

    def _imagination(self, program: str, rows: Dataset) -> SearchImagination:
        return SearchImagination(
            self.sandbox, program, rows[np.arange(0)], seed=self.seed, form="scalar"
        )
