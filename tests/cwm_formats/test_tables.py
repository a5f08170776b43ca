"""Transitions in CSV and Parquet: round trips, foreign tables, and their errors."""

import gzip
import json

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

from cwm_cli import export_transitions, import_transitions
from cwm_cli.cli import app
from cwm_cli.commands.recording import record
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from notes import Notes

parquet = pytest.importorskip("pyarrow.parquet")
import pyarrow  # noqa: E402

POLE = ("--env", "CartPole-v1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(env, **options):
    options = {"policy": "random", "episodes": 3, "test_episodes": 2, "max_steps": 15} | options
    return record(environment(env), **options)


@pytest.mark.parametrize("name", ["it.csv", "it.csv.gz", "it.parquet"])
@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "RTFM-v0", "Pendulum-v1", "HalfCheetah-v5"],
)
def test_export_and_import_restore_the_dataset(env, name):
    rows = recorded(env)
    export_transitions(rows, name.split(".")[1], out=name)
    back = import_transitions(name, env, out="back.npz").dataset
    assert back.digest == rows.digest
    if name.endswith("parquet"):
        assert import_transitions(name, out="again.npz").dataset.digest == rows.digest
        assert back.metadata["policy"] == "random"


def test_equal_rows_give_equal_bytes(folder):
    rows = recorded("CartPole-v1")
    for name in ("one.csv.gz", "two.csv.gz"):
        export_transitions(rows, "csv", out=name)
    assert (folder / "one.csv.gz").read_bytes() == (folder / "two.csv.gz").read_bytes()


def test_exported_table_has_the_documented_columns(folder):
    rows = recorded("CartPole-v1")
    export_transitions(rows, "parquet", out="it.parquet")
    table = parquet.read_table("it.parquet")
    assert table.column_names[:5] == [*(f"observation_{n}" for n in range(4)), "action"]
    np.testing.assert_array_equal(table["reward"].to_numpy(), rows.columns["rewards"])
    assert table["split"].to_pylist() == ["test" if s else "train" for s in rows.columns["split"]]
    export_transitions(rows, "csv", out="it.csv")
    header, first, *_ = (folder / "it.csv").read_text().splitlines()
    row = dict(zip(header.split(","), first.split(","), strict=True))
    assert (row["episode"], row["step"], row["terminated"], row["split"]) == (
        "0",
        "0",
        "false",
        "train",
    )


def logged(*, episodes=6, seed=0):
    """Log CartPole with a line per step, without next observations."""
    lines = []
    with gymnasium.make("CartPole-v1") as env:
        env.action_space.seed(seed)
        for episode in range(episodes):
            seen, over = env.reset(seed=episode)[0], False
            step = 0
            while not over:
                action = env.action_space.sample()
                after, reward, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
                lines.append([*map(float, seen), int(action), reward, over, episode, step])
                seen, step = after, step + 1
    return lines


HEADS = ["x", "x_dot", "theta", "theta_dot", "push", "r", "over", "ep", "n"]
MAP = {
    "observation": HEADS[:4],
    "action": "push",
    "reward": "r",
    "done": "over",
    "episode": "ep",
    "step": "n",
}


def write(file, heads, lines, mark=","):
    words = [mark.join(map(str, line)) for line in [heads, *lines]]
    file.write_text("\n".join(words) + "\n")
    return file


@pytest.mark.parametrize("how", ["json", "toml", "option", "shuffled"])
def test_map_names_the_columns_of_any_table(folder, how):
    lines, said = logged(), Notes()
    if how == "shuffled":
        lines = [lines[n] for n in np.random.default_rng(0).permutation(len(lines))]
    file = write(folder / "log.csv", HEADS, lines)
    (folder / "map.json").write_text(json.dumps(MAP))
    (folder / "map.toml").write_text("\n".join(f"{k} = {json.dumps(v)}" for k, v in MAP.items()))
    options = [f"map=map.{how}"] if how in ("json", "toml") else [f"columns={json.dumps(MAP)}"]
    rows = import_transitions(file, "CartPole-v1", options=options, observer=said).dataset
    assert len(rows) == len(lines) - 6
    assert rows.columns["observations"].dtype == np.float32
    same = rows.columns["episodes"][1:] == rows.columns["episodes"][:-1]
    if how != "shuffled":
        seen, after = rows.columns["observations"], rows.columns["next_observations"]
        np.testing.assert_array_equal(seen[1:][same], after[:-1][same])
    assert said.words == [
        "the next row is taken as the next observation: the last row of each of 6 episodes is "
        "left out, with 6 ends: add columns with the next observation to keep them",
    ]


