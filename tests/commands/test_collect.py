"""Recording of datasets, and the cache of recordings."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from cProfile import Profile
from math import inf
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.commands.collect import collect, default_dataset, load_transitions
from cwm_cli.commands.policies import EarlierRows
from cwm_cli.commands.recording import BeingRecorded, Recorded, Recording, record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.registry import environment
from cwm_cli.runs.observer import Observer
from cwm_cli.views.datasets import RecordingBar
from cwm_curated.aims import NumberRanges
from cwm_gymnasium import cwm_environments
from notes import Notes

SMALL = [
    "Acrobot-v1",
    "Blackjack-v1",
    "CartPole-v1",
    "CliffWalking-v1",
    "FrozenLake-v1",
    "MountainCar-v0",
    "Pendulum-v1",
    "Taxi-v4",
]
MUJOCO = sorted(
    name
    for name, spec in gym.registry.items()
    if name.endswith("-v5") and str(spec.entry_point).startswith("gymnasium.envs.mujoco")
)
POSTBOX = '''
import time
import numpy as np
import gymnasium as gym
from gymnasium import spaces

class Postbox(gym.Env):
    """Letters come and go; the observation is one object that is changed in place."""

    observation_space = spaces.Dict(
        sign=spaces.Text(12),
        letters=spaces.Tuple([spaces.Box(-9, 9, (2, 2), np.float64), spaces.MultiDiscrete([3, 4])]),
    )
    action_space = spaces.Dict(post=spaces.MultiBinary(2), push=spaces.Box(-1, 1, (2,)))
    seen = {"sign": "empty", "letters": (np.zeros((2, 2)), np.zeros(2, np.int64))}

    def __init__(self, seconds=0.0, rewards=1):
        self.seconds, self.rewards = seconds, rewards

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen["letters"][0][:] = self.np_random.random((2, 2))
        self.seen["sign"] = "empty"
        return self.seen, {}

    def step(self, action):
        time.sleep(self.seconds)
        self.seen["letters"][0][:] += action["push"]
        self.seen["letters"][1][:] = self.np_random.integers(3, size=2)
        self.seen["sign"] = "full" if action["post"].all() else "é.%|"
        action["push"][:] = 0
        return self.seen, np.full(self.rewards, 0.5, np.float32), False, False, {}

gym.register("Postbox-v0", entry_point=Postbox)
'''


def find(name: str) -> EnvironmentSpec:
    return cwm_environments()[name]()


def content(dataset: Dataset, folder: Path) -> bytes:
    dataset.save(folder / "dataset.npz")
    return (folder / "dataset.npz").read_bytes()


@pytest.fixture
def postbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "post_office.py").write_text(POSTBOX)
    monkeypatch.syspath_prepend(tmp_path)
    yield find("post_office:Postbox-v0")
    sys.modules.pop("post_office", None)
    gym.registry.pop("Postbox-v0", None)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cwm" / "datasets"


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL + MUJOCO)
def test_recorded_dataset_loads_with_equal_rows(name: str, tmp_path: Path) -> None:
    dataset = record(find(name), episodes=1, test_episodes=1, max_steps=20)
    dataset.save(tmp_path / "dataset.npz")
    loaded = Dataset.load(tmp_path / "dataset.npz")
    assert loaded.digest == dataset.digest
    assert len(loaded.train) > 0
    assert len(loaded.test) > 0
    for before, after in zip(dataset, loaded, strict=True):
        assert repr(before) == repr(after)


@pytest.mark.parametrize("name", ["Blackjack-v1", "FrozenLake-v1", "Pendulum-v1", "Hopper-v5"])
def test_recording_is_determined_by_its_seed(name: str, tmp_path: Path) -> None:
    first, again, other = (
        content(
            record(find(name), policy="random", episodes=2, test_episodes=1, seed=seed), tmp_path
        )
        for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", ["CartPole-v1", "Ant-v5", "Taxi-v4"])
def test_recorded_transitions_of_an_episode_are_consecutive(name: str) -> None:
    dataset = record(find(name), policy="random", episodes=2, test_episodes=0, max_steps=15, seed=1)
    second = dataset[dataset.columns["episodes"] == 1]
    assert len(second) > 1
    for row, following in zip(second, list(second)[1:], strict=False):
        assert np.array_equal(row.next_observation, following.observation)
        assert not (row.terminated or row.truncated)
    assert second.columns["terminations"][-1] ^ second.columns["truncations"][-1]


@pytest.mark.parametrize("name", ["CartPole-v1", "Walker2d-v5"])
def test_recorded_episode_does_not_depend_on_the_number_of_episodes(name: str) -> None:
    few = record(find(name), policy="random", episodes=2, test_episodes=2, max_steps=15)
    many = record(find(name), policy="random", episodes=4, test_episodes=3, max_steps=15)
    for split, shared in (("train", 2), ("test", 2)):
        episodes = [
            [repr(row._replace(episode=0)) for row in part if row.episode in numbers]
            for part, numbers in (
                (part, np.unique(part.columns["episodes"])[:shared])
                for part in (getattr(few, split), getattr(many, split))
            )
        ]
        assert episodes[0] == episodes[1]


def test_train_and_test_episodes_have_different_starts_and_numbers() -> None:
    dataset = record(find("CartPole-v1"), policy="random", episodes=5, test_episodes=5, max_steps=3)
    train, test = dataset.train, dataset.test
    assert set(train.columns["episodes"]) == {0, 1, 2, 3, 4}
    assert set(test.columns["episodes"]) == {5, 6, 7, 8, 9}
    starts = {row.observation.tobytes() for row in dataset}
    assert len(starts) == len(dataset)


def test_episode_at_the_step_limit_is_truncated() -> None:
    dataset = record(find("Pendulum-v1"), episodes=1, test_episodes=0, max_steps=7)
    assert dataset.columns["truncations"].tolist() == [False] * 6 + [True]
    assert not dataset.columns["terminations"].any()
    limited = record(
        find("Pendulum-v1"), env_args={"max_episode_steps": 4}, episodes=1, test_episodes=0
    )
    assert limited.columns["truncations"].tolist() == [False] * 3 + [True]


def test_metadata_contain_all_settings_of_the_recording() -> None:
    spec = find("FrozenLake-v1")
    dataset = record(
        spec,
        env_args={"is_slippery": False},
        policy="random",
        episodes=2,
        test_episodes=1,
        seed=5,
    )
    assert [seed % 2 for seed in dataset.metadata["reset_seeds"]] == [0, 0, 1]
    assert dataset.metadata == {
        "env": "FrozenLake-v1",
        "env_args": {"is_slippery": False},
        "policy": "random",
        "policies": ["random"] * 3,
        "reset_seeds": dataset.metadata["reset_seeds"],
        "episodes": 2,
        "test_episodes": 1,
        "min_rows": 0,
        "min_test_rows": 0,
        "max_steps": 100,
        "seed": 5,
        "versions": dict(spec.versions()),
        "collector": 7,
    }


@pytest.mark.slow
def test_nested_observations_changed_in_place_are_copied(
    postbox: EnvironmentSpec, tmp_path: Path
) -> None:
    dataset = record(postbox, episodes=2, test_episodes=1, max_steps=30)
    dataset.save(tmp_path / "post.npz")
    rows = list(Dataset.load(tmp_path / "post.npz"))
    assert len(rows) == 90
    assert {row.next_observation["sign"] for row in rows} == {"full", "é.%|"}
    for row in rows:
        moved = row.observation["letters"][0] + row.action["push"]
        assert np.array_equal(row.next_observation["letters"][0], moved)
        assert row.reward == 0.5
    assert any(row.action["push"].any() for row in rows)


class EventLog(Observer):
    """An observer that stores all events and interrupts after `most` episodes."""

    def __init__(self, most: float = inf) -> None:
        self.events: list[Any] = []
        self.most = most

    def advanced(self, event: object) -> None:
        """Store an event."""
        self.events.append(event)
        if sum(isinstance(each, Recorded) for each in self.events) >= self.most:
            raise KeyboardInterrupt


def test_observer_receives_each_step_and_each_episode() -> None:
    log = EventLog()
    recording = Recording(
        find("CartPole-v1"), policy="random", episodes=2, test_episodes=1, max_steps=2
    )
    recording.play(log)
    over = [event.key for event in log.events if isinstance(event, Recorded)]
    assert over == [(0, 0), (1, 0), (0, 1)]  # train and test alternate
    shares = [event.share for event in log.events if isinstance(event, BeingRecorded)]
    assert len(shares) == 6
    assert all(0 < share < 1 for share in shares)


def test_recording_time_grows_linearly_with_episodes() -> None:
    def calls(episodes: int) -> int:
        recording = Recording(
            find("CartPole-v1"), policy="random", episodes=episodes, test_episodes=0, max_steps=2
        )
        with Profile() as profile:
            recording.play(RecordingBar())
            recording.dataset()
        return sum(entry.callcount for entry in profile.getstats())

    calls(1)  # lazy imports happen here
    assert calls(100) < 2.2 * calls(50)


def test_summaries_of_earlier_rows_read_each_row_once() -> None:
    rows = list(record(find("CartPole-v1"), policy="random", episodes=3, test_episodes=0))
    read: list[Transition] = []

    class Reader:
        def add(self, rows: Sequence[Transition]) -> None:
            read.extend(rows)

    earlier = EarlierRows(rows[:9])
    for more in ([], rows[9:20], [], rows[20:]):
        earlier += more
        earlier.summary(Reader)
        ranges = earlier.summary(NumberRanges)
    assert [id(row) for row in read] == [id(row) for row in rows]
    after = np.array([row.next_observation for row in rows])
    going = after[[not row.terminated for row in rows]]
    for span, expected in ((ranges.after, after), (ranges.going, going)):
        assert span.bounds is not None
        assert np.array_equal(span.bounds, [expected.min(axis=0), expected.max(axis=0)])


@pytest.mark.slow
def test_interrupted_recording_is_saved_and_continued(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"max_steps": 9, "episodes": 3, "test_episodes": 3}
    whole, broken = tmp_path / "whole.npz", tmp_path / "broken.npz"
    collect("FrozenLake-v1", out=whole, **options)
    with pytest.raises(KeyboardInterrupt):
        collect("FrozenLake-v1", out=broken, observer=EventLog(3), **options)
    kept = Dataset.load(broken)
    assert len(set(kept.columns["episodes"])) == len(kept.metadata["policies"]) == 3
    assert kept.metadata["missing"] == [[2], [1, 2]]
    assert len(kept.train) > 0 < len(kept.test)
    log = EventLog()
    collect("FrozenLake-v1", out=broken, observer=log, **options)
    assert sum(isinstance(event, Recorded) for event in log.events) == 3
    assert broken.read_bytes() == whole.read_bytes()


def test_killed_recording_keeps_the_saved_episodes(tmp_path: Path) -> None:
    script = """
