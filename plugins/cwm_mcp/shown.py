"""The rows that a client may see, with their numbers among the train rows.

These are the rows that prompts of a search may show: fitted rows and disclosed episodes. Programs
that the tools run here receive no other row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from cwm_cli.data.dataset import ALL_FITTED, VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.envs.documented import documented_names
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Evaluation, evaluate
from cwm_cli.problems.feedback.steps import RecordedSteps, by_frequency
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import Node
from cwm_cli.worlds import ProgramModel
from cwm_mcp.answers import ComponentRange, EvidencePage, RecordedRow, StepOutcome, json_value

EvidenceKind = Literal["steps", "ends", "rewards", "changes", "mistakes", "ranges"]
"""Kinds of rows that a client may request, and the ranges of components."""

MAX_CHARACTERS = 30_000
"""Maximum number of characters of the rows of a page, about 10,000 tokens."""

MOST_VALUES = 20
"""Rewards with more distinct values are sorted by value, not by frequency."""


@dataclass(frozen=True)
class ShownRows:
    """The rows of a problem that a client may see.

    `numbers` are the positions of the rows among the train rows, which name them for the client.
    """

    problem: WorldModelProblem
    rows: Dataset
    numbers: np.ndarray

    @classmethod
    def of(cls, problem: WorldModelProblem) -> ShownRows:
        """Select the rows of a problem that prompts may show at present."""
        rows = problem.dataset[problem.shown]
        rows = replace(rows, metadata=rows.metadata | ALL_FITTED)
        return cls(problem, rows, np.flatnonzero(problem.shown))

    @property
    def problem_of_rows(self) -> WorldModelProblem:
        """The same problem with these rows only, so that its verdicts depend on no hidden row."""
        return replace(self.problem, dataset=self.rows)

    @cached_property
    def steps(self) -> RecordedSteps:
        """The rows by component."""
        return RecordedSteps(self.rows)

    def evaluate(self, program: str) -> Evaluation:
        """Predict the rows with a program.

        Raises:
            CwmError: The program fails.
        """
        problem = self.problem
        model = ProgramModel(program, problem.sandbox)
        found = evaluate(model, self.rows, problem.metric, seed=problem.seed, audited=False)
        if found.failure is not None:
            reason = found.failure.message.splitlines()[0]
            raise CwmError(f"the program fails on the shown rows ({reason}): fix it first")
        return found

    def row(self, place: int, predictions: Columns | None = None) -> RecordedRow:
        """Return a row, with its prediction if there are any."""
        recorded = self.rows.row(place)
        return RecordedRow(
            row=int(self.numbers[place]),
            episode=recorded.episode,
            observation=json_value(recorded.observation),
            action=json_value(recorded.action),
            recorded=outcome(self.rows, self.rows.columns, place),
            predicted=outcome(self.rows, predictions, place) if predictions else None,
        )

    def page(
        self, places: Sequence[int], limit: int, predictions: Columns | None = None
    ) -> list[RecordedRow]:
        """Return the first rows of a list, at most `limit` and about `MAX_CHARACTERS`."""
        found, room = list[RecordedRow](), MAX_CHARACTERS
        for place in places[:limit]:
            row = self.row(place, predictions)
            room -= len(row.model_dump_json())
            if room < 0:
                if not found:
                    found.append(_cut(row))
                break
            found.append(row)
        return found

    def select(
        self,
        kind: EvidenceKind,
        *,
        node: Node | None = None,
        component: int | None = None,
        episode: int | None = None,
        numbers: Iterable[int] | None = None,
    ) -> tuple[list[int], Columns | None]:
        """Return the rows that match a request, and the predictions of a node for them.

        Args:
            kind: The kind of rows.
            node: The node, for mistakes.
            component: Component of the observation, for changes.
            episode: Only rows of this episode.
            numbers: Only rows with these numbers.

        Raises:
            CwmError: The request names a row, episode or component that is not shown.
        """
        chosen, predictions = self._of_kind(kind, node, component)
        if episode is not None:
            inside = self.rows.columns["episodes"] == episode
            if not inside.any():
                raise CwmError(f"no shown episode has the number {episode}: choose another one")
            chosen = chosen[inside[chosen]]
        if numbers is not None:
            wanted = np.array(sorted(set(numbers)), dtype=np.int64)
            unknown = wanted[~np.isin(wanted, self.numbers)]
            if len(unknown):
                raise CwmError(f"no shown row has the number {unknown[0]}: choose another one")
            chosen = chosen[np.isin(self.numbers[chosen], wanted)]
        return chosen.tolist(), predictions

    def _of_kind(
        self, kind: EvidenceKind, node: Node | None, component: int | None
    ) -> tuple[np.ndarray, Columns | None]:
        """Return the rows of a kind in their order, and predictions of a node."""
        if kind == "mistakes":
            if node is None:
                raise CwmError("mistakes need a node: add its number as `node`")
            found = self.evaluate(node.program)
            order = np.argsort(found.rows, kind="stable")
            return order[found.rows[order] < 1], found.predictions
        if kind == "ends":
            return np.flatnonzero(self.steps.ended), None
        if kind == "rewards":
            return self._by_reward(), None
        if kind == "changes":
            return self._by_change(component), None
        return np.arange(len(self.rows)), None

    def _by_reward(self) -> np.ndarray:
        """Return rows without the most frequent reward, the rarest first; many values by size."""
        values, which, counts = np.unique(
            self.steps.rewards, return_inverse=True, return_counts=True
        )
        which = which.reshape(-1)
        if len(values) > MOST_VALUES:
            return np.argsort(self.steps.rewards, kind="stable")
        order = np.argsort(counts[which], kind="stable")
        rare: np.ndarray = order[which[order] != np.argmax(counts)]
        return rare

    def _by_change(self, component: int | None) -> np.ndarray:
        """Return rows that change a component, the largest change first, or any component."""
        moved = np.abs(self.steps.after - self.steps.before)
        if component is None:
            return np.flatnonzero((moved > 0).any(axis=1))
        if not 0 <= component < len(self.steps.names):
            last = len(self.steps.names) - 1
            raise CwmError(f"there is no component {component}: choose 0 to {last}")
        size = moved[:, component]
        order = np.argsort(-size, kind="stable")
        changed: np.ndarray = order[size[order] > 0]
        return changed

    def ranges(self) -> EvidencePage:
        """Return the range of each component, and the counts of rewards."""
        names = documented_names(self.problem.description, self.rows.observation_space)
        max_components = 200  # maximum number of components with a range
        shown = range(min(len(self.steps.names), max_components))
        values, counts = by_frequency(self.steps.rewards)
        pairs = zip(values[:MOST_VALUES], counts, strict=False)
        more = len(self.steps.names) - len(shown)
        return EvidencePage(
            total=len(self.rows),
            components=[self._range(index, names) for index in shown],
            rewards={str(value): int(count) for value, count in pairs},
            note=f"{more} more components have no range here." if more else "",
        )

    def _range(self, index: int, names: Sequence[str]) -> ComponentRange:
        """Return the range of one component."""
        before, after = self.steps.before[:, index], self.steps.after[:, index]
        values, change = np.concatenate([before, after]), np.abs(after - before)
        is_text = bool(self.steps.is_text[index])
        name = " ".join(filter(None, (self.steps.names[index], names[index] if names else "")))
        return ComponentRange(
            component=index,
            name=name,
            low=None if is_text else float(values.min()),
            high=None if is_text else float(values.max()),
            values=len(np.unique(values)),
            changed=int((change > 0).sum()),
            largest_change=None if is_text else float(change.max()),
        )


def outcome(rows: Dataset, columns: Columns, place: int) -> StepOutcome:
    """Return the recorded or predicted result of a step."""
    space = rows.observation_space
    valid = columns.get(VALID)
    return StepOutcome(
        next_observation=json_value(space.unpack("next_observations", columns, place)),
        reward=json_value(columns["rewards"][place]),
        terminated=bool(columns["terminations"][place]),
        valid_actions=None if valid is None else list(rows.action_space.masked(valid[place])),
    )


def _cut(row: RecordedRow) -> RecordedRow:
    """Return a row whose observations are texts that fit into a page."""
    most = MAX_CHARACTERS // 4

    def cut(value: Any) -> str:
        return f"{str(value)[:most]}..."

    def cut_outcome(outcome: StepOutcome | None) -> StepOutcome | None:
        if outcome is None:
            return None
        return outcome.model_copy(update={"next_observation": cut(outcome.next_observation)})

    changes = {
        "observation": cut(row.observation),
        "recorded": cut_outcome(row.recorded),
        "predicted": cut_outcome(row.predicted),
    }
    return row.model_copy(update=changes)
