"""Read and write Minari datasets: spaces of every kind, third-party files, round trips."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from cwm_cli import export_transitions, import_transitions, synthesize
from cwm_cli.cli import app
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from notes import Notes

minari = pytest.importorskip("minari")
from minari.data_collector.episode_buffer import EpisodeBuffer  # noqa: E402


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """Use separate folders for Minari's datasets and for work."""
    folder, work = tmp_path / "minari", tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    monkeypatch.chdir(work)
    return folder


def recorded(env, **options):
    options = {"policy": "random", "episodes": 3, "test_episodes": 2, "max_steps": 15} | options
    return record(environment(env), **options)


def stacked(space, values):
    """Combine values in the form of Minari's buffers."""
    if isinstance(space, spaces.Dict):
        return {k: stacked(part, [v[k] for v in values]) for k, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(p, [v[n] for v in values]) for n, p in enumerate(space.spaces))
    return list(values) if isinstance(space, spaces.Text) else np.array(values)


def written(env, name, *, episodes=6, most=60, data_format="hdf5", act=None, **about):
    """Record episodes of a Gymnasium environment with Minari itself."""
    buffers = []
    for seed in range(episodes):
        seen, _ = env.reset(seed=seed)
        env.action_space.seed(seed)
        seen, done, rest = [seen], [], []
        while len(done) < most and not (rest and (rest[-1][1] or rest[-1][2])):
            done.append(env.action_space.sample())
            following, *said, _ = env.step(done[-1])
            seen.append(following)
            rest.append(said)
        rewards, terminations, truncations = map(list, zip(*rest, strict=True))
        buffers.append(
            EpisodeBuffer(
                seed=seed,
                observations=stacked(env.observation_space, seen),
                actions=stacked(env.action_space, done),
                rewards=rewards,
                terminations=terminations,
                truncations=truncations,
                infos={},
            )
        )
    with pytest.warns(UserWarning):
        minari.create_dataset_from_buffers(name, buffers, env=env, data_format=data_format, **about)
    return buffers


@pytest.fixture(scope="module")
def everything():
    gymnasium.register("Everything-v0", "every_space:Everything")
    yield
    gymnasium.registry.pop("Everything-v0")


@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize(
    "env", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "RTFM-v0", "Everything-v0", "Catch-v0"]
)
def test_export_and_import_restore_the_dataset(everything, env, kind):
    rows = recorded(env)
    export_transitions(rows, "minari", out="minari:tried/it-v0", options={"format": kind})
    back = import_transitions("minari:tried/it-v0").dataset
    assert back.digest == rows.digest
    changed = {k: v for k, v in back.metadata.items() if rows.metadata.get(k) != v}
    assert changed == {"source": "minari:tried/it-v0"}


def test_minari_loads_an_export_and_makes_its_environment(kept):
    rows = recorded("FrozenLake-v1", env_args={"is_slippery": False})
    made = export_transitions(rows, "minari", out="minari:lake/random-v3", observer=(n := Notes()))
    assert n.words == []
    assert made.path == kept / "lake" / "random-v3"
    assert list(minari.list_local_datasets()) == ["lake/random-v3"]
    loaded = minari.load_dataset("lake/random-v3")
    assert (loaded.total_steps, loaded.total_episodes) == (len(rows), 5)
    assert loaded.recover_environment().unwrapped.desc.shape == (4, 4)
    assert loaded.env_spec.kwargs["is_slippery"] is False
    assert loaded.storage.metadata["algorithm_name"] == "random"
    assert not {"author", "code_permalink"} & loaded.storage.metadata.keys()
    about = list(loaded.storage.get_episode_metadata(range(5)))
    assert [each["split"] for each in about] == ["train"] * 3 + ["test"] * 2
    for episode in loaded:
        rows_of = rows[rows.columns["episodes"] == about[episode.id]["episode"]]
        np.testing.assert_array_equal(episode.actions, rows_of.columns["actions"])
        np.testing.assert_array_equal(
            episode.observations[1:], rows_of.columns["next_observations"]
        )


def test_folder_without_version_gets_one(tmp_path, monkeypatch):
    rows = recorded("CartPole-v1")
    assert export_transitions(rows, "minari").path.name == "CartPole-v1"
    made = export_transitions(rows, "minari", out=tmp_path / "pole")
    assert made.path == tmp_path / "pole-v0"
    for place in (made.path, made.path / "data"):
        found = import_transitions(place, out=tmp_path / f"{place.name}.npz")
        assert found.dataset.digest == rows.digest
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert minari.load_dataset("pole-v0").total_steps == len(rows)


def test_rows_that_do_not_follow_each_other_become_separate_episodes():
    rows = recorded("CartPole-v1")
    order = np.random.default_rng(0).permutation(len(rows))
    picked, notes = rows[order], Notes()
    export_transitions(picked, "minari", out="minari:picked-v0", observer=notes)
    assert "some rows do not continue the row before: 5 episodes become" in notes.words[0]
    assert minari.load_dataset("picked-v0").total_steps == len(rows)
    assert import_transitions("minari:picked-v0").dataset.digest == picked.digest