import os, sys
from math import inf
from cwm_cli.commands import recording
from cwm_cli.commands.collect import collect
from cwm_cli.runs.observer import Observer

class Killer(Observer):
    def advanced(self, event):
        if isinstance(event, recording.BeingRecorded) and event.key == (0, 2):
            os.kill(os.getpid(), 9)

recording.SAVE_SECONDS, recording.MAX_SAVING_SHARE = 0.0, inf
collect("CartPole-v1", policy="random", max_steps=9, out=sys.argv[1], observer=Killer())
"""
    killed, whole = tmp_path / "killed.npz", tmp_path / "whole.npz"
    done = subprocess.run([sys.executable, "-c", script, killed], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(Dataset.load(killed).metadata["policies"]) == 4  # two train and two test episodes
    for file in (killed, whole):
        collect("CartPole-v1", policy="random", max_steps=9, out=file)
    assert killed.read_bytes() == whole.read_bytes()


def test_interrupted_cached_recording_is_continued(cache: Path) -> None:
    spec = find("Blackjack-v1")
    with pytest.raises(KeyboardInterrupt):
        default_dataset(spec, policy="random", observer=EventLog(3))
    log = EventLog()
    path, there = default_dataset(spec, policy="random", observer=log)
    assert not there
    new = sum(isinstance(event, Recorded) for event in log.events)
    assert new == len(np.unique(Dataset.load(path).columns["episodes"])) - 3
    assert default_dataset(spec, policy="random") == (path, True)


def test_episodes_are_added_until_each_split_has_200_rows(tmp_path: Path) -> None:
    spec = find("Blackjack-v1")
    few = record(spec, policy="random", episodes=10, test_episodes=10)
    enough = record(spec, policy="random")
    for some, more in ((few.train, enough.train), (few.test, enough.test)):
        rows = len(more)
        last = more.columns["episodes"] == more.columns["episodes"].max()
        assert rows - last.sum() < 200 <= rows
        for name in ("actions", "rewards", "terminations"):
            assert (more.columns[name][: len(some)] == some.columns[name]).all()
    assert np.array_equal(
        np.unique(enough.columns["episodes"], return_index=False),
        range(len(enough.metadata["policies"])),
    )


def test_given_number_of_episodes_is_recorded_exactly(tmp_path: Path) -> None:
    def sizes(**options: Any) -> list[int]:
        options |= {"policy": "random", "out": tmp_path / "cards.npz", "force": True}
        dataset = collect("Blackjack-v1", **options).dataset
        return [len(np.unique(part.columns["episodes"])) for part in (dataset.train, dataset.test)]

    assert sizes(episodes=3, test_episodes=2) == [3, 2]
    assert sizes(min_rows=0) == [10, 10]
    train, test = sizes(episodes=3, test_episodes=0, min_rows=20)
    assert train > 10
    assert test == 0


def test_total_number_of_episodes_is_estimated_from_their_mean_length() -> None:
    options: dict[str, Any] = {"policy": "random", "episodes": 10, "test_episodes": 0}
    recording = Recording(find("Pendulum-v1"), max_steps=10, min_rows=250, **options)
    with pytest.raises(KeyboardInterrupt):
        recording.play(EventLog(10))
    assert (recording.done, recording.episodes) == (10, 25)


@pytest.mark.long
def test_recording_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    for name, rows in (("FrozenLake-v1", 44), ("Pendulum-v1", 0)):
        contents = {
            content(
                record(find(name), workers=workers, max_steps=4, test_episodes=5, min_rows=rows),
                tmp_path,
            )
            for workers in (1, 3)
        }
        assert len(contents) == 1, name


@pytest.mark.slow
def test_recording_stops_at_the_time_limit_with_complete_episodes(cwm) -> None:
    (cwm.packages / "post_office.py").write_text(POSTBOX)
    command = ["collect", "--env", "post_office:Postbox-v0", "--env-arg", "seconds=0.05"]
    command += ["--policy", "random", "--max-steps", "4", "--test-episodes", "90", "--out", "p.npz"]
    result = cwm(*command, "--max-seconds", "1.5")
    assert result.returncode == 0
    dataset = Dataset.load(cwm.folder / "p.npz")
    numbers, lengths = np.unique(dataset.columns["episodes"], return_counts=True)
    assert set(lengths) == {4}
    words = f"{len(numbers)} of 100 episodes are in p.npz; the same command continues"
    assert words in result.stderr
    nothing = cwm(*command, "--max-seconds", "0", "--force")
    assert nothing.returncode == 1
    assert "no train episode finished within the time limit" in nothing.stderr


def test_recording_without_a_terminal_prints_each_episode_only_if_verbose(cwm) -> None:
    result = cwm.inside(
        *("collect", "--env", "Blackjack-v1", "--policy", "random"),
        *("--episodes", "3", "--test-episodes", "2"),
    )
    first, last, warning = result.stderr.splitlines()
    assert warning.startswith("Warning: only "), "there are few rows"
    assert first == "recording Blackjack-v1: 5 episodes"
    assert last.startswith("[5/5] episodes recorded")
    verbose = cwm.inside(
        *("--verbose", "collect", "--env", "Blackjack-v1", "--policy", "random"),
        *("--episodes", "3", "--test-episodes", "2", "--out", "again.npz"),
    )
    lines = [line for line in verbose.stderr.splitlines() if line.startswith("[")]
    assert [line.split()[0] for line in lines] == [f"[{n}/5]" for n in range(1, 6)]
    assert all("policy random" in line for line in lines)


@pytest.mark.slow
def test_invalid_recording_requests_are_refused(postbox: EnvironmentSpec) -> None:
    with pytest.raises(UnknownNameError, match="unknown policy 'rendom': did you mean random"):
        record(find("CartPole-v1"), policy="rendom")
    with pytest.raises(CwmError, match="--episodes and --max-steps must be at least 1"):
        record(find("CartPole-v1"), episodes=0)
    with pytest.raises(CwmError, match="must be plain JSON values"):
        record(find("CartPole-v1"), env_args={"sutton_barto_reward": object()})
    with pytest.raises(CwmError, match="rewards of shape 3 are not supported"):
        record(postbox, env_args={"rewards": 3}, episodes=1)


def test_unsupported_spaces_are_refused_before_the_first_step(cwm) -> None:
    (cwm.folder / "wide.py").write_text(
        "import gymnasium, numpy as np\n"
        "class Wide(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (20_000,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return np.zeros(20_000, np.float32), {}\n"
        "    def step(self, action):\n"
        "        open('stepped', 'w').close()\n"
        "        return np.zeros(20_000, np.float32), 0.0, True, False, {}\n"
    )
    refused = cwm.inside("collect", "--env", "wide.py", "--policy", "random", "--out", "wide.npz")
    assert refused.returncode == 1
    assert "observations have 20,000 components (20000); the limit is 10,000" in refused.stderr
    assert not (cwm.folder / "stepped").exists()


def test_default_dataset_is_recorded_once(cache: Path) -> None:
    path, there = default_dataset(find("Blackjack-v1"), policy="random")
    assert (path.parent, there) == (cache, False)
    assert path.name.startswith("Blackjack-v1-random-0-")
    assert default_dataset(find("Blackjack-v1"), policy="random") == (path, True)
    assert list(cache.iterdir()) == [path]


@pytest.mark.slow
def test_each_request_has_its_own_cache_file(cache: Path) -> None:
    spec = find("Blackjack-v1")
    paths = {
        default_dataset(spec, policy="random")[0],
        default_dataset(spec, policy="random", data_seed=1)[0],
        default_dataset(spec, policy="random", episodes=3)[0],
        default_dataset(spec, policy="random", max_steps=1)[0],
        default_dataset(spec, policy="random", env_args={"sab": False})[0],
    }
    assert len(paths) == 5
    assert paths == set(cache.iterdir())


@pytest.mark.slow
def test_changed_environment_is_recorded_again(
    postbox: EnvironmentSpec, cache: Path, tmp_path: Path
) -> None:
    before, _ = default_dataset(postbox, max_steps=2, min_rows=0, min_test_rows=0)
    with (tmp_path / "post_office.py").open("a") as file:
        file.write("\n# moved\n")
    after, there = default_dataset(postbox, max_steps=2, min_rows=0, min_test_rows=0)
    assert after != before
    assert not there


def test_damaged_cache_file_is_recorded_again(cache: Path) -> None:
    path, _ = default_dataset(find("Blackjack-v1"), policy="random")
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    assert default_dataset(find("Blackjack-v1"), policy="random") == (path, False)
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_parallel_threads_share_one_cache_file(cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(
            pool.map(lambda _: default_dataset(find("Taxi-v4"), policy="random")[0], range(4))
        )
    assert found == set(cache.iterdir())
    assert len(Dataset.load(found.pop()))


@pytest.mark.slow
def test_parallel_processes_share_one_cache_file(cache: Path) -> None:
    code = """
