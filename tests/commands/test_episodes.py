"""Parallel episodes: the result depends only on the seed and the number."""

import signal
import threading
from contextlib import closing
from functools import partial
from multiprocessing import active_children, resource_tracker, util
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

from cwm_cli.commands.episodes import Episode, deal, in_processes, in_threads, play
from cwm_cli.commands.plan import play_in_environment
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import LONGEST, Setting, Task, seeds_of, step_limit
from cwm_cli.errors import CwmError
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import Plan, PlannedWith, Planning, PlanningSession
from cwm_cli.worlds.program import ROWS, random_rows

SETTING = Setting("CartPole-v1", {}, 3, 500)
FAILURE = Failure(kind="step_error", message="division by zero")


class Walk(gym.Env):
    """A noisy walk to the left or right from a random start until |place| > 4."""

    observation_space = gym.spaces.Box(-100, 100, (1,))
    action_space = gym.spaces.Discrete(3)
    opened = 0

    def __init__(self, reward=float):
        self.reward = reward
        Walk.opened += 1

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal()
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place += action - 1 + self.np_random.normal() / 10
        over = abs(self.place) > 4
        return np.array([self.place], np.float32), self.reward(self.place), over, False, {}

    def close(self):
        Walk.opened -= 1


class Planned(PlanningSession):
    """A session whose plans have `count` actions, drawn by episode and decision."""

    def __init__(self, count=1, failing=lambda moment: False):
        self.count, self.failing = count, failing
        self.moments, self.steps, self.report = [], 0, None

    def state(self, env, history):
        return float(history.observations[-1][0])

    def plan(self, moments):
        self.moments.append(moments)
        self.steps += 10 * len(moments) + 1
        self.report = PlannedWith("planned", ("scalar",), "")
        return [self.one(moment) for moment in moments]

    def one(self, moment):
        if self.failing(moment):
            return Plan([], FAILURE)
        rng = np.random.default_rng([moment.episode, moment.decision])
        count = min(self.count, moment.horizon)
        return Plan([int(a) for a in rng.choice(moment.valid or range(3), count)], None)


def task(limit=30, valid=None, **options) -> Task:
    return Task(lambda: Walk(**options), seed=5, limit=limit, valid=valid)


def episodes(rounds) -> list[Episode]:
    """Return the finished episodes in order, without the planning cost."""
    with closing(rounds):
        found = [played.episode for some in rounds for played in some.finished]
    bare = {"seconds": 0.0, "model_steps": 0}
    return sorted((e.model_copy(update=bare) for e in found), key=lambda e: e.number)


@pytest.mark.parametrize("failing", [lambda m: False, lambda m: m.decision % 3 == 1])
def test_episode_does_not_depend_on_parallel_episodes(failing) -> None:
    def play_episodes(numbers, abreast):
        return episodes(play(task(), numbers, Planned(3, failing), abreast=abreast))

    together = play_episodes(range(7), 7)
    assert together == play_episodes(range(7), 1) == play_episodes([6, 2, 4, 1, 0, 5, 3], 3)
    assert play_episodes([4], 8) == [together[4]]
    assert len({episode.returned for episode in together}) == 7


def test_pending_decisions_are_planned_in_one_call() -> None:
    session = Planned(4)
    rounds = list(play(task(), range(10), session, abreast=4))
    sizes = [len(moments) for moments in session.moments]
    assert sizes[:2] == [4, 4]
    assert max(sizes) == 4
    assert [some.cost.decisions for some in rounds if some.cost.decisions] == sizes
    for moments in session.moments:
        assert len({moment.episode for moment in moments}) == len(moments)
    assert sum(len(some.finished) for some in rounds) == 10
    assert rounds[0].report == ("planned", ("scalar",), "")


def test_horizon_shrinks_to_the_remaining_steps() -> None:
    class Still(Planned):
        def one(self, moment):
            return Plan([1] * min(moment.horizon, 9), None)

    session = Still()
    [episode] = episodes(play(task(limit=20), [0], session))
    assert (episode.length, episode.decisions) == (20, 3)
    assert [moments[0].horizon for moments in session.moments] == [20, 11, 2]
    assert [moments[0].decision for moments in session.moments] == [0, 1, 2]