@pytest.mark.parametrize("text", ["reward = " + "9" * 5000, "reward = " + "[" * 5000, "a = 1 2"])
def test_invalid_toml_map_is_rejected_in_one_line(folder, text):
    file = write(folder / "log.csv", HEADS, logged(episodes=1))
    (folder / "map.toml").write_text(text)
    with pytest.raises(CwmError, match=r"map\.toml is not valid TOML") as refused:
        import_transitions(file, "CartPole-v1", options=["map=map.toml"])
    assert len(str(refused.value)) < 300


def test_link_to_itself_is_rejected_in_one_line(folder):
    (folder / "loop.csv").symlink_to("loop.csv")
    with pytest.raises(CwmError, match=r"loop\.csv cannot be read"):
        import_transitions("loop.csv", "CartPole-v1")


@pytest.mark.parametrize(
    "heads",
    [
        ["obs_0", "obs_1", "obs_2", "obs_3", "action"],
        ["Obs[0]", "Obs[1]", "Obs[2]", "Obs[3]", "Action"],
        ["obs.x", "obs.v", "obs.angle", "obs.spin", "act"],
        ["obs.x", "obs.v", "obs.angle", "obs.spin", "action", *(f"obs_next.{n}" for n in "xvas")],
        ["state0", "state1", "state2", "state3", "actions_0"],
        ["Cart Position", "cart_velocity", "Pole Angle", "Pole Angular Velocity", "action"],
    ],
)
def test_usual_column_names_are_known(folder, heads):
    lines = [line[:5] + line[: len(heads) - 5] + line[5:] for line in logged()]
    file = write(folder / "log.csv", [*heads, "reward", "done", "episode", "step"], lines)
    rows = import_transitions(file, "CartPole-v1").dataset
    follows = len(heads) > 5
    seen = np.array([line[:4] for line in lines], np.float32)
    np.testing.assert_array_equal(rows.columns["observations"][0], seen[0])
    np.testing.assert_array_equal(rows.columns["next_observations"][0], seen[0 if follows else 1])
    assert len(rows) == len(lines) - (0 if follows else 6)


def test_ends_separate_episodes_without_numbers(folder):
    lines, said = [line[:7] for line in logged()], Notes()
    heads = ["obs_0", "obs_1", "obs_2", "obs_3", "action", "reward", "done"]
    file = write(folder / "log.csv", heads, lines)
    rows = import_transitions(file, "CartPole-v1", observer=said).dataset
    assert sorted(set(rows.columns["episodes"].tolist())) == list(range(6))
    assert said.words[0] == "no column episode: a new episode begins after each row that ended one"


def changed(folder, change, name="bad.csv", env="CartPole-v1"):
    """Export a table, change its text, and return the error of its import."""
    rows = recorded(env)
    export_transitions(rows, "csv", out="good.csv", force=True)
    lines = (folder / "good.csv").read_text().splitlines()
    (folder / name).write_text(change(lines), encoding="utf-8")
    with pytest.raises(CwmError) as refused:
        import_transitions(name, env)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def cell(line, column, value):
    """Change one cell of a line."""

    def change(lines):
        words = lines[line - 1].split(",")
        words[lines[0].split(",").index(column)] = value
        return "\n".join([*lines[: line - 1], ",".join(words), *lines[line:]])

    return change


@pytest.mark.parametrize(
    "line, column, value, reason",
    [
        (7, "reward", "lots", "'lots' is not a number"),
        (2, "reward", "", "the cell is empty"),
        (3, "observation_1", "nan", "nan is not a finite number"),
        (4, "action", "5", "5 is not from 0 to 1"),
        (4, "action", "0.5", "0.5 is not a whole number"),
        (5, "terminated", "maybe", "'maybe' is neither true nor false"),
        (6, "split", "dev", "'dev' is neither train nor test"),
        (6, "episode", "", "the cell is empty"),
        (6, "episode", "1.5", "1.5 is not a whole number"),
        (6, "episode", "-1", "-1 is not a valid episode number"),
        (6, "split", "2", "'2' is neither train nor test"),
        (6, "split", "", "the cell is empty"),
        (3, "reward", "inf", "inf is not a finite number"),
        (3, "reward", "1_000", "'1_000' is not a number"),
        (3, "reward", "\u0661", "'\u0661' is not a number"),
        (4, "action", "9" * 5000, "inf is not a finite number"),
        (5, "terminated", "2", "'2' is neither true nor false"),
        (5, "terminated", "", "the cell is empty"),
        (5, "truncated", "", "the cell is empty"),
    ],
)
def test_bad_cell_is_named_by_line_and_column(folder, line, column, value, reason):
    said = changed(folder, cell(line, column, value))
    assert said == f"bad.csv: {reason} (line {line}, column {column}); correct that cell"