@pytest.mark.parametrize("kind", ["hdf5", "arrow"])
@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4", "Pendulum-v1", "Everything-v0"])
def test_minari_recording_is_imported_without_naming_the_environment(everything, name, kind):
    env = gymnasium.make(name)
    buffers = written(env, "others/random-v0", data_format=kind)
    result = import_transitions("minari:others/random-v0")
    rows = result.dataset
    assert result.file.name == "random-v0.npz"
    assert rows.metadata["env"] == name
    assert sorted(set(rows.test.columns["episodes"].tolist())) == [4]
    place = 0
    for number, buffer in enumerate(buffers):
        for step in range(len(buffer.rewards)):
            row = rows.row(place)
            assert (row.episode, row.reward) == (number, float(np.float64(buffer.rewards[step])))
            ends = buffer.terminations[step], buffer.truncations[step]
            assert (row.terminated, row.truncated) == ends
            np.testing.assert_equal(row.action, buffer.actions[step])
            place += 1
    assert place == len(rows)
    assert Dataset.load(result.file).digest == rows.digest


def test_environment_arguments_are_imported():
    env = gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="rgb_array")
    written(env, "lake-v0")
    metadata = import_transitions("minari:lake-v0").dataset.metadata
    assert metadata["env_args"].items() >= {"is_slippery": False}.items()
    assert "render_mode" not in metadata["env_args"]


def test_valid_actions_are_imported_from_infos():
    rows = recorded("RTFM-v0")
    export_transitions(rows, "minari", out="minari:masked-v0")
    loaded = minari.load_dataset("masked-v0")
    assert loaded[0].infos["action_mask"].shape == (len(loaded[0]) + 1, 5)
    with pytest.raises(CwmError, match=r"infos\['action_mask'\] with the valid actions"):
        bare = Dataset(
            {k: v for k, v in rows.columns.items() if k != "valid_actions"},
            rows.observation_space,
            rows.action_space,
            rows.metadata,
        )
        export_transitions(bare, "minari", out="minari:bare-v0")
        import_transitions("minari:bare-v0")


def spoilt(kept, name="it-v0", **changes):
    """Change the metadata of a dataset that was exported."""
    file = kept / name / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refusal(file, env=None, **options):
    with pytest.raises(CwmError) as refused:
        import_transitions(file, env, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_unsupported_space_is_named_with_supported_ones(kept):
    export_transitions(recorded("CartPole-v1"), "minari", out="minari:it-v0")
    graph = {"type": "Dict", "subspaces": {"a": {"type": "Graph"}}}
    spoilt(kept, observation_space=json.dumps(graph))
    said = refusal("minari:it-v0")
    assert "observations of a space Graph are not supported" in said
    assert "Discrete, MultiDiscrete, MultiBinary, Box" in said


def test_invalid_sources_are_rejected_in_one_line(kept, tmp_path):
    rows = recorded("CartPole-v1")
    export_transitions(rows, "minari", out="minari:it-v0")
    assert "did you mean minari:it-v0?" in refusal("minari:in-v0")
    assert "`minari download D4RL/door/human-v2` fetches it" in refusal("minari:D4RL/door/human-v2")
    assert "'a b' is not a valid name of a Minari dataset" in refusal("minari:a b", "CartPole-v1")
    assert "observations: expected shape 3, found 4" in refusal("minari:it-v0", "Pendulum-v1")
    spoilt(kept, minari_version="99.0.0")
    assert "does not support the dataset" in refusal("minari:it-v0")
    spoilt(kept, minari_version=minari.__version__, total_steps=10**12)
    assert "too many steps" in refusal("minari:it-v0")
    spoilt(kept, total_steps=len(rows), env_spec=None, cwm=None)
    assert "does not name its environment: add --env ID" in refusal("minari:it-v0")
    (kept / "it-v0" / "data" / "main_data.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64))
    assert "Minari cannot read minari:it-v0" in refusal("minari:it-v0", "CartPole-v1")
    (kept / "it-v0" / "data" / "metadata.json").write_text("[")
    assert "metadata.json" in refusal("minari:it-v0", "CartPole-v1")


def test_names_in_metadata_are_never_imported_or_created(kept, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    (tmp_path / "hostile.py").write_text(f"open({str(marker)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    export_transitions(recorded("CartPole-v1"), "minari", out="minari:it-v0")
    file = kept / "it-v0" / "data" / "metadata.json"
    about = json.loads(file.read_text())
    spec = json.loads(about["env_spec"]) | {"entry_point": "hostile:Environment"}
    file.write_text(json.dumps(about | {"env_spec": json.dumps(spec)}))
    assert len(import_transitions("minari:it-v0").dataset)
    named = {"cwm": None, "env_spec": json.dumps(spec | {"id": "hostile:CartPole-v1"})}
    file.write_text(json.dumps(about | named))
    assert "which imports a Python module" in refusal("minari:it-v0")
    bare = {k: v for k, v in about.items() if k != "observation_space"}
    file.write_text(json.dumps(bare | {"env_spec": json.dumps(spec)}))
    assert "lacks the space of its observations" in refusal("minari:it-v0")
    assert not marker.exists()


def test_nan_is_rejected_and_out_of_bounds_values_are_noted(tmp_path):
    rows = recorded("Pendulum-v1")
    rows.columns["rewards"][3] = np.nan
    export_transitions(rows, "minari", out="minari:nan-v0")
    assert "nan is not a finite number (row 3)" in refusal("minari:nan-v0")
    rows.columns["rewards"][3] = 0
    rows.columns["actions"][2] = 2.5
    export_transitions(rows, "minari", out="minari:far-v0", observer=(notes := Notes()))
    import_transitions("minari:far-v0", observer=notes)
    assert notes.words == ["1 value of actions is outside the bounds of their space"]


@pytest.mark.parametrize("value", ["Infinity", "NaN", "1e999"])
def test_metadata_with_nan_or_infinity_are_rejected(kept, value):
    export_transitions(recorded("CartPole-v1"), "minari", out="minari:it-v0")
    file = kept / "it-v0" / "data" / "metadata.json"
    about = json.loads(file.read_text())
    about["cwm"]["metadata"]["reset_seeds"] = ["SEED"]
    file.write_text(json.dumps(about).replace('"SEED"', value))
    assert "has NaN or Infinity in its part 'cwm'" in refusal("minari:it-v0")


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"episode": 1.5}, "1.5 is not an episode number"),
        ({"episode": -1}, "-1 is not an episode number"),
        ({"episode": "x"}, "'x' is not an episode number"),
        ({"split": "dev"}, "'dev' is neither train nor test"),
    ],
)
def test_wrong_episode_number_or_split_is_rejected(kept, changes, reason):
    options = ["format=arrow"]
    export_transitions(recorded("CartPole-v1"), "minari", out="minari:it-v0", options=options)
    found = minari.load_dataset("it-v0")
    found.storage.update_episode_metadata([changes], [1])
    assert f"metadata of episode 1: {reason}" in refusal("minari:it-v0")


