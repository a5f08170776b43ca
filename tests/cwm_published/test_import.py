"""Read published replay buffers, and reject files that only resemble one."""

import copy
import json
import os
import pickle
import random
import struct
import sys
import types
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

from cwm_cli.cli import app
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import PaperMetric
from cwm_cli.registry import environment
from cwm_formats.pickles import load, plain
from cwm_published.buffer import read_buffer
from cwm_published.converting import MisfitError, convert, corrupt_first_rows, fits
from recordings import cartpole

CAPACITY = 7
"""Number of unfilled rows in the published arrays."""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run `cwm data import` in a folder, inside this process."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["data", "import", *map(str, arguments)])


@pytest.fixture
def torch(monkeypatch):
    """Provide the names of torch that published files contain."""
    module = types.ModuleType("torch")
    device = type("device", (), {"__module__": "torch"})
    device.__reduce__ = lambda self: (device, ("cpu",))
    device.__new__ = lambda cls, *_: object.__new__(cls)
    module.device = device
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture
def publish(tmp_path, torch):
    """Write rows in the published format with all of its columns."""

    def write(rows, *, protocol=4, marks_time=True, name="buffer.pkl", extra=None, **changes):
        starts = {}
        for index, row in enumerate(rows):
            starts.setdefault(row.episode, index)
        over = [row.terminated or (row.truncated and marks_time) for row in rows]
        spare = [None] * CAPACITY
        fields = {
            "obs": [row.observation for row in rows] + spare,
            "next_obs": [row.next_observation for row in rows] + spare,
            "actions": [row.action for row in rows] + spare,
            "rewards": np.array([row.reward for row in rows] + [0] * CAPACITY, np.float32),
            "dones": np.array(over + [False] * CAPACITY),
            "traj_starts": np.array([starts[row.episode] for row in rows] + [0] * CAPACITY),
            "extra_info": [extra(row) if extra else {} for row in rows] + spare,
            "idx": len(rows),
            "capacity": len(rows) + CAPACITY,
            "device": torch.device(),
            "space": gymnasium.spaces.Discrete(2),
            "file_path": "data",
            "file_name": "buffer",
            "full": False,
        } | changes
        file = tmp_path / name
        file.write_bytes(pickle.dumps(fields, protocol))
        return file

    return write


def imported(file, env, **options):
    """Import a file for an environment."""
    return convert(read_buffer(file), environment(env), env_args={}, **options)


def recorded(env, **options):
    """Record some episodes."""
    options = {"episodes": 6, "test_episodes": 0, "policy": "random"} | options
    return list(record(environment(env), **options))


def assert_same(rows, dataset):
    """Compare transitions: rewards in float32 precision, without the split."""
    assert len(dataset) == len(rows)
    for row, ours in zip(rows, dataset, strict=True):
        np.testing.assert_equal(
            (ours.observation, ours.action, ours.next_observation),
            (row.observation, row.action, row.next_observation),
        )
        assert ours.reward == float(np.float32(row.reward))
        assert (ours.terminated, ours.truncated) == (row.terminated, row.truncated)
        assert (ours.episode, ours.valid) == (row.episode, row.valid)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("env", ["CartPole-v1", "Taxi-v4", "Blackjack-v1", "Pendulum-v1"])
def test_import_restores_the_recorded_transitions(publish, env, protocol):
    rows = recorded(env, max_steps=20)
    file = publish(rows, protocol=protocol, marks_time=False)
    assert_same(rows, imported(file, env).dataset)


@pytest.mark.parametrize("marks_time", [True, False])
def test_episodes_cut_by_the_collector_are_not_terminated(publish, marks_time):
    rows = recorded("Taxi-v4", episodes=2)
    dataset, limited = imported(publish(rows, marks_time=marks_time), "Taxi-v4")
    assert_same(rows, dataset)
    assert limited == 2 * marks_time