@pytest.mark.parametrize(
    "steps, reason",
    [
        ([0, 1, 1, 2], r"step 1 follows step 1 in line 3 \(line 4, column n\)"),
        ([0, 1, 2, 4], r"step 4 follows step 2 in line 4 \(line 5, column n\)"),
        ([0.5, 0.5, 1.2, 1.9], r"step 0.5 follows step 0.5 in line 2 \(line 3, column n\)"),
    ],
)
def test_repeated_and_missing_steps_are_rejected(folder, steps, reason):
    lines = [[0.0, 0.0, 0.0, 0.0, 0, 1.0, False, 0, step] for step in steps]
    file = write(folder / "log.csv", HEADS, lines)
    with pytest.raises(CwmError, match=reason):
        import_transitions(file, "CartPole-v1", options={"columns": MAP})


@pytest.mark.parametrize("steps", [[0, 4, 8, 12], [0.0, 0.02, 0.05, 0.06]])
def test_steps_may_be_times(folder, steps):
    lines = [[0.0, 0.0, 0.0, 0.0, 0, 1.0, False, 0, step] for step in steps]
    file = write(folder / "log.csv", HEADS, lines)
    assert len(import_transitions(file, "CartPole-v1", options={"columns": MAP}).dataset) == 3


def test_unused_columns_are_noted(folder):
    lines, said = [[*line, 7] for line in logged(episodes=1)], Notes()
    file = write(folder / "log.csv", [*HEADS, "weather"], lines)
    import_transitions(file, "CartPole-v1", options={"columns": MAP}, observer=said)
    assert said.words[0] == "unused columns: weather"
    file = write(folder / "log.csv", [*HEADS, "time"], lines)
    columns = {role: names for role, names in MAP.items() if role != "step"}
    import_transitions(file, "CartPole-v1", options={"columns": columns}, observer=said, force=True)
    assert """-o columns='{"step": "time"}'""" in " ".join(said.words)


def test_value_out_of_bounds_is_named_by_its_line(folder):
    lines, said = logged(episodes=1), Notes()
    lines[3][0] = 99.0
    file = write(folder / "log.csv", HEADS, lines)
    import_transitions(file, "CartPole-v1", options={"columns": MAP}, observer=said)
    assert said.words[-1].endswith("outside the bounds of their space (first: 99 in line 5)")


def test_missing_component_has_its_documented_name(folder):
    said = changed(folder, lambda lines: "\n".join(lines).replace("observation_2", "angel"))
    assert "bad.csv has no column Pole Angle (observation_2) (its columns: " in said


def test_end_in_the_middle_of_an_episode_is_noted(folder):
    lines, said = logged(episodes=1), Notes()
    lines[4][6] = True
    file = write(folder / "log.csv", HEADS, lines)
    import_transitions(file, "CartPole-v1", options={"columns": MAP}, observer=said)
    assert said.words[0].startswith(
        "1 rows end an episode, but more rows of the same episode follow"
    )


def test_ambiguous_column_names_are_rejected_unless_one_is_chosen(folder):
    export_transitions(recorded("CartPole-v1"), "csv", out="good.csv")
    text = (folder / "good.csv").read_text()
    (folder / "bad.csv").write_text("".join(f"{line},0\n" for line in text.splitlines()))
    twice = (folder / "bad.csv").read_text().replace("split,0\n", "split,Action\n", 1)
    (folder / "bad.csv").write_text(twice)
    with pytest.raises(CwmError, match="has columns 'action' and 'Action' with the same meaning"):
        import_transitions("bad.csv", "CartPole-v1")
    chosen = {"columns": {"action": "action"}}
    assert len(import_transitions("bad.csv", "CartPole-v1", options=chosen).dataset)


@pytest.mark.parametrize(
    "column, value, reason",
    [
        ("terminated", 2, "2 is not from 0 to 1"),
        ("truncated", 0.5, "0.5 is not a whole number"),
        ("episode", 1.5, "1.5 is not a whole number"),
        ("reward", float("inf"), "inf is not a finite number"),
        ("split", "", "the cell is empty"),
    ],
)
def test_bad_value_in_parquet_is_named_by_row_and_column(column, value, reason):
    export_transitions(recorded("CartPole-v1"), "parquet", out="good.parquet")
    columns = parquet.read_table("good.parquet").to_pydict()
    columns[column][3] = value
    if column in ("terminated", "truncated"):
        columns[column] = [float(cell) for cell in columns[column]]
    parquet.write_table(pyarrow.table(columns), "bad.parquet")
    with pytest.raises(CwmError) as refused:
        import_transitions("bad.parquet", "CartPole-v1")
    where = f"row 3 (counted from 0), column {column}"
    assert str(refused.value) == f"bad.parquet: {reason} ({where}); correct that cell"


