"""Replay buffers that Stable-Baselines3 wrote itself, and pickles that only look like one."""

import pickle
import sys
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli import import_transitions
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.worlds import EnvironmentModel
from cwm_formats.replay_buffers import StableBaselines3Buffer
from notes import Notes

pytestmark = [  # torch is imported, which takes some seconds
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("stable_baselines3"), reason="Stable-Baselines3 is missing"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_to_pkl(file, buffer):
    from stable_baselines3.common.save_util import save_to_pkl

    save_to_pkl(file, buffer)


def vectorised(env, n_envs):
    from stable_baselines3.common.env_util import make_vec_env

    return make_vec_env(env, n_envs=n_envs, seed=0)


def learnt(folder, algorithm, env, *, steps, n_envs=1, buffer_size=1000, **options):
    """Save the buffer of an algorithm; also return the actions of the environment."""
    made = vectorised(env, n_envs)
    taken = []
    step_async = made.step_async
    made.step_async = lambda actions: (taken.append(np.array(actions)), step_async(actions))[1]
    policy = "MultiInputPolicy" if isinstance(made.observation_space, spaces.Dict) else "MlpPolicy"
    import stable_baselines3

    model = getattr(stable_baselines3, algorithm)(
        policy,
        made,
        buffer_size=buffer_size,
        learning_starts=10_000,
        seed=0,
        device="cpu",
        policy_kwargs={"net_arch": [4]},
        **options,
    )
    model.learn(steps)
    model.save_replay_buffer(folder / "buffer.pkl")
    return folder / "buffer.pkl", model.replay_buffer, np.array(taken)


def right(dataset, env, near=1e-5):
    """Return whether the environment leads from each row to its next observation."""
    truth = EnvironmentModel(environment(env), {}).predict(dataset)
    after = dataset.columns["next_observations"]
    return np.abs(truth.columns["next_observations"] - after).max() < near


@pytest.mark.parametrize("n_envs", [1, 2])
def test_buffer_of_discrete_actions_is_imported(folder, n_envs, monkeypatch):
    file, buffer, taken = learnt(folder, "DQN", "CartPole-v1", steps=300, n_envs=n_envs)
    for module in ("torch", "stable_baselines3"):  # neither is needed
        monkeypatch.setitem(sys.modules, module, None)
    rows = import_transitions(file, "CartPole-v1").dataset
    count = buffer.pos
    assert len(rows) == count * n_envs
    for env in range(n_envs):
        part = slice(env * count, (env + 1) * count)
        seen = rows.columns["observations"][part]
        np.testing.assert_array_equal(seen, buffer.observations[:count, env])
        np.testing.assert_array_equal(rows.columns["actions"][part], taken[:, env])
        ends = rows.columns["terminations"][part]
        np.testing.assert_array_equal(ends, buffer.dones[:count, env] > 0)
    episodes = rows.columns["episodes"]
    begins = np.flatnonzero(np.diff(episodes)) + 1
    over = rows.columns["terminations"][begins - 1] | ((begins % count) == 0)
    assert over.all()
    assert right(rows, "CartPole-v1")
    assert Dataset.load(folder / "buffer.npz").digest == rows.digest


def test_actions_have_the_scale_of_the_environment(folder):
    told = Notes()
    file, buffer, taken = learnt(folder, "SAC", "Pendulum-v1", steps=450, n_envs=2)
    rows = import_transitions(file, "Pendulum-v1", observer=told).dataset
    assert np.abs(buffer.actions[: buffer.pos]).max() <= 1
    assert np.abs(taken).max() > 1.5
    np.testing.assert_array_equal(rows.columns["actions"], np.concatenate([*taken.swapaxes(0, 1)]))
    assert "are scaled to the bounds" in told.words[0]
    assert right(rows, "Pendulum-v1", 1e-4)
    ends = rows.columns["truncations"]
    assert (ends.sum(), rows.columns["terminations"].sum()) == (2, 0)  # the time limit is 200
    left = import_transitions(
        file, "Pendulum-v1", options={"scaled_actions": False}, out="left.npz"
    ).dataset
    assert np.abs(left.columns["actions"]).max() <= 1


def test_full_ring_begins_with_its_oldest_row(folder):
    file, buffer, taken = learnt(folder, "DQN", "CartPole-v1", steps=250, buffer_size=100)
    assert buffer.full and 0 < buffer.pos < 100
    rows = import_transitions(file, "CartPole-v1").dataset
    np.testing.assert_array_equal(rows.columns["actions"], taken[-100:, 0])
    assert right(rows, "CartPole-v1")


@pytest.mark.parametrize("size", [100, 1000])
def test_memory_optimised_buffer_lacks_the_ends_of_episodes(folder, size):
    told = Notes()
    file, buffer, taken = learnt(
        folder,
        "DQN",
        "CartPole-v1",
        steps=250,
        buffer_size=size,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
    )
    rows = import_transitions(file, "CartPole-v1", observer=told).dataset
    places = (buffer.pos + np.arange(size)) % size if buffer.full else np.arange(buffer.pos)
    places = places[1:] if buffer.full else places
    lost = buffer.dones[places, 0] > 0
    lost[-1] = False
    assert f"{lost.sum()} rows end an episode and are left out" in told.words[0]
    np.testing.assert_array_equal(rows.columns["actions"], taken[-len(places) :, 0][~lost])
    assert right(rows, "CartPole-v1")


class Rooms(gymnasium.Env):
    """An environment with dict observations and a limit of nine steps."""

    observation_space = spaces.Dict(
        {"at": spaces.Discrete(5), "seen": spaces.Box(-1, 1, (2, 3), np.float32)}
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(action[1]), False, False, {}


def test_buffer_of_dicts_is_imported(folder):
    from stable_baselines3.common.buffers import DictReplayBuffer

    gymnasium.register("Rooms-v0", f"{__name__}:Rooms", max_episode_steps=9)
    try:
        made = vectorised("Rooms-v0", 2)
        buffer = DictReplayBuffer(100, made.observation_space, made.action_space, n_envs=2)
        seen, all_taken = made.reset(), []
        for _ in range(30):
            taken = np.array([made.action_space.sample() for _ in range(2)])
            after, rewards, dones, infos = made.step(taken)
            last = {k: v.copy() for k, v in after.items()}
            for env in np.flatnonzero(dones):
                for key, value in infos[env]["terminal_observation"].items():
                    last[key][env] = value
            buffer.add(seen, last, taken, rewards, dones, infos)
            seen = after
            all_taken.append(taken)
        save_to_pkl(folder / "dict.pkl", buffer)
        rows = import_transitions("dict.pkl", "Rooms-v0").dataset
    finally:
        gymnasium.registry.pop("Rooms-v0")
    assert len(rows) == 60
    np.testing.assert_array_equal(
        rows.columns["observations.seen"][:30], buffer.observations["seen"][:30, 0]
    )
    np.testing.assert_array_equal(rows.columns["actions"][30:], np.array(all_taken)[:, 1])
    assert rows.columns["truncations"].sum() == 6


def test_invalid_buffers_are_rejected_in_one_line(folder):
    from stable_baselines3.common.buffers import RolloutBuffer

    file, buffer, _ = learnt(folder, "DQN", "CartPole-v1", steps=20)
    rollout = RolloutBuffer(8, buffer.observation_space, buffer.action_space)
    save_to_pkl(folder / "rollout.pkl", rollout)
    empty, broken = pickle.loads(file.read_bytes()), pickle.loads(file.read_bytes())
    empty.reset()
    empty.pos = 0
    save_to_pkl(folder / "empty.pkl", empty)
    broken.rewards[3] = np.nan
    save_to_pkl(folder / "broken.pkl", broken)
    (folder / "cut.pkl").write_bytes(file.read_bytes()[:-1000])
    for name, env, reason in [
        ("buffer.pkl", "Pendulum-v1", "expected shape 3, found 4"),
        ("buffer.pkl", "FrozenLake-v1", r"expected shape \(\) \(a single number\), found 4"),
        ("rollout.pkl", "CartPole-v1", "lacks the next observations"),
        ("empty.pkl", "CartPole-v1", "it contains no transitions"),
        ("broken.pkl", "CartPole-v1", r"nan is not a finite number \(row 3"),
        ("cut.pkl", "CartPole-v1", "is not a replay buffer of Stable-Baselines3"),
    ]:
        with pytest.raises(CwmError, match=reason) as refused:
            import_transitions(name, env)
        assert "\n" not in str(refused.value)


class Runs:
    """Creates a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_code_in_a_buffer_never_runs(folder):
    file, buffer, _ = learnt(folder, "DQN", "CartPole-v1", steps=20)
    spec, told = environment("CartPole-v1"), Notes()
    for name in ("device", "observations", "pos", "extra"):
        changed = pickle.loads(file.read_bytes())
        setattr(changed, name, Runs(folder / "marker"))
        (folder / "hostile.pkl").write_bytes(pickle.dumps(changed))
        harmless = name in ("device", "extra")
        try:
            rows = StableBaselines3Buffer().read(folder / "hostile.pkl", spec, {}, told)
            assert harmless and len(rows) == buffer.pos
        except CwmError as refused:
            assert not harmless and "\n" not in str(refused)
        assert not (folder / "marker").exists(), name
    pickle.loads(pickle.dumps(Runs(folder / "marker")))
    assert (folder / "marker").exists()


def test_false_sizes_take_no_memory(folder):
    file, _, _ = learnt(folder, "DQN", "CartPole-v1", steps=20, buffer_size=50)
    data = file.read_bytes()
    claimed = data.replace(b"K2K\x01\x86", b"J\xff\xff\xff\x7fK\x01\x86")  # 50 rows become 2**31-1
    assert claimed != data
    (folder / "claims.pkl").write_bytes(claimed)
    with pytest.raises(CwmError, match="the size of an array does not match its shape"):
        import_transitions("claims.pkl", "CartPole-v1")