def test_robot_recording_is_imported_unchanged(publish):
    rows = recorded("HalfCheetah-v5", episodes=2, max_steps=30)
    assert_same(rows, imported(publish(rows, marks_time=False), "HalfCheetah-v5").dataset)


def test_boards_of_words_are_imported_with_valid_actions(publish):
    rows = [
        row._replace(valid=(0, 1, 3) if row.episode % 2 else (0,)) for row in recorded("RTFM-v0")
    ]
    boards = [
        row._replace(
            observation=(np.array(row.observation[0], object), row.observation[1]),
            next_observation=(np.array(row.next_observation[0], object), row.next_observation[1]),
        )
        for row in rows
    ]
    file = publish(boards, extra=lambda row: {"valid_actions": np.array(row.valid), "wiki": "no"})
    dataset = imported(file, "RTFM-v0").dataset
    assert_same(rows, dataset)
    assert dataset.columns["valid_actions"].shape == (len(rows), 5)


def test_environment_with_valid_actions_needs_them_in_the_file(publish):
    with pytest.raises(CwmError, match=r"row 0 of .* lacks the valid actions of RTFM-v0"):
        imported(publish(recorded("RTFM-v0", episodes=1)), "RTFM-v0")


def test_valid_actions_are_ignored_for_environments_without_them(publish):
    file = publish(recorded("CartPole-v1"), extra=lambda _: {"valid_actions": [0, 1]})
    assert not imported(file, "CartPole-v1").dataset.has_valid_actions


def test_object_with_the_dict_as_state_is_read(publish, tmp_path, monkeypatch):
    rows = recorded("CartPole-v1")
    owner = type("ReplayBuffer", (), {"__module__": "buffers"})
    module = types.ModuleType("buffers")
    module.ReplayBuffer = owner
    monkeypatch.setitem(sys.modules, "buffers", module)
    buffer = owner()
    buffer.__dict__ = pickle.loads(publish(rows).read_bytes())
    for protocol in (0, 2, 5):
        (tmp_path / "object.pkl").write_bytes(pickle.dumps(buffer, protocol))
        monkeypatch.setitem(sys.modules, "buffers", None)
        assert_same(rows, imported(tmp_path / "object.pkl", "CartPole-v1").dataset)
        monkeypatch.setitem(sys.modules, "buffers", module)


def test_module_names_of_numpy_1_are_accepted(publish):
    rows = recorded("CartPole-v1")
    file = publish(rows, protocol=2)
    old = file.read_bytes().replace(b"numpy._core", b"numpy.core")
    assert old != file.read_bytes()
    file.write_bytes(old)
    assert_same(rows, imported(file, "CartPole-v1").dataset)


