"""`cwm play`: games by keys and by planners, replays, films, keys and drawings."""

import json
import signal
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from cwm_cli.commands.policies import RandomSession
from cwm_cli.commands.subjects import find_subject
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.documented import documented_actions
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import Step
from cwm_cli.registry import environment
from cwm_cli.runs.observer import Observer
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.model import Predictions, WorldModel
from cwm_neural.training.train import train
from cwm_play.games import ReplayGame, WorldGame
from cwm_play.keys import keys_of, legend
from cwm_play.painting import CELL, board_cells, object_cells
from cwm_play.play import GameProgress, make_arena, play
from cwm_play.scenes import mismatched_parts
from worlds import CARTPOLE, ICE


class RecordingObserver(Observer):
    """Records every scene and every note."""

    def __init__(self) -> None:
        self.events: list[GameProgress] = []
        self.notes: list[str] = []

    def advanced(self, event: object) -> None:
        if isinstance(event, GameProgress):
            self.events.append(event)

    def note(self, words: str, kind: str = "Note") -> None:
        self.notes.append(words)

    @property
    def facts(self) -> list[str]:
        return [event.scene.facts[0] for event in self.events]


class StickyLake(WorldModel):
    """FrozenLake, except that no action leaves cell 4."""

    kind = "sticky"

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        found = TRUTH.predict(rows, seed=seed)
        found.columns["next_observations"][rows.columns["observations"] == 4] = 4
        return found


LAKE = {"is_slippery": False}
TRUTH = EnvironmentModel(environment("FrozenLake-v1"), LAKE)


def arena(env: str = "FrozenLake-v1", **args: Any):
    subject = find_subject(env=env, env_args=args, real_env=True)
    return make_arena(subject, 0, None, renders=False)


def press_keys(game: WorldGame | ReplayGame, *keys: str | None) -> list[Any]:
    scenes = []
    for key in keys:
        game.press(key)
        scenes.append(game.scene)
    return scenes


def sticky_game(**options: Any) -> WorldGame:
    return WorldGame(arena(**LAKE), StickyLake(), **options)


def test_game_continues_from_predictions_and_marks_the_first_mismatch() -> None:
    with closing(sticky_game()) as game:
        right, wrong, apart = press_keys(game, "down", "down", "down")
    assert not right.mark
    assert wrong.mark == "first mismatch at step 2: observation (observation 4 instead of 8)"
    assert [panel.is_marked for panel in wrong.panels] == [True, False]
    assert [row.values for row in apart.rows] == [(4, 12)]
    assert apart.mark == wrong.mark
    assert (
        apart.panels[1].note == "reward 0 · the episode is over"
    )  # a hole, in the environment only
    [episode] = game.outcome()["episodes"]
    assert episode["first_mismatch"] == 2
    assert episode["parts"] == ("observation",)


def test_enter_starts_another_episode_and_t_hides_the_environment() -> None:
    with closing(sticky_game()) as game:
        hidden, again = press_keys(game, "t", "down", "down", "enter")[0::3]
        assert [panel.title for panel in hidden.panels] == ["world model"]
        assert again.facts == ["episode 2 · step 0 · return 0 (true: 0)"]
        assert not again.mark
        assert [each["steps"] for each in game.outcome()["episodes"]] == [2]


def test_finished_episode_rejects_actions() -> None:
    game = WorldGame(arena(**LAKE))
    *_, fell, after = press_keys(game, "right", "down", "left")
    assert fell.is_over
    assert "the episode is over" in fell.facts[0]
    assert after.warning == "the episode is over: press enter to start another"
    game.close()


class FailingModel(WorldModel):
    kind = "failing"

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        from cwm_cli.sandbox.failures import Failure

        return Predictions({}, Failure(kind="step_error", message="KeyError: 7"))


