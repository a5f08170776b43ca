import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cwm_cli.cli import app
from cwm_cli.commands.collect import collect
from cwm_cli.commands.data import TableColumns, export_transitions, import_transitions
from cwm_cli.errors import CwmError
from cwm_formats.recorded import RecordedTable


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(rows, name="log.csv", **columns):
    """Write a CSV of columns, each a function of the row or a list."""
    cells = [
        [str(column(row) if callable(column) else column[row]) for row in range(rows)]
        for column in columns.values()
    ]
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*cells, strict=True))
    return name


class Notes:
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def inferred(name="log.csv", *action, **roles):
    notes = Notes()
    columns = TableColumns(action or ("valve",), **roles)
    dataset = import_transitions(name, columns=columns, force=True, observer=notes).dataset
    return dataset, RecordedTable.of(dataset.metadata["env_args"]), " ".join(notes.texts)


def level(row):
    return f"{2 + np.sin(row / 7):.3f}"


def valve(row):
    return ("shut", "open")[row // 5 % 2]


def test_spaces_are_inferred_from_the_cells():
    written(
        300,
        level=level,
        count=lambda row: row % 9,
        is_wet=lambda row: ("no", "yes")[row % 3 == 0],
        device=lambda row: "A7",
        note=lambda row: f"remark number {row}",
        empty=lambda row: "",
        valve=valve,
        power=lambda row: f"{row % 4 / 4:.2f} kW",
    )
    rows, table, notes = inferred("log.csv", "valve", "power")
    assert [column.name for column in table.observed] == ["level", "count", "is_wet"]
    assert table.observed[2].labels == ("no", "yes")
    assert [column.resolution for column in table.observed] == [0.001, 1.0, 0.0]
    assert table.acted[0].labels == ("open", "shut")
    assert table.acted[1].unit == "kW"
    assert rows.action_space.kind == "dict"
    assert rows.observation_space.low[0] < 1 < 3 < rows.observation_space.high[0]
    assert rows.columns["observations"][:2, 0].tolist() == [2.0, 2.142]
    for name in ("device (constant)", "note (free text)", "empty (blank)"):
        assert name in notes
    assert not rows.columns["rewards"].any()
    assert rows.metadata["rewards"] is False


def test_actions_have_the_space_of_their_columns():
    written(
        60,
        level=level,
        a=lambda row: row % 3 + 2,
        b=lambda row: ("off", "on")[row % 2],
        x=lambda row: row / 7,
        y=lambda row: row / 9,
    )
    for names, kind in {
        ("a",): "discrete",
        ("a,b",): "multidiscrete",
        ("x", "y"): "box",
        ("a", "x"): "dict",
    }.items():
        rows, _, _ = inferred("log.csv", *names, observation=("level",))
        assert rows.action_space.kind == kind
    rows, _, _ = inferred("log.csv", "a", observation=("level",))
    assert (rows.action_space.low, rows.action_space.high) == ((2,), (4,))


def test_long_recording_is_held_out_in_blocks():
    written(2000, level=level, valve=valve)
    rows, _, _ = inferred()
    assert len(rows) == 1999
    assert 0.15 < len(rows.test) / len(rows) < 0.25
    assert 0.2 < 1 - rows.train.fitted.mean() < 0.4
    assert rows.columns["truncations"].sum() == len(set(rows.columns["episodes"].tolist()))
    np.testing.assert_array_equal(
        rows.columns["next_observations"][:-1], rows.columns["observations"][1:]
    )


def test_gaps_in_time_end_an_episode_and_the_step_is_described():
    written(
        200,
        timestamp=lambda row: (
            f"2024-02-0{1 + row // 100}T{row % 100 // 12:02d}:{row % 100 % 12 * 5:02d}:00"
        ),
        level=level,
        valve=valve,
    )
    rows, table, notes = inferred()
    assert len(rows) == 198
    assert table.step == "5 minutes"
    assert "1 gap in time" in notes


def test_marked_row_ends_the_episode_that_leads_into_it():
    written(
        40,
        run=lambda row: row // 10,
        level=level,
        done=lambda row: str(row % 10 == 9).lower(),
        valve=lambda row: "" if row % 10 == 9 else valve(row),
    )
    rows, _, notes = inferred()
    assert len(rows) == 36
    assert np.flatnonzero(rows.columns["terminations"]).tolist() == [8, 17, 26, 35]
    assert "done" in notes


def test_bad_cells_are_listed_and_can_be_left_out():
    levels = [level(row) for row in range(100)]
    levels[30], levels[50] = "", "offline"
    written(100, level=levels, valve=valve)
    with pytest.raises(CwmError, match=r"line 32, level: blank, line 52, level: 'offline'.*--drop"):
        inferred()
    rows, _, notes = inferred(drop_missing=True)
    assert len(rows) == 95
    assert "2 rows" in notes


def test_command_imports_a_table_without_an_environment():
    written(100, level=level, valve=valve)
    answer = CliRunner().invoke(app, ["data", "import", "log.csv", "--action", "valve", "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["environment"] == "data/log"
    answer = CliRunner().invoke(app, ["data", "import", "log.csv", "--action", "valf"])
    assert answer.exit_code == 1
    assert "did you mean valve?" in answer.stderr
    words = ["data", "import", "log.csv", "--env", "CartPole-v1", "--drop-missing"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 1
    assert "are for tables without an environment: leave out --env" in " ".join(
        answer.stderr.split()
    )


def test_columns_of_the_next_observation_are_used(folder):
    rows = collect("CartPole-v1", episodes=8, policy="random", out=folder / "pole.npz").dataset
    export_transitions(rows, "csv", out="pole.csv")
    found, _, notes = inferred("pole.csv", "action")
    for name in ("next_observations", "actions", "terminations", "rewards", "split"):
        np.testing.assert_allclose(found.columns[name], rows.columns[name], rtol=1e-6)
    assert "held-out rows = split" in notes


@pytest.mark.parametrize(
    ("clock", "step"),
    [
        (lambda row: 1.7e12 + 60_000 * row, "1 minute"),
        (lambda row: f"{1 + row % 28:02d}.{1 + row // 28:02d}.2024", "1 day"),
        (lambda row: f"{row // 60:02d}:{row % 60:02d}", "1 minute"),
        (lambda row: f"2024-01-01 00:{row // 10:02d}:{row % 10 * 6:02d}+01:00", "6 seconds"),
        (lambda row: row % 50 + 7, "1 unit of time"),
    ],
)
def test_times_are_read_in_usual_notations(clock, step):
    written(100, time=clock, level=level, valve=valve)
    _, table, notes = inferred()
    assert table.step == step
    assert "time = time" in notes


def test_day_is_an_episode_or_the_time():
    written(200, day=lambda row: row // 40, minute=lambda row: row % 40, level=level, valve=valve)
    assert "episode = day, time = minute" in inferred()[2]
    written(200, day=lambda row: row, level=level, valve=valve)
    assert "time = day" in inferred()[2]
    written(200, day=lambda row: row % 7, level=level, valve=valve)
    assert "day is not used as the time" in inferred()[2]


def test_irregular_times_are_resampled_to_equal_steps():
    times = np.cumsum(np.random.default_rng(3).exponential(1, 300)).round(3)
    written(300, time=times, level=lambda row: 2 * times[row], valve=valve)
    rows, table, notes = inferred()
    assert "resample with --resample" in notes
    rows, table, _ = inferred(resample=2.0)
    assert table.step == "2 units of time"
    assert table.observed[0].resolution == 0.0
    steps = rows.columns["next_observations"] - rows.columns["observations"]
    np.testing.assert_allclose(steps, 4.0, atol=1e-6)


def test_mark_before_the_last_row_ends_the_next_step():
    written(
        60, run=lambda row: row // 20, level=level, done=lambda row: row % 20 == 18, valve=valve
    )
    rows, _, notes = inferred()
    assert len(rows) == 57
    assert np.flatnonzero(rows.columns["terminations"]).tolist() == [18, 37, 56]
    assert "the step from a marked row" in notes


def test_number_far_outside_is_named_by_its_line():
    levels = [level(row) for row in range(100)]
    levels[40] = "9999"
    written(100, level=levels, valve=valve)
    assert "level has values far outside all others: 9999 in line 42" in inferred()[2]


def test_roles_must_fit_their_columns():
    written(50, time=lambda row: 5, level=level, height=level, valve=valve, label=valve)
    for roles, words in {
        ("time", "level"): "named for two roles",
        ("time", "label"): "are no times: name another column",
        ("reward", "label"): "column label has texts",
        ("terminated", "height"): "does not only have true and false",
        ("episode", "levle"): "did you mean level?",
        ("resample", 5.0): "no time to resample by",
    }.items():
        with pytest.raises(CwmError, match=words):
            inferred(**{roles[0]: roles[1]}, observation=("level",))


def test_time_is_recognised_without_a_usual_name():
    written(100, Zeit=lambda row: 7 + 0.5 * row, level=level, valve=valve)
    assert inferred()[1].step == "0.5 units of time"
    written(
        100,
        Datum=lambda row: f"2024-01-{1 + row // 24:02d} {row % 24:02d}:00",
        level=level,
        valve=valve,
    )
    assert inferred()[1].step == "1 hour"


def test_row_number_is_no_observation():
    written(
        100,
        time=lambda row: f"12:{row // 2:02d}:{row % 2 * 30:02d}",
        id=lambda row: row,
        level=level,
        valve=valve,
    )
    _, table, notes = inferred()
    assert [column.name for column in table.observed] == ["level"]
    assert "id (row number)" in notes


def test_spaces_separate_cells_if_no_other_separator_does():
    lines = ["level   valve", *(f"  {level(row)}   {valve(row)}" for row in range(80))]
    Path("spaced.txt").write_text("\n".join(lines) + "\n")
    dataset, table, _ = inferred("spaced.txt")
    assert [column.name for column in table.observed] == ["level"]
    assert len(dataset) == 79
    Path("log.csv").write_text("\n".join(line.replace("   ", ",") for line in lines) + "\n")
    same, _, _ = inferred()
    assert np.array_equal(same.columns["observations"], dataset.columns["observations"])