ARRAYS = [
    np.arange(6, dtype=">f4").reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.asfortranarray(np.array([["a", "bc", None], ["d", 1, "é"]], object)),
    np.array(["a", "bé"]),
    np.zeros((0, 3)),
    np.array(True),
    np.float32(1.5),
    np.int16(-3),
    np.str_("é"),
    np.arange(12)[::-3],
    np.ones((2, 2), np.bool_),
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("array", ARRAYS, ids=repr)
def test_arrays_are_read_like_numpy_does(array, protocol):
    read = plain(load(pickle.dumps(array, protocol)))
    assert np.array_equal(read, array)
    assert np.shape(read) == array.shape
    assert np.asarray(read).dtype == np.asarray(array).dtype.newbyteorder("=")


@pytest.mark.parametrize("dtype", ["V8", "M8[s]", "f8,f8"])
def test_arrays_without_numbers_or_text_are_rejected(dtype):
    with pytest.raises(ValueError, match="an unsupported dtype"):
        plain(load(pickle.dumps(np.zeros(2, dtype))))


def episodes_of(*lengths_and_ends):
    """Return CartPole episodes of some lengths, each with or without the flag `done`."""
    row = recorded("CartPole-v1", episodes=1)[0]
    return [
        row._replace(episode=episode, terminated=end and step == length - 1)
        for episode, (length, end) in enumerate(lengths_and_ends)
        for step in range(length)
    ]


@pytest.mark.parametrize(
    "episodes, terminated, truncated",
    [
        ([(9, True)], [8], []),
        ([(9, False)], [], [8]),
        ([(500, True)], [], [499]),  # the limit of CartPole itself
        ([(100, True)], [], [99]),  # the limit of the published collector
        ([(100, True), (100, False)], [99], [199]),  # an end there has no flag here
        ([(101, True), (5, True)], [100, 105], []),
    ],
)
def test_end_at_a_time_limit_is_not_a_termination(publish, episodes, terminated, truncated):
    dataset, limited = imported(publish(episodes_of(*episodes)), "CartPole-v1")
    assert np.flatnonzero(dataset.columns["terminations"]).tolist() == terminated
    assert np.flatnonzero(dataset.columns["truncations"]).tolist() == truncated
    assert limited == sum(end for _, end in episodes) - len(terminated)


@pytest.mark.parametrize("marks_time", [True, False])
def test_published_score_uses_the_flags_of_the_file(publish, tmp_path, marks_time):
    rows = recorded("Taxi-v4", episodes=2)
    dataset = imported(publish(rows, marks_time=marks_time), "Taxi-v4").dataset
    dataset.save(tmp_path / "taxi.npz")
    data = Dataset.load(tmp_path / "taxi.npz")
    said = data.select("next_observations", "rewards", "terminations")
    score = PaperMetric.of(data).score(said, data)
    assert (score.paper < 1, score.accuracy) == (marks_time, 1)


def test_hidden_parts_are_left_out_of_the_import(run, publish, tmp_path):
    rows = recorded("CartPole-v1", episodes=2)
    buffer = publish(rows)
    chosen = ("--env", "CartPole-v1", "--hide", "velocities", "--out", tmp_path / "hidden.npz")
    assert run(buffer, *chosen).exit_code == 0
    hidden = Dataset.load(tmp_path / "hidden.npz")
    assert hidden.metadata["env_args"] == {"hide": ["velocities"]}
    for name in ("observations", "next_observations"):
        seen = imported(buffer, "CartPole-v1").dataset.columns[name]
        np.testing.assert_array_equal(hidden.columns[name], seen[:, [0, 2]])


def test_no_episode_is_held_out_if_all_rows_are_for_training(run, publish, tmp_path):
    file = publish(recorded("CartPole-v1", episodes=10))
    assert run(file, "--env", "CartPole-v1", "--all-train").exit_code == 0
    dataset = Dataset.load(tmp_path / "buffer.npz")
    assert (len(dataset.train), len(dataset.test)) == (len(dataset), 0)


def test_fifth_of_the_episodes_is_held_out(publish):
    dataset = imported(publish(recorded("CartPole-v1", episodes=10)), "CartPole-v1").dataset
    assert sorted(set(dataset.test.columns["episodes"].tolist())) == [4, 9]


def test_metadata_contain_the_source_of_the_data(publish):
    file = publish(recorded("CartPole-v1"))
    metadata = imported(file, "CartPole-v1", drop_corrupt_first_rows=True).dataset.metadata
    assert metadata["published"] is True
    assert metadata["drop_corrupt_first_rows"] is True
    assert metadata["source"] == "buffer.pkl"
    assert len(metadata["sha256"]) == 64


def test_first_rows_are_left_out_on_request(publish):
    rows = recorded("CartPole-v1")
    dataset = imported(publish(rows), "CartPole-v1", drop_corrupt_first_rows=True).dataset
    kept = [b for a, b in pairwise(rows) if a.episode == b.episode]
    assert_same(kept, dataset)


def test_file_with_only_first_rows_is_not_emptied(publish):
    with pytest.raises(CwmError, match="leave out -o drop_corrupt_first_rows"):
        imported(publish(episodes_of((1, True))), "CartPole-v1", drop_corrupt_first_rows=True)


def planned(env, *, copied, episodes=6):
    """Record episodes in a copy of the environment, as the published planner did, or in itself."""
    rows = []
    original = environment(env).make()
    original.action_space.seed(0)
    row = recorded("CartPole-v1", episodes=1)[0]
    for episode in range(episodes):
        observation, _ = original.reset(seed=episode)
        acting = copy.deepcopy(original) if copied else original
        for _ in range(4):
            action = original.action_space.sample()
            following, reward, terminated, *_ = acting.step(action)
            rows.append(
                row._replace(
                    observation=observation,
                    action=action,
                    next_observation=following,
                    reward=float(reward),
                    terminated=terminated,
                    episode=episode,
                )
            )
            observation = following
            if terminated:
                break
    return rows


@pytest.mark.parametrize("env", ["Hopper-v5", "Reacher-v5", "Pusher-v5", "Ant-v5"])
def test_first_rows_of_a_rebuilt_environment_are_detected(publish, env):
    spec = environment(env)
    corrupt = imported(publish(planned(env, copied=True)), env).dataset
    assert corrupt_first_rows(spec, corrupt) == 6
    assert corrupt_first_rows(spec, imported(publish(planned(env, copied=False)), env).dataset) == 0


def test_first_rows_that_the_next_row_does_not_continue_are_detected(publish):
    rows = recorded("CartPole-v1")
    broken = [
        row._replace(next_observation=row.next_observation + 1) if index == 0 else row
        for index, row in enumerate(rows)
    ]
    spec = replace(environment("CartPole-v1"), restore=None)
    assert corrupt_first_rows(spec, imported(publish(broken), "CartPole-v1").dataset) == 1
    assert corrupt_first_rows(spec, imported(publish(rows), "CartPole-v1").dataset) == 0


def test_rows_of_another_version_are_not_called_corrupt(publish):
    rows = [row._replace(reward=row.reward + 1) for row in recorded("CartPole-v1")]
    dataset = imported(publish(rows), "CartPole-v1").dataset
    assert corrupt_first_rows(environment("CartPole-v1"), dataset) == 0


def test_stochastic_environment_has_no_corrupt_rows(publish):
    rows = recorded("Blackjack-v1", episodes=30)
    dataset = imported(publish(rows), "Blackjack-v1").dataset
    assert corrupt_first_rows(environment("Blackjack-v1"), dataset) == 0


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"obs": [np.zeros(3)] * 99}, r"observation in row 0 .*expected shape 4, found 3"),
        (
            {"obs": ["nothing"] * 99},
            r"observation in row 0 .*expected numbers, found a value of type str",
        ),
        ({"obs": [None] * 99}, r"observation in row 0 .*found nothing"),
        ({"obs": [[0.0, [1.0], 2.0, 3.0]] * 99}, r"observation in row 0 .*found a list of 1"),
        ({"actions": [2] * 99}, r"action in row 0 .*2 is out of bounds"),
        ({"actions": [0.5] * 99}, r"action in row 0 .*fractions"),
        ({"actions": [10**400] * 99}, r"action in row 0 .*found a value of type"),
        ({"actions": [gymnasium.spaces.Discrete(2)] * 99}, r"an object \(gymnasium\.\S*Discrete\)"),
        (
            {"next_obs": [np.zeros((2, 2))] * 99},
            r"next observation in row 0 .*expected shape 4, found 2x2",
        ),
        ({"obs": [[0.0, np.inf, 0.0, 0.0]] * 99}, r"observation in row 0 .*not finite"),
        (
            {"rewards": [np.nan] * 99},
            r"rewards has in row 0 \(counted from 0\) a value that is not finite",
        ),
        (
            {"dones": [0.5] * 99},
            r"dones has in row 0 \(counted from 0\) a value other than 0 and 1",
        ),
        ({"traj_starts": [0.5] * 99}, r"traj_starts has no whole number in row 0"),
        ({"rewards": [None] * 99}, "rewards must be one number"),
        ({"rewards": np.zeros(3)}, "rewards has 3 of"),
        ({"rewards": ["1"] * 99}, "rewards must be one number"),
        ({"traj_starts": np.full(99, 5)}, "traj_starts has 5 for row 0"),
        ({"traj_starts": np.arange(99) // 2}, "traj_starts has 1 for row 2"),
        ({"idx": 0}, "contains no transitions"),
        ({"idx": "9"}, "contains no transitions"),
        ({"idx": 10**30}, "obs has"),
        ({"obs": 3}, "obs is not a list"),
    ],
)
def test_invalid_buffers_are_rejected_in_one_line(publish, changes, reason):
    file = publish(episodes_of((4, True)), **changes)
    with pytest.raises(CwmError, match=reason) as refusal:
        imported(file, "CartPole-v1")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "not a replay buffer"),
        (b"id,reward\n1,2\n", "not a replay buffer"),
        (b"PK\3\4....", "a zip archive"),
        (pickle.dumps([1, 2]), "it contains no dict"),
        (pickle.dumps({"obs": []}), "it lacks next_obs"),
    ],
)
def test_other_files_are_rejected_in_one_line(tmp_path, content, reason):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CwmError, match=reason) as refusal:
        read_buffer(tmp_path / "file")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["missing", "."])