def test_all_missing_columns_are_named_with_available_ones(folder):
    def change(lines):
        return "\n".join([lines[0].replace("reward", "rewrad").replace("action", "a"), *lines[1:]])

    said = changed(folder, change)
    assert "bad.csv has no columns action, reward (its columns: observation_0, " in said
    assert "(perhaps rewrad for reward)" in said


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda lines: "", "is empty"),
        (lambda lines: lines[0], "has a header but no rows"),
        (lambda lines: lines[0].replace("reward", "action"), "two columns called 'action'"),
        (
            lambda lines: "\n".join([*lines[:2], lines[2] + ",1"]),
            "bad.csv: expected 15 cells, found 16 (line 3)",
        ),
        (lambda lines: "PK\0\1", "is not a text file"),
    ],
)
def test_table_without_transitions_is_rejected_in_one_line(folder, change, reason):
    assert reason in changed(folder, change)


def test_spreadsheet_formats_are_read(folder):
    rows = recorded("Pendulum-v1")
    export_transitions(rows, "csv", out="it.csv")
    text = (folder / "it.csv").read_text()
    german = text.replace(",", ";").replace(".", ",")
    for name, content in {
        "bom.csv": b"\xef\xbb\xbf" + text.encode(),
        "wide.csv": text.encode("utf-16"),
        "german.csv": german.encode(),
        "tabs.tsv": text.replace(",", "\t").encode(),
        "lines.csv": text.replace("\n", "\r\n\r\n").encode(),
        "packed.csv.gz": gzip.compress(text.encode()),
    }.items():
        (folder / name).write_bytes(content)
        assert import_transitions(name, "Pendulum-v1").dataset.digest == rows.digest, name


def test_lists_in_parquet_are_components(folder):
    rows = recorded("CartPole-v1")
    lists = {
        "observation": rows.columns["observations"].tolist(),
        "next_observation": rows.columns["next_observations"].tolist(),
        "action": rows.columns["actions"],
        "reward": rows.columns["rewards"],
        "terminated": rows.columns["terminations"],
        "episode": [f"run {n}" for n in rows.columns["episodes"]],
    }
    parquet.write_table(pyarrow.table(lists), "lists.parquet")
    found = import_transitions("lists.parquet", "CartPole-v1").dataset
    np.testing.assert_array_equal(found.columns["observations"], rows.columns["observations"])
    np.testing.assert_array_equal(found.columns["episodes"], rows.columns["episodes"])


def test_files_without_a_table_are_rejected(folder):
    (folder / "bad.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    (folder / "bad.csv.gz").write_bytes(b"\x1f\x8b\x08\0")
    for name, reason in {
        "bad.parquet": "is not a Parquet file, or it is damaged",
        "bad.csv.gz": "is a damaged gzip file",
        "none.csv": "there is no none.csv",
        "none.parquet": "there is no file none.parquet",
    }.items():
        with pytest.raises(CwmError, match=reason):
            import_transitions(name, "CartPole-v1")
    with pytest.raises(CwmError, match="does not name its environment: add --e"):
        import_transitions("it.csv")
    export_transitions(recorded("RTFM-v0"), "csv", out="masked.csv")
    for names, reason in {
        ("a",): "there are 5 actions, but the map of columns has 1 names for valid_action",
        tuple("abcde"): "masked.csv has no columns a, b, c, d, e",
    }.items():
        with pytest.raises(CwmError, match=reason):
            options = {"columns": {"valid_action": list(names)}}
            import_transitions("masked.csv", "RTFM-v0", options=options)
    with pytest.raises(
        CwmError, match="unknown part of the map of columns 'rewards': did you mean"
    ):
        export_transitions(recorded("CartPole-v1"), "csv", out="it.csv")
        import_transitions("it.csv", "CartPole-v1", options={"columns": {"rewards": "r"}})


def test_pictures_cannot_be_columns_of_a_table(folder):
    with pytest.raises(CwmError, match="observations are pictures, which do not fit into a table"):
        export_transitions(recorded("Catch-v0", max_steps=3), "csv")
    assert list(folder.iterdir()) == []


def test_commands_write_and_read_a_table(folder):
    recorded("CartPole-v1").save(folder / "pole.npz")

    def run(*words, code=0):
        answer = CliRunner().invoke(app, ["data", *words])
        assert answer.exit_code == code, answer.output
        return answer

    digest = json.loads(run("show", "pole.npz", "--json").stdout)["digest"]
    assert "pole.csv" in run("export", "pole.npz", "--to", "csv").stdout
    found = run("import", "pole.csv", *POLE, "--out", "back.npz", "--json")
    assert json.loads(found.stdout)["digest"] == digest
    assert "add --env ID" in run("import", "pole.csv", code=1).stderr