def test_failure_of_the_model_is_reported_and_enter_restarts() -> None:
    game = WorldGame(arena(**LAKE), FailingModel())
    failed, later, again = press_keys(game, "down", "down", "enter")
    assert failed.warning == "failing failed: KeyError: 7"
    assert failed.is_over
    assert later.facts[0].startswith("episode 1 · step 0")
    assert again.facts[0].startswith("episode 2 · step 0")
    assert game.outcome()["episodes"] == []
    game.close()


def test_sigterm_ends_a_process_that_renders() -> None:
    script = (
        "import os, signal\n"
        "from cwm_cli.envs.films import QUIET\n"
        "os.environ.update(QUIET)\n"
        "import gymnasium\n"
        "env = gymnasium.make('CartPole-v1', render_mode='rgb_array')\n"
        "env.reset()\n"
        "env.render()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGTERM


def test_agent_stops_after_its_episodes_if_the_first_step_fails(tmp_path) -> None:
    (tmp_path / "broken.py").write_text(
        "class Environment:\n"
        "    def set_state(self, observation):\n        pass\n"
        "    def step(self, action):\n        raise KeyError(7)\n"
    )
    found = play(
        env="FrozenLake-v1",
        env_args=LAKE,
        program=tmp_path / "broken.py",
        mode="agent",
        planner="mcts",
        options={"simulations": 2, "rollout": 2},
        max_steps=2,
        episodes=2,
    ).as_json()
    assert [each["steps"] for each in found["episodes"]] == [0, 0]
    assert "KeyError" in found["episodes"][0]["failure"]


class RandomLake(WorldModel):
    """A random model: each step leads to the last cell with probability 0.99."""

    kind = "dicing"

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        found = TRUTH.predict(rows, seed=seed)
        columns = {name: np.stack([column, column], 1) for name, column in found.columns.items()}
        columns["next_observations"][:, 1] = 15
        return Predictions(columns, None, "outcomes", np.tile([0.01, 0.99], (len(rows), 1)))


def test_random_outcome_that_the_model_allows_is_no_mismatch() -> None:
    game = WorldGame(arena(**LAKE), RandomLake())
    [scene] = press_keys(game, "down")
    assert scene.mark == "random outcomes differ since step 1: the episodes diverge"
    assert game.outcome()["episodes"][0]["first_mismatch"] is None
    game.close()


def test_replay_steps_through_episodes_and_finds_mismatches() -> None:
    place = arena(**LAKE)
    paths = [[0, 1, 2, 3], [0, 4, 8, 9], [0, 4, 8, 12]]
    downwards = {4: 1, 1: 2}
    rows = Dataset.of(
        [
            Transition(a, downwards[abs(b - a)], b, 0.0, b == 12, episode=n, split=int(n == 2))
            for n, path in enumerate(paths)
            for a, b in pairwise(path)
        ],
        observation_space=place.rows.observation_space,
        action_space=place.rows.action_space,
    )
    game = ReplayGame(place, StickyLake(), rows, seed=0)
    first, back, last, wrong, no_more, test = press_keys(game, "right", "down", "up", "m", "m", "s")
    assert first.facts[0].startswith("train episode 1 of 2 · step 2 of 3 · Move right · 0 wrong")
    assert back.facts[0].split(" · ")[1] == "step 1 of 3"
    assert last.facts[0].split(" · ")[1] == "step 3 of 3"
    assert wrong.facts[0].startswith("train episode 2 of 2 · step 2 of 3")
    assert wrong.columns == ["before", "predicted", "true"]
    assert [(row.values, row.is_wrong) for row in wrong.rows] == [((4, 4, 8), True)]
    assert wrong.mark == "first mismatch: observation (observation 4 instead of 8)"
    assert no_more.warning == "no more wrong predictions"
    assert test.facts[0].startswith("test episode 1 of 1")
    found = game.outcome()["episodes"]
    assert [(each["split"], each["wrong"], each["first_mismatch"]) for each in found] == [
        ("train", 0, None),
        ("train", 1, 2),
        ("test", 1, 2),
    ]
    assert found[1]["parts"] == {"observation": 1}


def test_planner_plays_and_is_filmed_without_a_terminal(tmp_path) -> None:
    seen, file = RecordingObserver(), tmp_path / "lake.gif"
    options = {"simulations": 5, "rollout": 5}
    found = play(
        env="FrozenLake-v1",
        env_args=LAKE,
        mode="agent",
        planner="mcts",
        options=options,
        max_steps=4,
        episodes=2,
        record=file,
        observer=seen,
    ).as_json()
    assert [each["steps"] for each in found["episodes"]] == [
        int(fact.split("step ")[1].split(" ")[0])
        for fact, after in zip(seen.facts, [*seen.facts[1:], ""], strict=True)
        if fact[:9] != after[:9]
    ]
    with Image.open(file) as film:
        assert film.n_frames >= 3
        assert film.size[0] >= 240
    assert json.loads(json.dumps(found))["film"] == str(file)
    assert seen.notes[-2:] == [str(file), f"{file}.npz"]
    rows = Dataset.load(tmp_path / "lake.gif.npz")
    assert len(rows) == sum(each["steps"] for each in found["episodes"])
    assert rows.columns["rewards"].sum() == sum(each["returned"] for each in found["episodes"])
    ends = rows.columns["terminations"] | rows.columns["truncations"]
    assert ends.sum() == 2


@pytest.mark.slow
def test_planner_with_a_program_is_watched_in_the_environment() -> None:
    seen, options = RecordingObserver(), {"simulations": 5, "rollout": 5}
    known = {"planner": "mcts", "options": options, "max_steps": 3, "episodes": 2}
    found = play(program=ICE, env="FrozenLake-v1", mode="watch", observer=seen, **known)
    assert [each["truly"] for each in found.facts["episodes"]] == [None, None]
    assert {tuple(p.title for p in e.scene.panels) for e in seen.events} == {("environment",)}
    assert "mcts planner plays" in seen.events[-1].scene.legend


def test_comma_starts_and_stops_recording_and_point_pauses(tmp_path) -> None:
    file = tmp_path / "some.gif"
    keys = ["down", ",", "down", "right", "x", ",", "right", ".", None, ".", None, "q", "left"]
    seen = RecordingObserver()
    play(env="FrozenLake-v1", env_args=LAKE, keys=keys, record=file, observer=seen)
    steps = [fact.split(" · ")[1] for fact in seen.facts]
    assert steps[-4:] == ["step 4", "step 4", "step 4", "step 5"]  # the last action is repeated
    assert [event.is_paused for event in seen.events][-4:] == [True, True, False, False]
    assert [event.is_recording for event in seen.events][:7] == [True, True, *[False] * 4, True]


def test_recon_shows_three_panels_and_plays_random_actions_without_keys() -> None:
    place = arena(**LAKE)
    session = RandomSession(place.task, 0)
    game = WorldGame(place, session=session, reconstruct=lambda cell: 15 - cell, episodes=2)
    while not game.is_done:
        game.press(None)
        panels = game.scene.panels
    assert [panel.title for panel in panels] == ["original", "as observed", "as the model sees it"]
    assert len(game.outcome()["episodes"]) == 2
    seen, mirrored = (panel.appearance.picture for panel in panels[1:])
    cell = game.scene.rows[0].values[0]
    assert (mirrored == place.painter.paint(15 - cell).picture).all()
    assert (seen == place.painter.paint(cell).picture).all()
    game.close()


class FirstActionOnly(WorldModel):
    """A model that allows only the first action."""

    kind = "narrow"

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        columns = {f"next_{name}": c for name, c in rows.select("observations").items()}
        columns |= {"rewards": np.zeros(len(rows)), "terminations": np.zeros(len(rows), bool)}
        columns["valid_actions"] = np.zeros((len(rows), rows.action_space.count), bool)
        columns["valid_actions"][:, 0] = True
        return Predictions(columns)


def test_legend_lists_only_allowed_actions() -> None:
    game = WorldGame(arena("Household-v0"), FirstActionOnly())
    assert sum("go to" in key for key in game.scene.legend) > 3
    game.press(next(key for key in game.arena.keys.allowed(game._active.valid)))
    assert [key for key in game.scene.legend if "go to" in key] == ["g go to the fridge"]
    [scene] = press_keys(game, "m")
    assert scene.warning == "go to the microwave is not allowed here"
    game.close()


NAMES = {
    "MiniGrid-Empty-5x5-v0": {"left": 0, "right": 1, "up": 2, "p": 3, "d": 4, "space": 5, "n": 6},
    "Sokoban-v0": {"up": 0, "down": 1, "left": 2, "right": 3, "0": 0},
    "CartPole-v1": {"left": 0, "right": 1, "1": 1, "2": None},
    "Acrobot-v1": {"0": 0, "1": 1, "2": 2},
    "Taxi-v3": {"down": 0, "up": 1, "right": 2, "left": 3, "p": 4, "d": 5},
}


def test_keys_follow_from_action_names() -> None:
    for name, wanted in NAMES.items():
        keys = arena(name).keys
        assert {key: keys.press(key) for key in wanted} == wanted, name
        assert not {"q", ".", ",", "t"} & set(keys.named)
    assert legend(arena("CartPole-v1").keys.named)[0].endswith("Push cart to the left")


def test_documented_actions_need_a_complete_list_or_table() -> None:
    assert documented_actions("- 0: go\n- 1: stay\n\n- 0: red", 2) == ("go", "stay")
    assert documented_actions("- 0: go\n- 1: stay", 3) == ()
    table = "| Num | Action |\n|---|---|\n| 0 | push |\n| 1 | pull |"
    assert documented_actions(table, 2) == ("push", "pull")


def test_dial_keys_change_components_and_space_acts() -> None:
    space = space_of(spaces.Dict({"a": spaces.Box(-2, 2, (1,)), "b": spaces.MultiDiscrete([3, 5])}))
    keys = keys_of(space)
    assert [keys.press(key) for key in ("right", "right", "down", "d", "0", "left", "d")] == [
        None
    ] * 7
    action = keys.press("space")
    assert action["a"].tolist() == [-0.5]
    assert action["b"].tolist() == [1, 3]
    assert keys.action_name(action) == "-0.5, 1, 3"
    for _ in range(9):
        keys.press("left")
    assert keys.press("space")["a"].tolist() == [-2.0]
    with pytest.raises(CwmError, match="text actions have no keys"):
        keys_of(Space("text", max_length=9))


def test_boards_and_object_tables_are_drawn_as_coloured_cells() -> None:
    board = board_cells(np.array([[0, 1], [2, 0]]))
    assert board.shape == (2 * CELL, 2 * CELL, 3)
    corners = board[::CELL, ::CELL].reshape(4, 3).tolist()
    assert corners[0] == corners[3]
    assert len({tuple(each) for each in corners}) == 3
    spec = environment("MiniGrid-DoorKey-5x5-v0")
    with closing(spec.make()) as env:
        observation, _ = env.reset(seed=0)
        picture = object_cells(spec.objects(env), observation["objects"])
    assert picture.shape == (5 * CELL, 5 * CELL, 3)
    assert board_cells(np.zeros(4, int)) is None


class UnrestorableEnv(gym.Env[Any, Any]):
    """An environment that renders itself but cannot be set to a state."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, **_: Any) -> Any:
        return 0, {}

    def step(self, action: int) -> Any:
        return action, 0.0, False, False, {}

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)


def test_environment_that_cannot_be_restored_renders_itself(monkeypatch) -> None:
    gym.register("UnrestorableEnv-v0", entry_point=UnrestorableEnv)
    monkeypatch.setattr("cwm_gymnasium.restoring.restore", lambda env, observation: False)
    seen = RecordingObserver()
    play(env="UnrestorableEnv-v0", keys=["1"], observer=seen)
    assert seen.events[-1].scene.panels[0].appearance.picture.shape == (4, 4, 3)
    gym.registry.pop("UnrestorableEnv-v0")


def test_invalid_arguments_are_reported_on_one_line(tmp_path) -> None:
    wrong = {
        "needs keys": {"env": "FrozenLake-v1"},
        "needs a world model": {"env": "FrozenLake-v1", "mode": "human", "keys": []},
        "is not a film": {"env": "FrozenLake-v1", "keys": [], "record": "a.txt"},
        "there is no folder": {"env": "FrozenLake-v1", "keys": [], "record": tmp_path / "b/a.gif"},
        "play in a terminal, not replay": {
            "env": "FrozenLake-v1",
            "mode": "agent",
            "save": tmp_path / "kept",
        },
        "did you mean human": {"env": "FrozenLake-v1", "keys": [], "mode": "humn"},
        "is not a run folder: ": {"run": tmp_path, "keys": []},
    }
    for message, arguments in wrong.items():
        with pytest.raises(CwmError) as caught:
            play(**arguments)
        assert message in str(caught.value), message
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_random_programs_and_programs_with_memory_can_be_played() -> None:
    keys = ["right", "left", *["right"] * 3]
    random = play(program=ICE, env="FrozenLake-v1", keys=["down"] * 4)
    assert random.facts["episodes"][0]["first_mismatch"] is None
    remembering = CARTPOLE.replace("set_state(self, observation)", "reset(self, observation)")
    remembering += "\n    def correct(self, observation, reward):\n        pass\n"
    recalled = play(program=remembering, env="CartPole-v1", keys=keys)
    assert recalled.facts["episodes"][0]["first_mismatch"] is None
    broken = CARTPOLE.replace("return [x", "assert abs(angle) < 0.06\n        return [x")
    seen = RecordingObserver()
    failed = play(
        program=broken, env="CartPole-v1", keys=[*["left"] * 9, "enter", "left"], observer=seen
    )
    assert "AssertionError" in failed.facts["episodes"][0]["failure"]
    assert failed.facts["episodes"][1]["steps"] == 1
    planned = play(program=CARTPOLE, env="CartPole-v1", mode="agent", max_steps=3)
    assert planned.facts["episodes"][0]["steps"] == 3


@pytest.mark.slow
def test_trained_agent_plays_in_the_model_of_its_run(tmp_path) -> None:
    options = {"training.every": 20, "training.warm_up": 10, "training.tests": 1}
    trained = train(
        "FrozenLake-v1",
        env_args=LAKE,
        model="dummy",
        agent="random",
        steps=20,
        options=options,
        run=tmp_path / "run",
    )
    seen = RecordingObserver()
    found = play(trained.run, mode="agent", observer=seen)
    assert seen.events[0].scene.legend[0] == "the agent plays"
    assert found.facts["episodes"][0]["is_over"]
    assert found.facts["episodes"][0]["first_mismatch"] is None
    replayed = play(trained.run, mode="replay").facts["episodes"]
    assert sum(each["steps"] for each in replayed) == 20
    assert sum(each["wrong"] for each in replayed) == 0
    with pytest.raises(CwmError, match="the environment itself does not encode observations"):
        play(trained.run, mode="recon")


def test_only_visible_differences_of_images_are_mismatches() -> None:
    picture = space_of(spaces.Box(0, 255, (32, 32, 3), np.uint8))
    before, after = np.zeros((32, 32, 3), np.uint8), np.full((32, 32, 3), 100, np.uint8)
    row = Transition(before, 0, after, 0.0, False)
    like = Dataset.of(
        [row], observation_space=picture, action_space=Space("discrete", low=(0,), high=(1,))
    )
    similar, different = after.copy(), after.copy()
    similar[:] += 20
    different[2, 2, 0] += 50
    assert mismatched_parts(Step(after, 0.0, False), row, like) == []
    assert mismatched_parts(Step(similar, 0.0, False), row, like) == []
    assert mismatched_parts(Step(different, 0.0, False), row, like) == ["observation"]
    assert mismatched_parts(Step(similar, 1.0, False), row, like) == ["reward"]