def test_missing_file_is_rejected(tmp_path, name):
    with pytest.raises(CwmError, match="a published"):
        read_buffer(tmp_path / name)


def test_endless_file_is_not_read():
    with pytest.raises(CwmError, match="it is a device"):
        read_buffer(Path("/dev/zero"))


def test_too_large_buffer_is_rejected(publish, monkeypatch):
    file = publish(episodes_of((4, True)))
    monkeypatch.setattr("cwm_formats.columns.MAX_NUMBERS", 4 * 9)
    assert len(imported(file, "CartPole-v1").dataset) == 4
    monkeypatch.setattr("cwm_formats.columns.MAX_NUMBERS", 4 * 9 - 1)
    with pytest.raises(CwmError, match="too many rows"):
        imported(file, "CartPole-v1")
    monkeypatch.setattr("cwm_published.buffer.MAX_BYTES", file.stat().st_size - 1)
    with pytest.raises(CwmError, match=r"it has [\d,]+ bytes"):
        read_buffer(file)


@pytest.mark.parametrize(
    "text, reason", [("x" * 1000, "a text has 1000"), ("x\0", "do not fit their space")]
)
def test_text_outside_the_space_is_rejected(publish, text, reason):
    row = recorded("RTFM-v0", episodes=1, max_steps=1)[0]
    rows = [row._replace(observation=(row.observation[0], text))]
    file = publish(rows, extra=lambda _: {"valid_actions": [0]})
    with pytest.raises(MisfitError, match=reason):
        imported(file, "RTFM-v0")


