"""Rules, invented by a language model, that make a mission possible.

A mission can be fulfilled, so a program without a plan for it lacks rules. As long as no mission
has been rewarded, the data do not show how. A language model then writes one function with the
possible effects that the program lacks. This invention must not contradict any row, and a search
must find a plan that gets a reward and ends the episode. The agent follows that plan, which
confirms or refutes the invention. Refuted inventions are part of the next prompt.
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
    add_invention,
    content_words,
    entry_point,
    merge_programs,
)
from cwm_learn.writing import MAX_PROGRAM_CHARACTERS, BudgetedModel, WrittenProgram

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox

MAX_NODES, MAX_DEPTH = 4000, 50
"""Maximum number of nodes of a search for a plan, and maximum length of a plan: some seconds for
small environments."""

SYSTEM = (
    "You explore an environment of objects. Some of its rules are known. You invent, briefly and "
    "in Python, rules that were not observed yet and that would make a mission possible."
)


@dataclass
class RuleInventor:
    """Asks a language model for rules that make a mission possible that was never rewarded."""

    model: BudgetedModel
    sandbox: Sandbox
    view: StateView
    seed: int = 0
    refuted: list[str] = field(default_factory=list)
    """Earlier inventions. The latest may be right, but then there is no further request."""
    _has_plan: dict[str, bool] = field(default_factory=dict, init=False, repr=False)
    _usages: list[Usage] = field(default_factory=list, init=False, repr=False)

    def invent(self, program: str, rows: Dataset, start: Any) -> WrittenProgram | None:
        """Return the program with an invention, or None if none is needed or none was found.

        An invention is needed if the observation has a mission, no recorded episode ended with a
        reward, and a search finds no plan for the mission in the program.
        """
        rewarded = rows.columns["terminations"] & (rows.columns["rewards"] > 0)
        # maximum number of inventions; each costs an attempt in the environment
        max_inventions = 20
        if rewarded.any() or not self.view.mission(start) or len(self.refuted) >= max_inventions:
            return None
        if self._finds_plan(program, rows, start):
            return None
        complaint = ""
        for _ in range(self.model.left):
            if self.model.seconds_left() <= 0:
                break
            messages = (
                Message(role="system", content=SYSTEM),
                Message(role="user", content=self._prompt(program, start, complaint)),
            )
            completion = self.model.ask(messages, self.seed, self)
            self._usages.append(completion.usage if completion else Usage())
            code = merge_programs(*blocks(completion.text if completion else ""))
            if not entry_point(code, INVENTED):
                complaint = f"The answer had no function `{INVENTED}`."
                continue
            self.refuted.append(code)
            invented = add_invention(program, code, self.view)
            wrong = self._wrong_rows(invented, rows)
            if wrong.any():
                complaint = self._contradiction(rows, int(np.flatnonzero(wrong)[0]))
            elif self._finds_plan(invented, rows, start):
                none, usage = np.zeros(len(rows), bool), total(self._usages)
                self._usages.clear()
                return WrittenProgram(invented, "optimism", program, none, none, usage=usage)
            else:
                complaint = "With that, still no sequence of actions reaches the mission."
        return None

    def _prompt(self, program: str, start: Any, complaint: str) -> str:
        state = "\n".join(self.view.lines(start))
        refuted = "\n\n".join(f"```python\n{code.strip()}\n```" for code in self.refuted[-3:])
        parts = [
            self.view.api,
            f"# The program so far\n\n```python\n{program[:MAX_PROGRAM_CHARACTERS]}\n```",
            f"# Unreachable mission\n\nThe mission is: {self.view.mission(start)}\n\nIn the "
            "program no sequence of actions from this state ends the episode with a reward above "
            f"0. In the environment it is possible.\n\n{state}",
            f"# Earlier inventions, which are wrong\n\n{refuted}" if refuted else "",
            complaint,
            f"# What to write\n\n`{INVENTED}(state, action, next_state, reward, done)` gets the "
            "prediction of the program for a step, and returns `(next_state, reward, done)`. It "
            "returns the same values, except if the environment may do something that was not "
            "observed yet. It may change `next_state`.\n"
            "First answer in words: which goals have to be reached one after the other, and which "
            "rules would make that possible? Then write the function in a fenced Python block.",
        ]
        return "\n\n".join(part for part in parts if part)

    def _contradiction(self, rows: Dataset, index: int) -> str:
        row = rows.row(index)
        changes = "\n".join(self.view.difference(row.observation, row.next_observation))
        action = self.view.action(row.action)
        return (
            "The last invention contradicts a recorded step: "
            f"{action} led to reward {row.reward:g}, "
            f"done {row.terminated}, and this change:\n{changes or 'none'}"
        )

    def _wrong_rows(self, program: str, rows: Dataset) -> np.ndarray:
        """Return a mask of rows that a program predicts wrongly."""
        try:
            with self._imagination(program, rows) as imagination:
                found = imagination.ask(
                    "missions:predict_rows",
                    rows.select("observations", "actions"),
                    space=rows.observation_space.to_json(),
                )
        except ProgramFailed:
            return np.ones(len(rows), bool)
        wrong: np.ndarray = found["errors"] != ""
        wrong |= found["terminations"] != rows.columns["terminations"]
        wrong |= ~np.isclose(found["rewards"], rows.columns["rewards"], atol=1e-6)
        for index in map(int, np.flatnonzero(~wrong & ~rows.columns["terminations"])):
            predicted = rows.observation_space.unpack("next_observations", found, index)
            wrong[index] = not self.view.same(predicted, rows.row(index).next_observation)
        return wrong

    def _finds_plan(self, program: str, rows: Dataset, start: Any) -> bool:
        """Return whether a search finds a plan for the mission in a program."""
        key = f"{self.view.key(start)}\n{program}"
        if key not in self._has_plan:
            try:
                with self._imagination(program, rows) as imagination:
                    found = imagination.ask(
                        "missions:find_plans",
                        rows.observation_space.pack("observations", [start]),
                        space=rows.observation_space.to_json(),
                        words=content_words(self.view.mission(start)),
                        actions=self.view.actions,
                        schema=self.view.schema.to_json() if self.view.schema else None,
                        budget=MAX_NODES,
                        depth=MAX_DEPTH,
                    )
                self._has_plan[key] = bool(found["reached"][0])
            except ProgramFailed:
                self._has_plan[key] = False
        return self._has_plan[key]

    def _imagination(self, program: str, rows: Dataset) -> SearchImagination:
        no_rows = rows[np.arange(0)]
        return SearchImagination(self.sandbox, program, no_rows, seed=self.seed, form="scalar")
