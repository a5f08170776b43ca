"""Play episodes in a world model, and return their transitions (`cwm.imagine`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from cwm_cli._version import __version__
from cwm_cli.commands.plan import DECISION, choose_planners, with_planners
from cwm_cli.commands.policies import RandomSession
from cwm_cli.commands.subjects import (
    ProgramSource,
    RunSource,
    Subject,
    example_rows,
    find_subject,
    protected,
)
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Columns
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import (
    EPISODE_SEED_STRIDE,
    Setting,
    Task,
    random_action,
    seeds_of,
    step_limit,
)
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.planning import Moment, Unsuited
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.sandbox import Limits
from cwm_cli.worlds.messages import PlanningJob, SteppingJob
from cwm_cli.worlds.model import ImaginedEpisodes, Planning, PlanningSession, Stuck, WorldModel
from cwm_cli.worlds.program import ProgramModel
from cwm_cli.worlds.simulated import ProgramSimulator

ImaginedPolicy = Literal["planner", "random", "agent"]
"""Choice of actions: plans in the model, random actions, or the agent of the run."""


def imagine(
    run: RunSource | None = None,
    *,
    program: ProgramSource | None = None,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    policy: ImaginedPolicy = "planner",
    planner: str = "auto",
    options: Sequence[str] | Mapping[str, Any] = (),
    episodes: int = 10,
    seed: int = 0,
    max_steps: int | None = None,
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    observer: Observer = SILENT,
) -> Dataset:
    """Play episodes in a world model.

    Each episode begins with the first observation of the environment for its seed, or with a
    recorded initial observation if there is no simulator. It continues from the predictions of the
    model; random results are drawn. An episode depends only on the seed and its number.

    Args:
        run: Run with the world model. It also names the environment.
        program: Program of `env`, instead of a run.
        env: Id of the environment of a program.
        env_args: Arguments of the environment.
        policy: Choice of actions.
        planner: Planner of the policy "planner", or "auto".
        options: Options of planners, model and sandbox, as for `-o`.
        episodes: Number of episodes.
        seed: Random seed.
        max_steps: Maximum length of an episode, by default the limit of the environment.
        tools: Modules that the program may import.
        allow_gap: Missing protections of the sandbox that are accepted.
        observer: Receives notes.

    Returns:
        The transitions. Observations outside of their space are clipped to its bounds. The
        metadata have the model, its scores, and the arguments.

    Raises:
        CwmError: The request is invalid, or the model fails at the start of every episode.
    """
    if policy not in get_args(ImaginedPolicy):
        raise UnknownNameError("policy", policy, get_args(ImaginedPolicy))
    if episodes < 1:
        raise CwmError("--episodes must be at least 1")
    subject = find_subject(
        run, program=program, env=env, env_args=env_args, options=options, observer=observer
    )
    spec = subject.spec
    recorded = None if spec.has_simulator(subject.env_args) else subject.transitions()
    with closing(spec.make(**subject.env_args)) as made:
        spaces = space_of(made.observation_space), space_of(made.action_space, "actions")
        limit = step_limit(made, max_steps)
        if recorded is None:
            like = example_rows(subject, made, spaces, spec.objects(made) if spec.objects else None)
        else:
            like, limit = recorded[np.arange(1)], max_steps or recorded.longest_episode
    suited = () if subject.model is None else subject.model.planners
    limits, planners = Limits.chosen({**subject.limits, **DECISION}), list[Planning]()
    choice = None
    if policy == "planner":
        choice = choose_planners(
            planner,
            subject.options,
            spaces,
            subject.limits,
            suited,
            two_players=spec.game is not None,
        )
        limits, planners = choice.limits, choice.planners
    with ExitStack() as stack:
        model: WorldModel | None = subject.model
        task = Setting(subject.env, subject.env_args, seed, limit).task(spec)
        if subject.text is not None:
            addresses = [each.address for each in planners if each.address]
            sandbox = stack.enter_context(
                protected(
                    limits,
                    tools=sorted({*subject.tools, *tools}),
                    accepted=allow_gap,
                    workers=5,  # to predict, imagine, plan, confirm and simulate
                    handlers=[PlanningJob.handler, SteppingJob.handler, *addresses],
                    observer=observer,
                )
            )
            plain = ProgramModel(subject.text, sandbox, subject.name)
            if recorded is not None:
                simulator = stack.enter_context(ProgramSimulator(plain, recorded))
                task = replace(task, make=simulator.make)
            model, planners = with_planners(plain, subject, choice, task, observer)
        assert model is not None
        session = stack.enter_context(_session(policy, subject, model, task, planners, observer))
        imagining = ImaginedRollouts(model, session, task, like)
        played = [imagining.episode(number) for number in range(episodes)]
    rows = [row for each in played for row in each.rows]
    if not rows:
        raise CwmError(f"{subject.name} fails at the start of every episode: {played[0].failure}")
    metadata = like.metadata | _describe(subject, policy, planner, seed, episodes)
    found = Dataset.of(rows, observation_space=spaces[0], action_space=spaces[1], metadata=metadata)
    failures = [each.failure for each in played if each.failure]
    if failures:
        words = f"{len(failures)} of {episodes} episodes ended early because the model failed"
        observer.note(f"{words}: {failures[0]}", "Warning")
    return _clip(found, observer)


def _session(
    policy: ImaginedPolicy,
    subject: Subject,
    model: WorldModel,
    task: Task,
    planners: Sequence[Planning],
    observer: Observer,
) -> PlanningSession:
    """Return the session that chooses the actions."""
    if policy == "random":
        return RandomSession(task, task.seed)
    if policy == "planner":
        return model.planned.open(planners, task)
    if subject.run is None:
        raise CwmError(f"{subject.name} has no agent: choose --policy planner or random")
    return subject.run.open_agent((), task, observer)


class ImaginedEpisode(NamedTuple):
    """The transitions of an episode, and why it ended early if the model failed."""

    rows: list[Transition]
    failure: str = ""


class ImaginedRollouts:
    """Plays episodes in a model.

    Args:
        model: The world model.
        session: Chooses the actions.
        task: The environment, whose initial observations start the episodes.
        like: Rows with the spaces of the environment.
    """

    def __init__(
        self, model: WorldModel, session: PlanningSession, task: Task, like: Dataset
    ) -> None:
        self._model, self._session, self._task, self._like = model, session, task, like

    def episode(self, number: int) -> ImaginedEpisode:
        """Play an episode until it ends, reaches the step limit, or the model fails."""
        task, seeds = self._task, seeds_of(self._task.seed, number)
        rows: list[Transition] = []
        planned: deque[Any] = deque()
        with ExitStack() as stack:
            env = stack.enter_context(closing(task.make()))
            observation, _ = env.reset(seed=seeds[0])
            env.action_space.seed(seeds[1])  # random actions replace missing plans
            history, valid = EpisodeHistory((deepcopy(observation),)), task.allowed(env)
            # seeds of models have 31 bits
            seed = (task.seed + EPISODE_SEED_STRIDE * number) % (1 << 31)
            inside = self._model.imagine([history], self._like, seed=seed)
            stack.callback(inside.close)
            decisions = 0
            while len(rows) < task.limit:
                if not planned:
                    state = self._session.state(env, history)
                    moment = Moment(number, decisions, state, task.limit - len(rows), valid)
                    planned.extend(self._plan(moment))
                    decisions += 1
                action = planned.popleft() if planned else random_action(env.action_space, valid)
                try:
                    row = self._step(inside, history.observations[-1], action, number)
                except CwmError as error:
                    return ImaginedEpisode(_truncate(rows), str(error))
                rows.append(row)
                if row.terminated:
                    return ImaginedEpisode(rows)
                history, valid = history.after(action, row.next_observation, row.reward), row.valid
        return ImaginedEpisode(_truncate(rows))

    def _plan(self, moment: Moment) -> list[Any]:
        """Return the next actions; none if no plan is possible."""
        try:
            [plan] = self._session.plan([moment])
        except Unsuited as reason:
            raise CwmError(
                f"planning is not possible here (the planner {reason}): choose another --planner"
            ) from reason
        except Stuck:
            return []
        return list(plan.actions)

    def _step(self, inside: ImaginedEpisodes, before: Any, action: Any, number: int) -> Transition:
        """Return the predicted transition of an action."""
        observations, actions = self._like.observation_space, self._like.action_space
        found = inside.step(actions.pack("actions", [action]))
        valid = None if found.valid is None else actions.masked(found.valid[0]) or None
        after = observations.unpack("observations", found.observations, 0)
        reward, over = float(found.rewards[0]), bool(found.terminated[0])
        return Transition(before, action, after, reward, over, episode=number, valid=valid)


def _truncate(rows: list[Transition]) -> list[Transition]:
    """Mark the last transition as truncated."""
    return [*rows[:-1], *(row._replace(truncated=True) for row in rows[-1:])]


def _describe(
    subject: Subject, policy: str, planner: str, seed: int, episodes: int
) -> dict[str, Any]:
    """Return metadata with the model, its scores if known, and the arguments."""
    run = subject.run
    imagined = {
        "by": subject.name,
        "kind": "program" if run is None else run.kind,
        "digest": subject.digest,
        "policy": planner if policy == "planner" else policy,
        "seed": seed,
        "episodes": episodes,
        "scores": {} if run is None else dict(run.model_scores()),
        "cwm": __version__,
    }
    return {"imagined": imagined}


def _clip(dataset: Dataset, observer: Observer) -> Dataset:
    """Clip observations to the bounds of their space, and report the number of changed rows."""
    columns, moved = dict(dataset.columns), np.zeros(len(dataset), np.bool_)
    for name in ("observations", "next_observations"):
        for leaf in dataset.observation_space.leaves(name):
            if leaf.space.kind == "text" or not leaf.space.low:
                continue
            before = columns[leaf.name]
            kind = np.float64 if leaf.space.is_float else np.int64
            low, high = (
                np.array(bound, kind).reshape(leaf.space.shape)
                for bound in (leaf.space.low, leaf.space.high)
            )
            # compare in 64 bits, and keep the type of the column
            after = np.minimum(np.maximum(before, low), high).astype(before.dtype)
            columns[leaf.name] = after
            moved |= (after != before).reshape(len(dataset), -1).any(axis=1)
    if moved.any():
        words = f"{moved.sum()} of {len(dataset)} rows had observations outside their space"
        observer.note(f"{words}: clipped to its bounds", "Note")
    bounded: Columns = columns
    return Dataset(bounded, dataset.observation_space, dataset.action_space, dataset.metadata)