def test_failed_plan_counts_and_gives_a_random_action() -> None:
    rechecked, planned = play(task(limit=1), [0], Planned(failing=lambda moment: True))
    [drawn] = play(task(limit=1), [0])
    assert planned.finished[0].actions == drawn.finished[0].actions
    assert rechecked.cost.failures == 1
    assert [each.rechecking for each in rechecked.underway] == [True]
    never = [
        episodes(play(task(), range(3), Planned(failing=lambda m: True), abreast=abreast))
        for abreast in (1, 3)
    ]
    assert never[0] == never[1]
    assert all(e.failures == e.decisions == e.length and e.failure == FAILURE for e in never[0])
    random = episodes(play(task(), range(3)))
    assert [e.returned for e in random] == [e.returned for e in never[0]]
    assert all(e.decisions == e.failures == 0 for e in random)


def test_actions_are_drawn_and_planned_from_valid_actions() -> None:
    def valid(env):
        return None if env.place > 1 else np.array([1, 2]) if env.place > 0 else [2]

    session = Planned()
    for rounds in (play(task(valid=valid), range(8)), play(task(valid=valid), range(8), session)):
        for some in rounds:
            for episode, actions, _ in some.finished:
                env = Walk()
                env.reset(seed=seeds_of(5, episode.number)[0])
                for action in actions:
                    assert action in (valid(env) if valid(env) is not None else range(3))
                    env.step(action)
    allowed = {moment.valid for moments in session.moments for moment in moments}
    assert allowed == {None, (1, 2), (2,)}


def test_planning_cost_is_divided_exactly_among_episodes() -> None:
    session = Planned()
    rounds = list(play(task(), range(5), session, abreast=3))
    finished = [played.episode for some in rounds for played in some.finished]
    assert sum(episode.model_steps for episode in finished) == session.steps
    assert sum(episode.decisions for episode in finished) == sum(map(len, session.moments))
    total = sum(some.cost.seconds for some in rounds)
    assert sum(episode.seconds for episode in finished) == pytest.approx(total)


def test_environments_are_closed_at_the_end_and_after_a_stop() -> None:
    Walk.opened = 0
    rounds = play(task(), range(5), Planned(), abreast=3)
    next(rounds)
    assert Walk.opened == 3
    rounds.close()
    assert Walk.opened == 0
    list(play(task(), range(5), abreast=2))
    assert Walk.opened == 0


@pytest.mark.parametrize("reward", [lambda _: float("nan"), lambda _: np.array([1.0, 2.0])])
def test_invalid_reward_is_refused(reward) -> None:
    with pytest.raises(CwmError, match="returned the reward"):
        list(play(task(reward=reward), [0]))


def test_array_of_one_element_is_a_valid_reward() -> None:
    plain = episodes(play(task(), range(2)))
    assert episodes(play(task(reward=lambda place: np.array([place])), range(2))) == plain


def test_step_limit_is_the_lowest_of_all_limits() -> None:
    env = gym.make("Pendulum-v1")
    assert [step_limit(env, steps) for steps in (None, 50, 900)] == [200, 50, 200]
    assert step_limit(env.unwrapped.__class__()) == LONGEST


def test_random_rows_fit_the_spaces_and_use_valid_actions() -> None:
    spaces = (space_of(Walk.observation_space), space_of(Walk.action_space, "actions"))
    rows = random_rows(task(valid=lambda env: [0, 2]), spaces)
    assert {name: column.shape for name, column in rows.items()} == {
        "observations": (ROWS, 1),
        "actions": (ROWS,),
    }
    assert set(rows["actions"].tolist()) == {0, 2}
    assert abs(rows["observations"]).max() > 2


def test_deal_gives_each_worker_at_least_one_episode() -> None:
    assert deal(range(5), 2) == [range(0, 5, 2), range(1, 5, 2)]
    assert deal([3], 4) == [[3]]
    assert deal([], 4) == []