class Calls:
    """An object whose pickle calls a function by name."""

    def __init__(self, module, name, *arguments):
        self.module, self.name, self.arguments = module, name, arguments

    def __reduce__(self):
        return getattr(__import__(self.module, fromlist=["*"]), self.name), self.arguments


def attacks(marker: Path):
    """Yield pickles that would create a file if a name in them were called."""
    touch, path = f"touch {marker}", str(marker)
    code = f"open({path!r}, 'w')"
    yield "system", Calls("os", "system", touch)
    yield "popen", Calls("subprocess", "Popen", ["touch", path])
    yield "eval", Calls("builtins", "eval", code)
    yield "exec", Calls("builtins", "exec", code)
    yield "open", Calls("builtins", "open", path, "w")
    yield "import", Calls("builtins", "__import__", "this")
    yield "getattr", Calls("builtins", "getattr", Calls("builtins", "__import__", "os"), "system")
    yield "map", Calls("builtins", "list", Calls("builtins", "map", open, [path], ["w"]))
    yield "partial", Calls("functools", "partial", os.system, touch)
    yield "apply", Calls("functools", "reduce", open, [path, "w"])
    yield "numpy save", Calls("numpy", "save", path, 0)
    yield "numpy memmap", Calls("numpy", "memmap", path, "uint8", "w+", 0, 1)
    yield "numpy fromfile", Calls("numpy", "fromfile", "/dev/zero")
    yield "loads", Calls("pickle", "loads", pickle.dumps(Calls("os", "system", touch)))
    yield "shutil", Calls("shutil", "copyfile", "/etc/hostname", path)


