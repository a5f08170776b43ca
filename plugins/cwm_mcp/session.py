"""The work of the tools of `cwm mcp` on one run.

No method returns or runs a program on held-out rows before `finish`, and no method returns a value
of a hidden train row: messages about failures and mistakes come from shown rows only, since a
program could write other rows into them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from cwm_cli.commands.plan import plan
from cwm_cli.commands.plays import PlanResult
from cwm_cli.commands.subjects import PLANS
from cwm_cli.commands.synthesize import SearchJob
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.envs.spec import EnvironmentSpec, gym_space_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import FollowedEpisode, close, components, rollouts, trajectories
from cwm_cli.problems.feedback import failing_steps
from cwm_cli.registry import environment, find
from cwm_cli.runs.observer import Observer
from cwm_cli.runs.searches import SearchRun
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import GENERATE, ROOT, Move, Node, RefinementTask, Verdict
from cwm_cli.worlds import ProgramModel
from cwm_mcp.answers import (
    CheckResult,
    EvidencePage,
    FittedProgram,
    NodeComparison,
    NodeRollout,
    NodeRollouts,
    NodeSummary,
    PlannedEpisodes,
    RolloutStep,
    RunDescription,
    SubmissionResult,
    json_value,
)
from cwm_mcp.planned import PlannedLog
from cwm_mcp.shown import EvidenceKind, ShownRows, outcome
from cwm_mcp.submissions import Inbox, Submission, SubmittedMoves, SubmittedPrograms

MAX_PLAN_SECONDS = 600
"""Maximum time of one request to plan, in seconds."""

ONLY_HIDDEN = (
    "Every shown row is predicted right, but some rows that are not shown are not. Look for rules "
    "that few shown rows test."
)

HIDDEN_FAILURE = (
    "The program runs on all shown rows, but fails on a row that is not shown ({kind}{line}), so "
    "it scores 0. Check values that the shown rows do not contain."
)


def is_finished(run: SearchRun, budget: int = 0) -> bool:
    """Return whether a client finished a run, which then takes no more submissions."""
    return run.result() is not None


class AgentSession:
    """One run that a client works on, with the budgets that survive a restart.

    Its methods are not thread-safe: the server calls one at a time.

    Args:
        job: The search with its run.
        max_episodes: Maximum number of planned episodes of the run.
    """

    def __init__(self, job: SearchJob, max_episodes: int) -> None:
        self.job = job
        self.planned = PlannedLog(job.run.folder, max_episodes)
        self.inbox = Inbox()
        strategy, backend = job.search.strategy, job.search.backend
        assert isinstance(strategy, SubmittedMoves)
        assert isinstance(backend, SubmittedPrograms)
        strategy.inbox = backend.inbox = self.inbox
        job.search.simplify = job.choices.budget  # a client may shorten a solved program

    @cached_property
    def spec(self) -> EnvironmentSpec:
        """The environment of the run."""
        return environment(self.job.run.config.env)

    @property
    def submissions_left(self) -> int:
        """The number of submissions that the run still takes."""
        if is_finished(self.job.run) or self.job.problem.settled:
            return 0
        return max(0, self.job.choices.budget - self.job.search.completions)

    def describe(self) -> RunDescription:
        """Return the task and the state of the run."""
        job, problem, shown = self.job, self.job.problem, ShownRows.of(self.job.problem)
        best = job.search.best
        most_nodes = 20  # number of nodes that a description lists, the last ones
        return RunDescription(
            environment=job.run.config.env,
            environment_arguments=json_value(job.run.config.env_args),
            task="\n\n".join(each.content for each in problem.messages(Move(GENERATE))),
            contract=problem.contract,
            metric=problem.metric.words(shown.rows),
            observation=str(gym_space_of(problem.dataset.observation_space)),
            action=str(gym_space_of(problem.dataset.action_space)),
            tolerances=problem.dataset.tolerances,
            shown_rows=len(shown.rows),
            hidden_rows=len(problem.dataset) - len(shown.rows),
            submissions_left=self.submissions_left,
            planned_episodes_left=self.planned.left,
            nodes=[NodeSummary.of(node) for node in job.search.nodes[-most_nodes:]],
            best=NodeSummary.of(best) if best else None,
            finished=is_finished(job.run),
        )

    def evidence(
        self,
        kind: EvidenceKind,
        *,
        node: int | None = None,
        component: int | None = None,
        episode: int | None = None,
        rows: Sequence[int] | None = None,
        offset: int = 0,
        limit: int = 20,
    ) -> EvidencePage:
        """Return recorded rows of a kind, or the ranges of components."""
        shown = ShownRows.of(self.job.problem)
        if kind == "ranges":
            return shown.ranges()
        places, predictions = shown.select(
            kind,
            node=None if node is None else self._node(node),
            component=component,
            episode=episode,
            numbers=rows,
        )
        page = shown.page(places[offset:], limit, predictions)
        end = offset + len(page)
        note = f"Rows {offset} to {end - 1} of {len(places)}." if page else "No row matches."
        if end < len(places):
            note += f" For more rows, set `offset` to {end}."
        return EvidencePage(total=len(places), rows=page, note=note)

    def submit(self, submission: Submission) -> SubmissionResult:
        """Judge a program as the next completion of the search.

        If the best program is solved, the submission counts as its simplification.

        Raises:
            CwmError: The run takes no more submissions, or has no such parent.
        """
        self._check_open()
        if submission.parent != ROOT:
            self._node(submission.parent)
        self.inbox.submission = submission
        try:
            nodes = self.job.advance()
        finally:
            self.inbox.submission = None
        if not nodes or not nodes[-1].asked:
            self._check_open()
            raise CwmError("the search took no submission: call `describe`")
        node, best = nodes[-1], self.job.search.best
        notes, self.job.notes = self.job.notes, []
        contract = self.job.problem.contract
        if submission.contract not in ("", contract):
            notes.append(
                f"the contract stays {contract}: the search tried {submission.contract} before, "
                "or the user chose the contract"
            )
        return SubmissionResult(
            node=NodeSummary.of(node),
            is_best=best is not None and best.id == node.id,
            diagnosis=self._diagnose(node.program, node.verdict),
            contract=contract,
            submissions_left=self.submissions_left,
            notes=notes,
        )

    def check(self, program: str) -> CheckResult:
        """Judge a program on the shown rows only. It becomes no node."""
        shown = ShownRows.of(self.job.problem)
        text = self.job.problem.read(Submission(program).text, Move(GENERATE))
        verdict = shown.problem_of_rows.judge(text)
        return CheckResult(
            score=verdict.score,
            parts=verdict.parts,
            rows=len(shown.rows),
            diagnosis=_describe_failure(shown, verdict.failure),
        )

    def compare(self, first: int, second: int, limit: int = 5) -> NodeComparison:
        """Return the shown rows that exactly one of two nodes predicts."""
        shown, nodes = ShownRows.of(self.job.problem), (self._node(first), self._node(second))
        one, other = (shown.evaluate(node.program) for node in nodes)
        right, right_too = one.rows >= 1, other.rows >= 1
        only_one = np.flatnonzero(right & ~right_too).tolist()
        only_other = np.flatnonzero(right_too & ~right).tolist()
        return NodeComparison(
            first=NodeSummary.of(nodes[0]),
            second=NodeSummary.of(nodes[1]),
            both_right=int((right & right_too).sum()),
            both_wrong=int((~right & ~right_too).sum()),
            only_first_right=len(only_one),
            only_second_right=len(only_other),
            first_right=shown.page(only_one, limit, other.predictions),
            second_right=shown.page(only_other, limit, one.predictions),
        )

    def calibrate(self, number: int) -> FittedProgram:
        """Fit the constants of a node to the fitted rows."""
        node = self._running_node(number)
        refiner = find("refiner", "calibrate")()
        shown = ShownRows.of(self.job.problem)
        task = RefinementTask(shown.problem_of_rows, node, seed=self.job.choices.seed)
        found = refiner.refine(task)
        if found is None:
            return FittedProgram(
                program="",
                findings="Nothing to fit: the program is exact, has no constants, or uses chance.",
            )
        return FittedProgram(program=found.candidate, findings=found.findings)

    def rollouts(self, number: int, episodes: int, steps: int) -> NodeRollouts:
        """Return open-loop rollouts of a node from the starts of shown episodes."""
        node, problem = self._running_node(number), self.job.problem
        shown = ShownRows.of(problem)
        model = ProgramModel(node.program, problem.sandbox)
        seconds = problem.sandbox.limits.wall_seconds
        horizons = sorted({1, max(1, steps // 4), steps})
        errors = rollouts(model, shown.rows, episodes, horizons, seed=problem.seed, seconds=seconds)
        followed = trajectories(model, shown.rows, episodes, known=shown.rows, seconds=seconds)
        return NodeRollouts(
            errors={str(each.steps): each.error for each in errors},
            episodes=[_describe_rollout(each, steps) for each in followed],
        )

    def plan(self, number: int | None, episodes: int, max_steps: int | None) -> PlannedEpisodes:
        """Plan episodes with a node, and play them in the true environment.

        Raises:
            CwmError: The budget of episodes is spent, or there is no simulator.
        """
        run = self.job.run
        if number is None:
            number = best.id if (best := self.job.search.best) else 0
        node = self._running_node(number)
        if not self.spec.has_simulator(run.config.env_args):
            raise CwmError(f"{run.config.env} has no simulator to act in: use `rollouts`")
        self.planned.spend(node.id, episodes)
        result = self._play(node, episodes, max_steps)
        mismatches = result.side.mismatches
        return PlannedEpisodes(
            node=node.id,
            returns=result.returns,
            lengths=result.lengths,
            random_mean=result.random.mean,
            idle_mean=result.idle.mean if result.idle else None,
            steps=mismatches.steps if mismatches else 0,
            wrong=mismatches.kinds if mismatches else {},
            stopped=result.stopped,
            planned_episodes_left=self.planned.left,
        )

    def _play(self, node: Node, episodes: int, max_steps: int | None) -> PlanResult:
        """Play episodes with plans in the program of a node."""
        run = self.job.run
        try:
            return plan(
                program=f"{node.program}\n",
                env=run.config.env,
                env_args=run.config.env_args,
                dataset=ShownRows.of(self.job.problem).rows,
                options=["planning.stop=false"],
                episodes=episodes,
                seed=self.job.choices.seed,
                max_steps=max_steps,
                new=True,
                tools=run.config.tools,
                allow_gap=self.job.choices.accepted,
                folder=run.folder / PLANS,
                observer=_Deadline(),
            )
        except TimeoutError as error:
            raise CwmError(
                f"planning took more than {MAX_PLAN_SECONDS} s: plan fewer episodes, or set "
                "`max_steps`"
            ) from error

    def finish(self) -> dict[str, Any]:
        """Score the best program on held-out rows, and end the run.

        Raises:
            CwmError: No program was submitted.
        """
        if not self.job.search.nodes:
            raise CwmError("there is no program yet: submit one before you finish")
        known = self.job.run.result()
        return self.job.finish().as_json() if known is None else known

    def _check_open(self) -> None:
        """Raise an error if the run takes no more submissions."""
        job = self.job
        if is_finished(job.run):
            raise CwmError("the run is finished: start another run for further submissions")
        if job.problem.settled:
            raise CwmError(
                f"the score did not improve in {job.problem.patience} submissions: call `finish`"
            )
        if job.search.completions >= job.choices.budget:
            raise CwmError(
                f"all {job.choices.budget} submissions are spent: call `finish` (the user can "
                "restart the server with a higher --budget)"
            )

    def _node(self, number: int) -> Node:
        """Return a node; raise an error if there is none of that number."""
        nodes = self.job.search.nodes
        if not 0 <= number < len(nodes):
            known = f"choose 0 to {len(nodes) - 1}" if nodes else "submit a program first"
            raise CwmError(f"there is no node {number}: {known}")
        return nodes[number]

    def _running_node(self, number: int) -> Node:
        """Return a node whose program runs."""
        node = self._node(number)
        if node.verdict.is_bug:
            raise CwmError(f"the program of node {number} fails: choose a node that runs")
        return node

    def _diagnose(self, program: str, verdict: Verdict) -> str:
        """Return the diagnosis of a judged program, from shown rows only."""
        if verdict.failure is None:
            return ""
        shown = ShownRows.of(self.job.problem)
        own = shown.problem_of_rows
        # a confirmed verdict includes an audit
        seen = own.confirm(program, verdict) if verdict.confirmed else own.judge(program)
        parts = [_describe_failure(shown, seen.failure)]
        if verdict.failure.is_bug and not seen.is_bug:
            line = f", line {verdict.failure.line}" if verdict.failure.line else ""
            parts.insert(0, HIDDEN_FAILURE.format(kind=verdict.failure.kind, line=line))
        elif seen.failure is None:
            # only the report on a dead end contains no value that the program could choose
            parts = [ONLY_HIDDEN if verdict.dead_end is None else verdict.failure.message]
        return "\n\n".join(filter(None, parts))


def _describe_failure(shown: ShownRows, failure: Failure | None) -> str:
    """Return the message of a failure on shown rows, with the recorded step of an error."""
    if failure is None:
        return ""
    every = np.ones(len(shown.rows), dtype=np.bool_)
    steps = failing_steps(shown.rows, every, failure) if failure.is_bug else ""
    return "\n\n".join(filter(None, [failure.message, steps]))


def _describe_rollout(followed: FollowedEpisode, steps: int) -> NodeRollout:
    """Compare a rollout with its recorded episode, up to a number of steps."""
    rows, count = followed.rows, min(steps, followed.steps)
    first = None
    for step in range(count):
        row = rows[np.array([step])]
        columns = {
            f"next_{leaf.name}": followed.columns[leaf.name][step][:1]
            for leaf in rows.observation_space.leaves("observations")
        }
        columns["rewards"] = followed.columns["rewards"][step][:1]
        columns["terminations"] = followed.columns["ends"][step][:1]
        if _differs(columns, row):
            recorded, predicted = (outcome(row, each, 0) for each in (row.columns, columns))
            first = RolloutStep(step=step + 1, recorded=recorded, predicted=predicted)
            break
    return NodeRollout(
        episode=int(rows.columns["episodes"][0]),
        steps=count,
        first_wrong=first,
        failure=followed.failure,
    )


def _differs(predictions: Columns, row: Dataset) -> bool:
    """Return whether a predicted step differs from a recorded one; valid actions do not count."""
    ends = bool(row.columns["terminations"][0])
    right = ends or all(part.all() for part in components(predictions, row))
    right &= not row.has_rewards or bool(close(predictions["rewards"], row.columns["rewards"])[0])
    return not right or bool(predictions["terminations"][0]) != ends


class _Deadline(Observer):
    """Ends planning after `MAX_PLAN_SECONDS`."""

    def __init__(self) -> None:
        self.end = time.monotonic() + MAX_PLAN_SECONDS

    def advanced(self, event: object) -> None:
        """Raise an error after the deadline."""
        if time.monotonic() > self.end:
            raise TimeoutError