def test_threads_give_the_same_episodes() -> None:
    streams = [play(task(), share, Planned(2), abreast=2) for share in deal(range(7), 3)]
    progress = list(in_threads(streams, lambda: None))
    found = [played.episode for _, some in progress for played in some.finished]
    assert {worker for worker, _ in progress} == {0, 1, 2}
    assert [e.returned for e in sorted(found, key=lambda e: e.number)] == [
        e.returned for e in episodes(play(task(), range(7), Planned(2)))
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_error_in_one_thread_ends_all_threads(workers) -> None:
    def breaking(share):
        yield from (some for some in play(task(), share))
        raise CwmError("out of luck")

    cancelled, Walk.opened = [], 0
    streams = [breaking([number]) for number in range(workers)]
    with pytest.raises(CwmError, match="out of luck"):
        list(in_threads(streams, lambda: cancelled.append(True)))
    assert cancelled == [True] * (workers > 1)
    assert Walk.opened == 0


PLANNERS = [Planning("mcts", {"simulations": 6, "rollout": 8})]


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_oracle_episode_does_not_depend_on_parallel_episodes(name) -> None:
    setting = Setting(name, {}, 0, 12)
    together = episodes(play_in_environment(setting, PLANNERS, range(4)))
    for numbers in ([3, 0], [2]):
        alone = episodes(play_in_environment(setting, PLANNERS, numbers))
        assert alone == [together[number] for number in sorted(numbers)]


def makers(setting, planners, shares):
    return [partial(play_in_environment, setting, planners, share) for share in shares]


@pytest.mark.slow
def test_processes_give_the_same_episodes() -> None:
    setting = SETTING._replace(limit=8)
    progress = list(in_processes(makers(setting, PLANNERS, deal(range(5), 2))))
    assert {worker for worker, _ in progress} == {0, 1}
    found = sorted(
        (played.episode for _, some in progress for played in some.finished),
        key=lambda episode: episode.number,
    )
    alike = episodes(play_in_environment(setting, PLANNERS, range(5)))
    assert [e.returned for e in found] == [e.returned for e in alike]
    assert all(some.report.planner == "mcts" for _, some in progress)


@pytest.mark.slow
def test_error_of_a_worker_process_is_raised() -> None:
    setting = Setting("CartPole-v1", {"gravity": 0}, 0, 5)
    with pytest.raises(CwmError, match="unknown argument of CartPole-v1"):
        list(in_processes(makers(setting, PLANNERS, [[0], [1]])))


@pytest.mark.slow
def test_killed_worker_process_is_reported_and_the_others_end() -> None:
    planners = [Planning("mcts", {"simulations": 50})]
    progress = in_processes(makers(SETTING, planners, deal(range(4), 2)))
    next(progress)
    children = active_children()
    assert len(children) == 2
    children[0].kill()
    with pytest.raises(CwmError, match=r"ended unexpectedly \(SIGKILL\)") as caught:
        list(progress)
    assert len(str(caught.value).splitlines()) == 1
    assert not any(child.is_alive() for child in children)


@pytest.mark.slow
def test_worker_processes_end_when_the_generator_is_closed() -> None:
    progress = in_processes(makers(SETTING, [Planning("mcts", {})], deal(range(4), 2)))
    next(progress)
    children = active_children()
    progress.close()
    assert len(children) == 2
    assert not any(child.is_alive() for child in children)


def test_many_short_episodes_run_in_parallel() -> None:
    few, many = Planned(1), Planned(1)
    found = [
        episodes(play(task(limit=6), range(40), session, abreast=abreast))
        for session, abreast in ((few, 8), (many, None))
    ]
    assert found[0] == found[1]
    assert (max(map(len, few.moments)), max(map(len, many.moments)) > 30) == (8, True)


@pytest.mark.slow
def test_ctrl_c_during_worker_start_is_deferred(capfd, monkeypatch) -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait, daemon=True)
    other.start()
    start, started = util.spawnv_passfds, list[psutil.Process]()

    def interrupted_start(*arguments: Any) -> int:
        """Send the signal to another thread before the process receives its arguments."""
        process: int = start(*arguments)
        started.append(psutil.Process(process))
        signal.pthread_kill(other.ident or 0, signal.SIGINT)
        return process

    resource_tracker.ensure_running()  # it also starts by this function and does not end
    monkeypatch.setattr(util, "spawnv_passfds", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        list(in_processes(makers(SETTING, PLANNERS, [[0]])))
    over.set()
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert capfd.readouterr().err == ""