def stack_programs(marker: Path):
    """Yield hand-written pickles with calls in forms that `pickle` does not write."""
    touch = f"touch {marker}".encode()
    yield b"cos\nsystem\n(S'" + touch + b"'\ntR."
    yield b"(S'" + touch + b"'\nios\nsystem\n."
    yield b"(cos\nsystem\nS'" + touch + b"'\no."
    yield b"cos\nsystem\n(S'" + touch + b"'\nt\x81."
    yield b"cos\nsystem\n(S'" + touch + b"'\nt}\x92."
    yield b"(dS'obs'\ncos\nsystem\n(S'" + touch + b"'\ntRs."
    yield b"cbuiltins\ndict\n)R(S'__setstate__'\ncos\nsystem\ndbS'" + touch + b"'\nb."
    yield b"cnumpy\nndarray\n(S'" + touch + b"'\nt\x81cos\nsystem\nb."
    yield b"cbuiltins\ngetattr\n(cos\nO\nS'system'\ntR(S'" + touch + b"'\ntR."
    yield b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(touch)]) + touch + b"\x85R."


def test_code_in_a_pickle_never_runs(publish, tmp_path):
    marker = tmp_path / "marker"
    rows = episodes_of((4, True))
    for name, attack in attacks(marker):
        for protocol in (0, 2, 4):
            alone = tmp_path / "alone.pkl"
            alone.write_bytes(pickle.dumps(attack, protocol))
            with pytest.raises(CwmError, match="it contains no dict"):
                read_buffer(alone)
            for column in ("obs", "actions"):
                file = publish(rows, protocol=protocol, **{column: [attack] * 4})
                with pytest.raises(MisfitError, match="an object"):
                    imported(file, "CartPole-v1")
            beside = publish(rows, protocol=protocol, extra=lambda _, a=attack: {"info": a})
            assert len(imported(beside, "CartPole-v1").dataset) == 4
            assert not marker.exists(), name
    assert "this" not in sys.modules


def test_code_never_runs_with_handwritten_pickles(tmp_path):
    marker = tmp_path / "marker"
    for program in stack_programs(marker):
        (tmp_path / "attack.pkl").write_bytes(program)
        with pytest.raises(CwmError, match="not a replay buffer"):
            read_buffer(tmp_path / "attack.pkl")
        assert not marker.exists(), program


def test_attacks_work_with_an_ordinary_unpickler(tmp_path):
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(dict(attacks(marker))["system"]))
    assert marker.exists()
    marker.unlink()
    pickle.loads(next(stack_programs(marker)))
    assert marker.exists()


def claims(shape, dtype="f8", data=b"", version=1):
    """Write an array with a false size."""
    kind = Calls("numpy", "dtype", dtype, False, True)
    from numpy._core.multiarray import _reconstruct

    class Array:
        def __reduce__(self):
            return _reconstruct, (np.ndarray, (0,), b"b"), (version, shape, kind, False, data)

    return Array()