def test_metadata_of_an_episode_must_be_an_object(kept):
    options = ["format=arrow"]
    export_transitions(recorded("CartPole-v1"), "minari", out="minari:it-v0", options=options)
    (kept / "it-v0" / "data" / "1" / "metadata.json").write_text('"dev"')
    assert "the metadata of an episode are not an object" in refusal("minari:it-v0")


@pytest.mark.parametrize("part", ["observations", "actions", "rewards", "terminations"])
def test_number_in_place_of_rows_is_rejected(kept, part):
    h5py = pytest.importorskip("h5py")
    export_transitions(recorded("CartPole-v1"), "minari", out="minari:it-v0")
    with h5py.File(kept / "it-v0" / "data" / "main_data.hdf5", "r+") as file:
        del file[f"episode_0/{part}"]
        file[f"episode_0/{part}"] = 1.0
    assert "it-v0" in refusal("minari:it-v0")


def test_end_flags_must_be_0_or_1(kept):
    h5py = pytest.importorskip("h5py")
    export_transitions(recorded("CartPole-v1"), "minari", out="minari:it-v0")
    with h5py.File(kept / "it-v0" / "data" / "main_data.hdf5", "r+") as file:
        marks = file["episode_0/terminations"][:].astype(np.int8)
        marks[2] = 2
        del file["episode_0/terminations"]
        file["episode_0/terminations"] = marks
    assert "terminations: 2 is not from 0 to 1 (row 2)" in refusal("minari:it-v0")


def test_commands_write_and_read_a_dataset(kept):
    rows = recorded("CartPole-v1")
    rows.save(file := kept.parent / "work" / "pole.npz")

    def run(*words, code=0):
        answer = CliRunner().invoke(app, ["data", *map(str, words)])
        assert answer.exit_code == code, answer.output
        return answer

    said = json.loads(run("export", file, "--to", "minari", "--json").stdout)
    assert (said["file"], said["digest"]) == ("pole-v0", rows.digest)
    again = run("export", file, "--to", "minari", code=1)
    assert "pole-v0 already exists: replace it with --force" in again.stderr
    run("export", file, "--to", "minari", "--force")
    found = json.loads(run("import", "pole-v0", "--out", "back.npz", "--json").stdout)
    assert found["digest"] == rows.digest
    assert (
        "unknown exporter 'minary': did you mean minari?"
        in run("export", file, "--to", "minary", code=1).stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, env_args, episodes",
    [("CartPole-v1", {}, 20), ("FrozenLake-v1", {"is_slippery": False}, 150)],
)
def test_programs_are_found_from_minari_recordings(tmp_path, name, env_args, episodes):
    with gymnasium.make(name, **env_args) as env:
        written(env, "tried/random-v0", episodes=episodes, most=200)
    found = import_transitions("minari:tried/random-v0")
    result = synthesize(name, dataset=found.file, run=tmp_path / "run", budget=5)
    assert result.scores.test.accuracy == 1
