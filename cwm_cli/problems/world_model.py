"""The problem of writing a world model: prompts from a description, verdicts from transitions."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import AccuracyMetric, Evaluation, Metric, evaluate, log_error
from cwm_cli.problems.feedback import counterexample, evidence, needed, report
from cwm_cli.problems.templates import messages
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import GENERATE, Message, Move, Problem, Verdict
from cwm_cli.search.reading import extract_program
from cwm_cli.worlds import ProgramModel
from cwm_cli.worlds.contract import Contract

if TYPE_CHECKING:
    from cwm_cli.testing.conftest import Material

NO_OPTION = {"option": False}
"""Marks a field with a default that is no option of the user's."""

UNSEEN = (
    "Every transition that may be shown to you is predicted correctly, but {wrong} of {rows} "
    "transitions of other episodes, which are not shown, are not: the program fits the examples "
    "and not the environment. Replace what was fitted to single rows by the rule behind them."
)
PARTS = ("observation", "reward", "terminated", "valid_actions", "exact")
"""Parts of a score that a verdict keeps."""

INEXACT = (
    "Every transition is predicted within the tolerance. What the score lacks comes from its "
    "exact comparison with rewards that were stored as float32, and from limits of time that "
    "some imported files mark as ends."
)


@dataclass(frozen=True)
class WorldModelProblem(Problem):
    """Find a program that predicts the train rows of an environment.

    `dataset[dataset.fitted]` is the part that may be fitted to and shown in
    prompts; the other rows only tell whether a program is right in general.
    `tools` are modules that programs may import beside the usual ones.
    """

    description: str
    dataset: Dataset
    sandbox: Sandbox
    metric: Metric
    seed: int = field(default=0, metadata=NO_OPTION)
    feedback: Literal["full", "paper"] = "full"
    """What a prompt to improve says: a report on all that may be shown, or, as published, one
    counterexample: the first transition that is wrong."""
    evidence_tokens: int = 2000
    """About how many tokens of recorded transitions a prompt to generate may hold, 0 for none; as
    published there are none. A description of its own spares half of them and more."""
    prefill: bool = False
    """Begin the answer in a turn of the assistant, as published, and ask for no steps of thought;
    many services refuse that or begin anew."""
    tools: tuple[str, ...] = field(default=(), metadata=NO_OPTION)

    @classmethod
    def example(cls, material: "Material") -> Self:
        """Make a small one, for the tests of what plugs in."""
        train = material.dataset.train
        metric = AccuracyMetric.of(train)
        return cls("A cart with a pole.", train, material.sandbox, metric)

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Fill the template of the move's action."""
        return self._worded(move)

    def shorter(self, move: Move, room: int) -> tuple[Message, ...]:
        """Leave out examples first, then the end of the description."""
        return self._worded(move, room)

    def varied(self, move: Move, number: int) -> tuple[Message, ...]:
        """Show other transitions than before."""
        return self._worded(move, variant=number)

    def _worded(
        self, move: Move, room: int | None = None, *, variant: int = 0
    ) -> tuple[Message, ...]:
        """Ask in so many characters, if there is a limit."""
        interface = Contract().words(
            self.dataset.observation_space,
            self.dataset.action_space,
            tools=self.tools,
            names_actions=self.dataset.has_valid_actions,
        )
        description, recorded = self.description.strip(), ""
        if self.feedback != "paper":
            shown = self.dataset[self.dataset.fitted]
            interface += f"\n\n{self.metric.words(shown)}"
            if move.action == GENERATE:
                description, recorded = needed(description), self._evidence(shown, variant)
        return messages(
            "world_model",
            move,
            name="continue" if self.prefill and move.action == GENERATE else "",
            prefill=self.prefill,
            room=room,
            description=description,
            interface=interface,
            evidence=f"\n\n{recorded}" if recorded else "",
        )

    def _evidence(self, shown: Dataset, variant: int) -> str:
        """Say what the rows that may be shown show; once for all prompts that show them."""
        key = len(shown), variant
        if key not in self._told:
            self._told[key] = evidence(
                shown, self.metric, self.description, tokens=self.evidence_tokens, variant=variant
            )
        return self._told[key]

    @cached_property
    def _told(self) -> dict[tuple[int, int], str]:
        """The evidence of prompts, by how many rows may be shown, which only grow, and variant."""
        return {}

    def read(self, text: str, move: Move) -> str:
        """Return the program of a completion, which may go on with an answer that was begun."""
        begun = self.prefill and move.action == GENERATE
        return extract_program(text, prefix=move.prefix, begun=begun)

    def judge(self, program: str) -> Verdict:
        """Score the program on every train row."""
        return self._judge(program, audited=False)

    def confirm(self, program: str, verdict: Verdict) -> Verdict:
        """Score the program again, and have its answers audited."""
        return replace(self._judge(program, audited=True), confirmed=True)

    def _judge(self, program: str, *, audited: bool) -> Verdict:
        model = ProgramModel(program, self.sandbox)
        found = evaluate(model, self.dataset, self.metric, seed=self.seed, audited=audited)
        if found.failure is not None:
            return Verdict(score=0.0, failure=found.failure)
        hidden = ~self.dataset.fitted
        score = found.score.value
        parts = found.score.model_dump(include=set(PARTS))
        return Verdict(
            score=score,
            validation=self._score(found.predictions, hidden) if hidden.any() else score,
            parts={name: share for name, share in parts.items() if share is not None},
            failure=None if score == 1.0 else self._mismatch(found, hidden),
            floor=found.score.floor,
            error=log_error(found.predictions, self.dataset),
        )

    def _score(self, predictions: Columns, mask: np.ndarray) -> float:
        """Score predictions on some of the rows."""
        return self.metric.score(_rows(predictions, mask), self.dataset[mask]).value

    def _mismatch(self, found: Evaluation, hidden: np.ndarray) -> Failure:
        """Say what is predicted wrongly, showing nothing of the hidden rows."""
        wrong = found.rows < 1.0
        if (wrong & ~hidden).any():
            write = counterexample if self.feedback == "paper" else report
            shown = self.dataset[~hidden]
            message = write(shown, _rows(found.predictions, ~hidden), self.metric, self.description)
        elif wrong.any():
            message = UNSEEN.format(wrong=int(wrong.sum()), rows=int(hidden.sum()))
        else:
            message = INEXACT
        return Failure(kind="mismatch", message=message)


def _rows(columns: Columns, mask: np.ndarray) -> Columns:
    """Select rows of columns."""
    return {name: column[mask] for name, column in columns.items()}