from cwm_cli.commands.collect import default_dataset
from cwm_gymnasium import cwm_environments
print(default_dataset(cwm_environments()["Taxi-v4"](), policy="random")[0])
"""
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found = {Path(process.communicate()[0].strip()) for process in started}
    assert found == set(cache.iterdir())
    assert len(Dataset.load(found.pop()))


def test_error_for_a_read_only_cache_suggests_another_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CwmError, match="set XDG_CACHE_HOME to a writable folder"):
        default_dataset(find("Blackjack-v1"), policy="random")


def test_collect_prints_counts_file_and_next_command(cwm) -> None:
    result = cwm.inside(
        "collect", "--env", "Blackjack-v1", "--episodes", "3", "--test-episodes", "2"
    )
    dataset = Dataset.load(cwm.folder / "Blackjack-v1.npz")
    returns = np.bincount(dataset.columns["episodes"], dataset.columns["rewards"])
    assert result.stdout.splitlines() == [
        f"Recorded {len(dataset)} transitions in 5 episodes "
        f"(mean return {returns.mean():.4g}, {min(returns):g} to {max(returns):g}).",
        "File: Blackjack-v1.npz",
        "Next: cwm synthesize --env Blackjack-v1 --dataset Blackjack-v1.npz",
    ]


@pytest.mark.slow
def test_collect_prints_one_json_object(cwm) -> None:
    result = cwm(
        *("collect", "--env", "Taxi-v3", "--env-arg", "is_rainy=true", "--policy", "random"),
        *("--json", "--out", "a/t"),
    )
    facts = json.loads(result.stdout)
    dataset = Dataset.load(cwm.folder / "a" / "t")
    assert facts["file"] == "a/t"
    assert (facts["transitions"], facts["episodes"]) == (len(dataset), 20)
    assert sum(facts["returns"]) == dataset.columns["rewards"].sum()
    assert dataset.metadata["env_args"] == {"is_rainy": True}
    note, *lines = result.stderr.splitlines()
    assert note == "Note: Gymnasium no longer includes Taxi-v3: using Taxi-v4"
    assert lines[0] == "recording Taxi-v4: 20 episodes"
    assert lines[-1].startswith("[20/20] episodes recorded")


def test_collect_replaces_other_data_only_with_force(cwm) -> None:
    file = cwm.folder / "Blackjack-v1.npz"
    command = ["collect", "--env", "Blackjack-v1", "--policy", "random"]
    first = cwm.inside(*command)
    before = file.read_bytes()
    again = cwm.inside(*command)
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert again.stderr == "Note: Blackjack-v1.npz already contains these transitions\n"
    other = cwm.inside(*command, "--seed", "1")
    assert other.returncode == 1
    assert "replace it with --force" in other.stderr
    assert file.read_bytes() == before
    assert cwm.inside(*command, "--seed", "1", "--force").returncode == 0
    assert file.read_bytes() != before
    file.write_text("my notes")
    assert cwm.inside(*command).returncode == 1
    assert file.read_text() == "my notes"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "Cartpole-v1"], "unknown environment 'Cartpole-v1': did you mean CartPole-v1?"),
        (["--env", "CartPole-v1", "--policy", "rand"], "unknown policy 'rand'"),
        (["--env", "CartPole-v1", "--env-arg", "length"], "has no value"),
        (["--env", "CartPole-v1", "--out", "/proc/none/x.npz"], "cannot write /proc/none/x.npz"),
    ],
)
def test_collect_reports_mistakes_in_one_line(cwm, arguments: list[str], message: str) -> None:
    result = cwm.inside("collect", *arguments)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(cwm.folder.glob("*.npz"))


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_recording_stopped_before_the_first_episode_leaves_no_file(
    cwm, sent: signal.Signals, code: int
) -> None:
    (cwm.packages / "post_office.py").write_text(POSTBOX + "print('registered', flush=True)\n")
    process = cwm.start(
        "collect", "--env", "post_office:Postbox-v0", "--env-arg", "seconds=0.05", "--out", "p.npz"
    )
    assert process.stdout.readline() == "registered\n"
    time.sleep(1)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert not list(cwm.folder.iterdir())


@pytest.mark.slow
def test_recording_that_reaches_its_time_limit_reports_that_it_can_be_continued(
    tmp_path: Path,
) -> None:
    """A complete recording gives no such note."""

    class SlowNotes(Notes):
        def advanced(self, event: object) -> None:
            if isinstance(event, Recorded):
                time.sleep(0.3)

    options: dict[str, Any] = {"policy": "random", "episodes": 3, "test_episodes": 1}
    file, stopped, whole = tmp_path / "rows.npz", SlowNotes(), SlowNotes()
    collect("CartPole-v1", out=file, max_seconds=0.2, observer=stopped, **options)
    collect("CartPole-v1", out=file, observer=whole, **options)
    ending = "the same command continues"
    assert any(words.endswith(ending) for words in stopped.words)
    assert not any(words.endswith(ending) for words in whole.words)


def test_transitions_of_another_environment_are_refused() -> None:
    cartpole, lake = environment("CartPole-v1"), environment("FrozenLake-v1")
    rows = record(cartpole, policy="random", episodes=1, test_episodes=0)
    assert load_transitions(cartpole, dataset=rows) == (rows, "given")
    with pytest.raises(CwmError, match="contains transitions of CartPole-v1: use --env"):
        load_transitions(lake, dataset=rows)
