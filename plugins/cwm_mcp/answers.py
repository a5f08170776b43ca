"""The results of the tools of `cwm mcp`. The descriptions of their fields are for agents."""

from __future__ import annotations

from math import isfinite
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from cwm_cli.search.contracts import ROOT, Node
from cwm_cli.search.simplification import measure


class ToolAnswer(BaseModel):
    """Base class of the results of tools."""

    model_config = ConfigDict(frozen=True)


class NodeSummary(ToolAnswer):
    """A submitted program and its score."""

    node: int = Field(description="Number of the node.")
    parent: int | None = Field(description="The node that it was derived from.")
    score: float = Field(description="Score in [0, 1] over all train rows, also hidden ones.")
    parts: dict[str, float] = Field(description="Share of right values of each part.")
    failure: str = Field(description='Kind of failure, "mismatch" for wrong predictions, or "".')
    solved: bool = Field(description="Whether all train rows are explained.")
    lines: int = Field(description="Lines of code.")
    bits: int = Field(description="Description length; less is simpler.")

    @classmethod
    def of(cls, node: Node) -> Self:
        """Summarise a node of the search."""
        verdict, size = node.verdict, measure(node.program)
        return cls(
            node=node.id,
            parent=None if node.parent == ROOT else node.parent,
            score=verdict.score,
            parts=verdict.parts,
            failure=verdict.failure.kind if verdict.failure else "",
            solved=verdict.solved,
            lines=size.lines,
            bits=size.bits,
        )


class RunDescription(ToolAnswer):
    """The environment, the task, and the state of the run."""

    environment: str
    environment_arguments: dict[str, Any]
    task: str = Field(description="Interface of programs, environment and recorded transitions.")
    contract: str = Field(description="Form of programs: plain, chance or memory.")
    metric: str
    observation: str = Field(description="Observation space.")
    action: str = Field(description="Action space.")
    tolerances: dict[str, float] = Field(description="Absolute tolerances that differ from 1e-5.")
    shown_rows: int = Field(description="Number of rows that the tools show.")
    hidden_rows: int = Field(description="Number of train rows that only scores use.")
    submissions_left: int
    planned_episodes_left: int
    nodes: list[NodeSummary] = Field(description="The last 20 nodes.")
    best: NodeSummary | None
    finished: bool = Field(description="Whether the run takes no more submissions.")


class StepOutcome(ToolAnswer):
    """The result of a step: recorded, or predicted by a program."""

    next_observation: Any
    reward: float | str
    terminated: bool
    valid_actions: list[int] | None = Field(
        default=None, description="Actions that are valid afterwards, if programs return them."
    )


class RecordedRow(ToolAnswer):
    """A recorded step."""

    row: int
    episode: int
    observation: Any
    action: Any
    recorded: StepOutcome
    predicted: StepOutcome | None = Field(
        default=None, description="The prediction of the named node, if it is wrong."
    )


class ComponentRange(ToolAnswer):
    """The values of one component of the observation."""

    component: int
    name: str
    low: float | None = Field(description="Lowest value; None for a text.")
    high: float | None
    values: int = Field(description="Number of distinct values.")
    changed: int = Field(description="Number of rows that change it.")
    largest_change: float | None


class EvidencePage(ToolAnswer):
    """One page of the rows that match a request."""

    total: int = Field(description="Number of rows that match.")
    rows: list[RecordedRow] = []
    components: list[ComponentRange] = []
    rewards: dict[str, int] = Field(default={}, description="Counts of the most frequent rewards.")
    note: str = Field(description="How to get more, or why there is nothing.")


class SubmissionResult(ToolAnswer):
    """The verdict on a submitted program."""

    node: NodeSummary
    is_best: bool
    diagnosis: str = Field(description="Where the program is wrong on shown rows.")
    contract: str = Field(description="Form of programs for the next submission.")
    submissions_left: int
    notes: list[str]


class CheckResult(ToolAnswer):
    """The verdict on a program over the shown rows only."""

    score: float = Field(description="Score in [0, 1] over the shown rows.")
    parts: dict[str, float]
    rows: int = Field(description="Number of shown rows.")
    diagnosis: str


class NodeComparison(ToolAnswer):
    """Two nodes on the shown rows."""

    first: NodeSummary
    second: NodeSummary
    both_right: int
    both_wrong: int
    only_first_right: int
    only_second_right: int
    first_right: list[RecordedRow] = Field(
        description="Rows that only the first node predicts, with predictions of the second."
    )
    second_right: list[RecordedRow] = Field(
        description="Rows that only the second node predicts, with predictions of the first."
    )


class FittedProgram(ToolAnswer):
    """A program with fitted constants. It is no node before it is submitted."""

    program: str = Field(description="The fitted program, or empty if nothing improved.")
    findings: str


class RolloutStep(ToolAnswer):
    """The first wrong step of a rollout."""

    step: int
    recorded: StepOutcome
    predicted: StepOutcome


class NodeRollout(ToolAnswer):
    """A rollout of a node from the start of a shown episode."""

    episode: int
    steps: int = Field(description="Number of steps that were compared.")
    first_wrong: RolloutStep | None
    failure: str = ""


class NodeRollouts(ToolAnswer):
    """Open-loop rollouts of a node, compared with recorded episodes."""

    errors: dict[str, float | None] = Field(
        description="Mean error by number of steps, in standard deviations of the component."
    )
    episodes: list[NodeRollout]


class PlannedEpisodes(ToolAnswer):
    """Episodes that were planned with a node and played in the true environment."""

    node: int
    returns: list[float]
    lengths: list[int]
    random_mean: float | None = Field(description="Mean return of random actions.")
    idle_mean: float | None = Field(description="Mean return of doing nothing.")
    steps: int = Field(description="Number of predictions that were compared in play.")
    wrong: dict[str, int] = Field(description="Wrong predictions in play, by part.")
    stopped: str = Field(description="Why planning stopped early, or empty.")
    planned_episodes_left: int


def json_value(value: Any) -> Any:
    """Return a value of a space as JSON: arrays as lists, numbers that are not finite as text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value