@pytest.mark.parametrize(
    "array",
    [
        claims((10**12,)),
        claims((10**12, 10**12)),
        claims((-1,)),
        claims((4,), data=b"x" * 31),
        claims((4,), "O", data=b"x" * 32),
        claims((4,), "O", data=[1, 2]),
        claims((4,), "V8", data=b"x" * 32),
        claims((4,), "f8,f8", data=b"x" * 64),
        claims((4,), "U99999", data=b""),
        claims("4", data=b"x" * 32),
        claims((1,) * 99, data=b"x" * 8),
        claims((4,), "U2", data=b"\xff" * 32),
        [[[]] * 4] * 4,
        Calls("numpy", "zeros", 10**12),
        Calls("builtins", "bytearray", 10**12),
        Calls("numpy", "broadcast_to", 0, (10**12,)),
    ],
)
def test_arrays_with_false_claims_are_rejected(publish, array):
    file = publish(episodes_of((4, True)), obs=[array] * 4)
    with pytest.raises(MisfitError, match="the observation in row 0"):
        imported(file, "CartPole-v1")
    with pytest.raises(CwmError):
        read_buffer(publish(episodes_of((4, True)), rewards=array))


def layered(levels):
    """Write a list of two equal lists of two equal lists, and so on."""
    return b"]" + b"".join(b"q%c]h%ch%ce" % (n, n, n) for n in range(levels)).replace(b"]h", b"](h")


def paired(levels):
    """Write a tuple of two equal tuples, and so on: hashing it is endless."""
    return b")" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(levels))


@pytest.mark.parametrize(
    "content",
    [
        layered(90) + b".",
        b"}" + paired(90) + b"K\x01s.",
        b"(" + paired(90) + b"\x91.",
        b"\x8f(" + paired(90) + b"\x90.",
        b"\x8e" + struct.pack("<Q", 1 << 50) + b".",
        b"\x96" + struct.pack("<Q", 1 << 50) + b".",
        b"]r\xff\xff\xff\xff.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"].",
        b"(" * 100_000 + b".",
        b"]" * 100_000 + b"a" * 99_999 + b".",
        b"I" + b"9" * 100_000 + b"\n.",
        b"0.",
        b"1.",
        b"h\x05.",
        b"R.",
        b"Q.",
        b"\x82\x01.",
        b"}(K\x01u.",
        b"\x97.",
    ],
)
def test_growing_or_underflowing_pickles_are_rejected(tmp_path, content):
    (tmp_path / "bomb.pkl").write_bytes(content)
    with pytest.raises(CwmError, match="not a replay buffer"):
        read_buffer(tmp_path / "bomb.pkl")


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_truncated_file_is_rejected(publish, protocol):
    file = publish(episodes_of((2, True)), protocol=protocol)
    content = file.read_bytes()
    for length in range(0, len(content), 7):
        file.write_bytes(content[:length])
        with pytest.raises(CwmError, match="not a replay buffer"):
            read_buffer(file)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_damage_is_rejected_or_harmless(publish, protocol):
    file = publish(episodes_of((2, True)), protocol=protocol)
    content, rng = file.read_bytes(), random.Random(protocol)
    refused = 0
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file.write_bytes(damaged)
        try:
            assert fits(read_buffer(file), environment("CartPole-v1")) in (True, False)
        except CwmError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 20


def test_tensors_are_read_without_torch(tmp_path):
    torch = pytest.importorskip("torch")
    rows = recorded("CartPole-v1", episodes=1)
    states = torch.tensor(np.array([row.observation for row in rows]))
    file = tmp_path / "tensors.pkl"
    fields = {
        "obs": list(states),
        "next_obs": [torch.tensor(row.next_observation) for row in rows],
        "actions": [torch.tensor(int(row.action)) for row in rows],
        "rewards": torch.tensor([row.reward for row in rows]),
        "dones": torch.tensor([row.terminated for row in rows]),
        "traj_starts": torch.zeros(len(rows), dtype=torch.int32),
        "idx": len(rows),
    }
    file.write_bytes(pickle.dumps(fields))
    assert_same(rows, imported(file, "CartPole-v1").dataset)
    fields["obs"] = list(torch.zeros(4, len(rows)).T)
    file.write_bytes(pickle.dumps(fields))
    with pytest.raises(MisfitError, match="not dense"):
        imported(file, "CartPole-v1")


