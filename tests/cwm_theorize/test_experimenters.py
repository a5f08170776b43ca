"""Experimenters collect the transitions that rules in words are scored on."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.commands.policies import Policy, RandomPolicy, Stage
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Transition
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.text_view import Change, TextView
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.search.contracts import Backend, ScoreRequest
from cwm_theorize.curiosity import CuriousPolicy
from cwm_theorize.experimenters import (
    Discoveries,
    EnumeratePolicy,
    Experimenter,
    LlmPolicy,
    OraclePolicy,
    ParallelEnvironments,
    PhaseContext,
    collect_phase,
)
from cwm_theorize.parts import TheoryChoices, choose_backend
from cwm_theorize.ppo import Ppo, PpoEpisode
from cwm_theorize.statistician import Statistician, text_transitions

needs_rl = pytest.mark.skipif(
    not find_spec("sb3_contrib"), reason="Stable-Baselines3 is not installed"
)

ROOMS = 7
LEFT, RIGHT, OPEN = range(3)


class Rooms(gym.Env[int, int]):
    """Rooms in a row; opening the chest in the last room ends the episode."""

    observation_space = gym.spaces.Discrete(ROOMS + 1)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.room = 0
        return self.room, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action == OPEN and self.room == ROOMS - 1:
            self.room = ROOMS
        elif action != OPEN:
            self.room = min(max(self.room + (1 if action == RIGHT else -1), 0), ROOMS - 1)
        return self.room, 0.0, self.room == ROOMS, False, {}


class RoomsView(TextView):
    """The text view of the rooms."""

    kinds = ("moved", "stayed", "opened")
    goals = ("the second room", "the third room", "the open chest")

    def guide(self) -> str:
        return "There are rooms in a row."

    def state(self, observation: int) -> str:
        return f"You are in room {observation}."

    def legal(self, observation: int) -> Sequence[int]:
        return (RIGHT, OPEN) if observation == 0 else (LEFT, RIGHT, OPEN)

    def action(self, observation: int, action: int) -> str:
        return ("You go left.", "You go right.", "You open the chest.")[action]

    def facts(self, observation: int, action: int) -> Mapping[str, str]:
        return {"room": str(observation), "action": str(action)}

    def change(self, row: Transition) -> Change:
        return self._found(row.observation, row.next_observation)

    def candidates(self, observation: int) -> Sequence[Change]:
        return [self._found(observation, after) for after in range(ROOMS + 1)]

    def _found(self, before: int, after: int) -> Change:
        kind = "opened" if after == ROOMS else "stayed" if before == after else "moved"
        return Change(f"You {kind} and are in {after}.", kind)

    def features(self, observation: int) -> np.ndarray:
        return np.eye(ROOMS + 1)[observation]

    def solution(self, observation: int, goal: str) -> Sequence[int]:
        target = {"the second room": 1, "the third room": 2}.get(goal, ROOMS - 1)
        way = [RIGHT] * (target - observation)
        return [*way, OPEN] if goal == self.goals[-1] else way


def rooms() -> EnvironmentSpec:
    return EnvironmentSpec(
        id="Rooms-v0",
        make=Rooms,
        describe=lambda env: "rooms",
        versions=dict,
        valid_actions=lambda env: RoomsView().legal(env.room),
        text=lambda env: RoomsView(),
    )


def stage(max_steps: int = 30) -> Stage:
    return Stage(rooms(), {}, 0, max_steps)


@dataclass
class FixedScores(Backend):
    """Gives every text a fixed likelihood, and records the texts."""

    can_score = True
    scores: Mapping[str, float] = field(default_factory=dict)
    read: list[ScoreRequest] = field(default_factory=list)

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        self.read += requests
        return [(self.scores.get(each.text, 0.0) / 2,) * 2 for each in requests]


def context(backend: Backend, **known: Any) -> PhaseContext:
    view = RoomsView()
    found = {"phase": 0, "progress": 0.0, "rules": "", "previous": "", "goal": view.goals[-1]}
    return PhaseContext(**(found | known), view=view, statistician=Statistician(view, backend))


def episodes(rows: Sequence[Transition]) -> list[list[Transition]]:
    found: dict[int, list[Transition]] = {}
    for row in rows:
        found.setdefault(row.episode, []).append(row)
    return list(found.values())


def test_consecutive_phases_equal_one_recording() -> None:
    policy = RandomPolicy()
    first = collect_phase(stage(), policy, 2, seed=4)
    second = collect_phase(stage(), policy, 3, seed=4, first=2, earlier=first)
    recorded = record(rooms(), policy="random", episodes=5, test_episodes=2, seed=4, max_steps=30)
    assert [row[:3] for row in first + second] == [row[:3] for row in recorded.train]
    held_out = collect_phase(stage(), policy, 2, seed=4, split=1)
    assert [row[:3] for row in held_out] == [row[:3] for row in recorded.test]
    assert {row.split for row in held_out} == {1}


def test_enumerate_takes_all_actions_in_turn() -> None:
    rows = collect_phase(stage(max_steps=1), EnumeratePolicy(), 4, seed=0)
    assert [row.action for row in rows] == [RIGHT, OPEN, RIGHT, OPEN]
    longer = collect_phase(stage(max_steps=4), EnumeratePolicy(), 1, seed=0)
    assert [row.action for row in longer] == [RIGHT, RIGHT, OPEN, LEFT]


def test_oracle_reaches_its_goal_and_ends_the_episode() -> None:
    rows = collect_phase(stage(), OraclePolicy(), 1, seed=0)
    assert [row.action for row in rows] == [RIGHT] * (ROOMS - 1) + [OPEN]
    assert rows[-1].terminated
    policy = OraclePolicy(plan="curriculum")
    lengths = []
    for progress in (0.0, 0.33, 0.34, 0.67, 1.0):
        policy.begin_phase(context(FixedScores(), progress=progress))
        rows = collect_phase(stage(), policy, 1, seed=0)
        lengths.append(len(rows))
        assert rows[-1].terminated != rows[-1].truncated
    assert lengths == [1, 1, 2, ROOMS, ROOMS]


def test_ideal_oracle_alternates_two_hardest_goals_and_random_actions() -> None:
    rows = collect_phase(stage(max_steps=9), OraclePolicy(plan="ideal"), 6, seed=1)
    lengths = [len(each) for each in episodes(rows)]
    assert lengths[0::3] == [2, 2]
    assert lengths[1::3] == [ROOMS, ROOMS]
    assert lengths[2::3] == [9, 9]


def test_record_accepts_oracle_policy() -> None:
    data = record(rooms(), policy="oracle", episodes=2, test_episodes=1, seed=0)
    assert data.metadata["policies"] == ["oracle: the open chest"] * 3
    assert len(data) == 3 * ROOMS


def test_experimenters_reject_unsuitable_environments_and_backends() -> None:
    for name in ("oracle", "enumerate"):
        with pytest.raises(
            CwmError, match=r"CartPole-v1 has no description in words: choose .*Door-v0"
        ):
            record(environment("CartPole-v1"), policy=name, episodes=1, test_episodes=0)
    with pytest.raises(CwmError, match="cwm theorize"):
        record(rooms(), policy="llm", episodes=1, test_episodes=0)
    with pytest.raises(CwmError, match="unknown kind of change 'flown'"):
        curious(table={"flown": 1.0})

    class Normalising(FixedScores):
        normalises = True

    class Mute(FixedScores):
        can_score = False

    for backend in (Normalising(), Mute()):
        with pytest.raises(CwmError, match=f"{type(backend).__name__} cannot score sentences"):
            LlmPolicy().begin_phase(context(backend))


def test_llm_draws_actions_by_probability_of_their_sentences() -> None:
    backend = FixedScores({"You go right.": np.log(4.0)})
    policy = LlmPolicy()
    policy.begin_phase(context(backend, rules="Doors are never locked."))
    rows = collect_phase(stage(max_steps=1), policy, 300, seed=0)
    share = np.mean([row.action == RIGHT for row in rows])
    assert share == pytest.approx(4 / 5, abs=0.06)
    words = backend.read[0].messages[-1].content
    for expected in ("Doors are never locked.", "the open chest", "You are in room 0."):
        assert expected in words


def test_parallel_environments_number_episodes_in_order_of_ends() -> None:
    @dataclass
    class Several(Experimenter):
        parallel_environments = ParallelEnvironments(3, 25)

        def begin(self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]) -> Any:
            return RandomPolicy().begin(stage, place, seed, earlier)

    rows = collect_phase(stage(max_steps=10), Several(), 6, seed=0, first=5)
    assert len(rows) == 75
    played = episodes(rows)
    assert [each[0].episode for each in played] == list(range(5, 5 + len(played)))
    assert all(each[-1].truncated or each[-1].terminated for each in played)
    assert [len(each) for each in played] == [10] * 6 + [5] * 3
    assert len({tuple(row.action for row in each) for each in played[:6]}) > 3


def test_discoveries_count_kinds_and_first_steps() -> None:
    found = Discoveries()
    found.add(["moved", "moved", "stayed"])
    found.add(["opened", "moved"])
    assert (found.steps, found.first) == (5, {"moved": 1, "stayed": 3, "opened": 4})
    assert Counter(found.counts) == {"moved": 3, "stayed": 1, "opened": 1}


class KindScores(Backend):
    """Expects kinds of change as the rules list them, such as `moved 0.9`; 0.01 for other kinds."""

    can_score = True

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        found = []
        for each in requests:
            question: Any = each.question
            known = dict(line.split() for line in question.rules.splitlines())
            kind = next(kind for kind in RoomsView.kinds if f"You {kind} " in each.text)
            found.append((float(np.log(float(known.get(kind, 0.01)))),))
        return found


def curious(**options: Any) -> CuriousPolicy:
    policy = CuriousPolicy(**options)
    policy.prepare(stage())
    return policy


@needs_rl
def test_curiosity_rewards_equal_their_formulas() -> None:
    rows = collect_phase(stage(), OraclePolicy(), 1, seed=0)[-2:]  # moved, opened
    words = text_transitions(RoomsView(), rows)
    now = "moved 0.5\nopened 0.1"
    known = context(KindScores(), rules=now, previous="moved 0.25\nopened 0.1")
    bad = -np.log([0.5, 0.1])
    gain = np.array([np.log(2), 0.0])
    for reward, expected in {"ll": bad, "alp": gain, "alpll": bad * gain}.items():
        assert curious(reward=reward).rewards(known, words) == pytest.approx(expected), reward
    unchanged = context(KindScores(), rules=now, previous=now)
    for reward in ("alp", "alpll"):
        assert not curious(reward=reward).rewards(unchanged, words).any(), reward


@needs_rl
def test_averages_and_counts_persist_across_phases_and_restore() -> None:
    rows = collect_phase(stage(), OraclePolicy(), 1, seed=0)[-2:]
    words = text_transitions(RoomsView(), rows)
    known = context(KindScores(), rules="moved 0.5", previous="moved 0.25")
    gain = np.log(2)
    policy, again = curious(reward="alpexp"), curious(reward="alpexp")
    assert policy.rewards(known, words) == pytest.approx([0.4 * gain, 0.0])
    again.restore(policy.state())
    for each in (policy, again):
        assert each.rewards(known, words) == pytest.approx([0.4 * gain + 0.6 * 0.4 * gain, 0.0])
    counting = curious(reward="custom", table={"moved": 6.0}, exponent=1)
    moved = [words[0]] * 3
    assert counting.rewards(known, [*moved, words[1]]) == pytest.approx([6.0, 3.0, 2.0, 1.0])
    resumed = curious(reward="custom", table={"moved": 6.0}, exponent=1)
    resumed.restore(counting.state())
    assert resumed.rewards(known, moved) == pytest.approx([6 / 4, 6 / 5, 6 / 6])


def phases(policy: CuriousPolicy, numbers: range) -> list[list[Transition]]:
    """Collect and learn, under rules that expect everything except the opened chest."""
    known = context(KindScores(), rules="moved 0.99\nstayed 0.99")._replace
    found = []
    for phase in numbers:
        policy.begin_phase(known(phase=phase))
        found.append(collect_phase(stage(), policy, 0, seed=3, first=1000 * phase))
        policy.learn(known(phase=phase), found[-1])
    return found


@needs_rl
@pytest.mark.slow
def test_curiosity_learns_to_cause_unexpected_changes() -> None:
    collected = phases(curious(environments=6, steps=60, entropy=0.02), range(7))
    assert {len(rows) for rows in collected} == {360}
    opened = [sum(row.terminated for row in rows) for rows in collected]
    assert opened[-1] > 5 * max(opened[0], 3)


@needs_rl
def test_curiosity_needs_rules_and_a_state_that_fits() -> None:
    with pytest.raises(CwmError, match="curiosity needs rules: use it in `cwm theorize`"):
        record(rooms(), policy="curiosity", episodes=1, test_episodes=0)
    policy = curious()
    earlier = {"parameters": np.zeros(9, np.float32), "counts": np.zeros(3)}
    with pytest.raises(CwmError, match=r"the saved policy cannot be used \(.*--new"):
        policy.restore(earlier)


def test_curiosity_without_its_extra_names_the_command(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    with pytest.raises(CwmError, match=r"curiosity needs Stable-Baselines3: pip install .*\[rl\]"):
        curious()


@needs_rl
def test_curiosity_continues_exactly_from_its_state() -> None:
    whole, before, after = (curious(environments=2, steps=30, epochs=2) for _ in range(3))
    expected = phases(whole, range(3))
    phases(before, range(2))
    after.restore(before.state())
    assert phases(after, range(2, 3)) == expected[2:]


def test_paper_preset_sets_published_curiosity_options() -> None:
    defaults = choose_backend("theorist", None, None), choose_backend("statistician", None, None)
    made = (
        TheoryChoices("metropolis", "curiosity", *defaults)
        .make({"preset": "paper"}, {})
        .experimenter
    )
    assert isinstance(made, CuriousPolicy)
    assert made.parallel_environments == ParallelEnvironments(15, 240)
    assert (made.learning_rate, made.entropy, made.clip, made.epochs) == (5e-4, 0.01, 0.2, 20)


def played_episode(ppo: Ppo, rng: np.random.Generator) -> PpoEpisode:
    """Play an episode of the rooms with the current policy; opening the chest gives reward 1."""
    view, room = RoomsView(), 0
    features, masks, actions, rewards = [view.features(0)], [], [], []
    while room < ROOMS and len(actions) < 25:
        mask = np.isin(range(3), view.legal(room))
        chances = ppo.probabilities(features[-1][None], mask[None])[0]
        assert chances[~mask].sum() == 0
        action = rng.choice(3, p=chances / chances.sum())
        opened = action == OPEN and room == ROOMS - 1
        step = {LEFT: -1, RIGHT: 1}.get(int(action), 0)
        room = ROOMS if opened else min(room + step, ROOMS - 1)
        features.append(view.features(room))
        masks.append(mask)
        actions.append(action)
        rewards.append(float(opened))
    return PpoEpisode(
        np.array(features), np.array(masks), np.array(actions), np.array(rewards), room == ROOMS
    )


@needs_rl
@pytest.mark.slow
def test_ppo_learns_path_to_rare_reward_with_action_masks() -> None:
    ppo, rng = Ppo(ROOMS + 1, 3, seed=1), np.random.default_rng(1)
    lengths = []
    for phase in range(8):
        played = [played_episode(ppo, rng) for _ in range(20)]
        lengths.append(np.mean([len(each.actions) for each in played]))
        ppo.learn(played, [1, phase])
    assert lengths[0] > 20
    assert lengths[-1] < 0.55 * lengths[0]


@needs_rl
@pytest.mark.parametrize("terminated", [True, False])
def test_advantages_continue_with_the_final_value_unless_terminated(terminated) -> None:
    import torch

    rng, ppo = np.random.default_rng(2), Ppo(3, 2, gamma=0.9)
    features, rewards = rng.normal(size=(5, 3)), rng.normal(size=4)
    masks, actions = np.ones((4, 2), np.bool_), np.array([0, 1, 1, 0])
    played = PpoEpisode(features, masks, actions, rewards, terminated)
    seen = torch.as_tensor(features, dtype=torch.float32)
    values = ppo._model.policy.predict_values(seen).detach().numpy()[:, 0]
    values[-1] *= not terminated
    errors = rewards + 0.9 * values[1:] - values[:-1]
    expected = [sum((0.9 * 0.95) ** k * e for k, e in enumerate(errors[n:])) for n in range(4)]
    ppo.learn([played, played], [0])
    found = ppo._model.rollout_buffer.advantages.reshape(2, 4)
    assert found == pytest.approx(np.array([expected] * 2), abs=1e-5)


@needs_rl
@pytest.mark.parametrize("rows", [1, 5, 21])  # 21 rows also leave one row with batches of 5
def test_single_last_row_of_a_minibatch_gives_finite_parameters(rows) -> None:
    ppo = Ppo(3, 2, batch=4, epochs=2)
    masks, actions = np.ones((rows, 2), np.bool_), np.arange(rows) % 2
    ppo.learn([PpoEpisode(np.ones((rows + 1, 3)), masks, actions, np.ones(rows), True)], [0])
    assert all(np.isfinite(array).all() for array in ppo.state().values())


@needs_rl
def test_ppo_state_is_restored_exactly() -> None:
    rng = np.random.default_rng(0)
    ppo = Ppo(ROOMS + 1, 3, epochs=2)
    played = [played_episode(ppo, rng) for _ in range(4)]
    ppo.learn(played, [0])
    other = Ppo(ROOMS + 1, 3, epochs=2)
    other.restore(ppo.state())
    for each in (ppo, other):
        each.learn(played, [1])
    for name, array in ppo.state().items():
        assert np.array_equal(array, other.state()[name]), name
    with pytest.raises(ValueError, match="other networks"):
        Ppo(ROOMS, 3).restore(ppo.state())


def test_any_policy_can_collect_a_phase() -> None:
    class Right(Policy):
        def begin(self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]) -> Any:
            return "right", lambda observation, before: RIGHT

    assert {row.action for row in collect_phase(stage(), Right(), 1, seed=0)} == {RIGHT}