@pytest.mark.long
def test_imported_data_are_used_like_recorded_data(cwm, run, publish):
    file, poles = publish(recorded("CartPole-v1", episodes=8)), cwm.folder / "poles.npz"
    facts = json.loads(run(file, "--env", "CartPole-v1", "--out", poles, "--json").stdout)
    assert (facts["file"], facts["episodes"], facts["environment"]) == (
        str(poles),
        8,
        "CartPole-v1",
    )
    shown = CliRunner().invoke(app, ["data", "show", str(poles), "--json"])
    assert json.loads(shown.stdout).items() >= facts.items()
    (cwm.folder / "model.py").write_text(cartpole())
    options = ("--env", "CartPole-v1", "--dataset", "poles.npz", "--json")
    scores = json.loads(cwm.inside("evaluate", "model.py", *options, "--metric", "paper").stdout)
    assert scores["test"]["exact"] == scores["test"]["paper"] == 1
    found = cwm.inside("synthesize", *options, "--budget", "1", "--run", "run")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["completions"] == 1


def test_file_is_replaced_by_other_transitions_only_on_request(run, publish, tmp_path):
    rows = episodes_of((4, True), (3, True))
    file, kept = publish(rows), tmp_path / "kept.npz"
    command = (file, "--env", "CartPole-v1", "--out", kept)
    kept.write_text("mine")
    refused = run(*command)
    assert (refused.exit_code, kept.read_text()) == (1, "mine")
    assert "replace it with --force" in refused.stderr
    assert run(*command, "--force").exit_code == 0
    assert run(*command).exit_code == 0
    other = run(*command, "-o", "drop_corrupt_first_rows=true")
    assert other.exit_code == 1
    assert "contains other transitions" in other.stderr
    assert len(Dataset.load(kept)) == len(rows)


def test_buffer_is_never_replaced_by_its_import(run, publish):
    file = publish(episodes_of((4, True)))
    content = file.read_bytes()
    refused = run(file, "--env", "CartPole-v1", "--out", file, "--force")
    assert (refused.exit_code, file.read_bytes()) == (1, content)
    assert "is the imported file itself" in refused.stderr


def test_file_of_an_older_version_gets_a_hint_on_where_it_fits(run, publish):
    rows = recorded("InvertedDoublePendulum-v4", episodes=1)
    refused = run(publish(rows), "--env", "InvertedDoublePendulum-v5")
    assert refused.exit_code == 1
    assert "expected shape 9, found 11" in refused.stderr
    assert "--env InvertedDoublePendulum-v4" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_environment_arguments_are_taken_from_the_recording(run, publish, tmp_path):
    arguments = {"include_cfrc_ext_in_observation": False}
    ant = environment("Ant-v5")
    rows = list(record(ant, env_args=arguments, policy="random", episodes=1, max_steps=5))
    file = publish(rows, marks_time=False)
    assert "expected shape 105, found 27" in run(file, "--env", "Ant-v5").stderr
    given = run(file, "--env", "Ant-v5", "--env-arg", "include_cfrc_ext_in_observation=false")
    assert given.exit_code == 0
    assert Dataset.load(tmp_path / "buffer.npz").metadata["env_args"] == arguments


def test_corrupt_rows_are_noted_with_the_option_that_removes_them(run, publish):
    file = publish(planned("Hopper-v5", copied=True))
    noted = run(file, "--env", "Hopper-v5")
    assert noted.exit_code == 0
    assert "-o drop_corrupt_first_rows=true leaves out" in noted.stderr
    mended = run(file, "--env", "Hopper-v5", "-o", "drop_corrupt_first_rows=true", "--force")
    assert (mended.exit_code, mended.stderr) == (0, "")


def test_end_at_a_time_limit_is_noted(run, publish):
    done = run(publish(episodes_of((100, True), (3, True))), "--env", "CartPole-v1")
    assert done.exit_code == 0
    assert "read as truncated" in done.stderr
