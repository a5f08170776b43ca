"""What `cwm data show` draws of a dataset, and the numbers that it draws from."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from cwm_cli.cli import app
from cwm_cli.commands.data import summarise
from cwm_cli.commands.recording import record
from cwm_cli.registry import environment
from cwm_cli.views.datasets import histogram


def recorded(env, **options):
    options = {"policy": "random", "episodes": 4, "test_episodes": 2, "max_steps": 20} | options
    return record(environment(env), **options)


@pytest.fixture(scope="module")
def pole(tmp_path_factory):
    file = tmp_path_factory.mktemp("show") / "pole.npz"
    rows = recorded("CartPole-v1")
    rows.save(file)
    return file, rows


def shown(file, *words, columns=100):
    answer = CliRunner().invoke(
        app, ["data", "show", str(file), *words], env={"COLUMNS": str(columns), "NO_COLOR": "1"}
    )
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_numbers_are_those_of_the_columns(pole):
    file, rows = pole
    facts = json.loads(shown(file, "--json"))
    assert (facts["transitions"], facts["digest"]) == (len(rows), rows.digest)
    position, *_, action = facts["components"]
    column = rows.columns["observations"][:, 0].astype(np.float64)
    assert position["name"] == "Cart Position"
    assert position["spread"]["median"] == float(np.median(column))
    assert (position["spread"]["min"], position["spread"]["max"]) == (column.min(), column.max())
    assert position["spread"]["histogram"] == np.histogram(column, 20)[0].tolist()
    counts = np.bincount(rows.columns["actions"]).tolist()
    assert [value["count"] for value in action["values"]] == counts
    assert action["values"][0]["name"] == "Push cart to the left"
    assert facts["rewards"]["values"] == [{"value": 1.0, "count": len(rows), "name": ""}]
    lengths = np.unique(rows.columns["episodes"], return_counts=True)[1]
    assert facts["episode_lengths"]["median"] == np.median(lengths)
    assert facts["truncations"] == rows.columns["truncations"].sum()


def test_ranges_counts_and_episodes_are_drawn(pole):
    file, rows = pole
    text = shown(file)
    [line] = [line for line in text.splitlines() if line.startswith("Pole Angle ")]
    assert set(line[-20:]) <= set(" ▁▂▃▄▅▆▇█")
    assert "█" in line
    assert "0 Push cart to the left" in text
    assert "episode length" in text
    assert f"{len(rows.train)} train rows, {len(rows.test)} test rows" in text


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "FrozenLake-v1", "RTFM-v0", "Catch-v0", "HalfCheetah-v5", "Blackjack-v1"]
)
def test_all_kinds_of_observations_are_drawn_in_any_width(tmp_path, env):
    recorded(env, max_steps=5).save(file := tmp_path / "it.npz")
    assert json.loads(shown(file, "--json"))["components"]
    for columns in (60, 80, 120):
        lines = shown(file, columns=columns).splitlines()
        drawn = lines[lines.index("") :]  # below the facts, whose width is not limited
        assert max(map(len, drawn)) <= columns
        assert not any("\x1b" in line for line in lines)


def test_two_actions_are_told_apart_in_a_narrow_terminal(pole):
    text = shown(pole[0], columns=60)
    assert "Push cart to the left" in text and "Push cart to the right" in text


def test_a_bar_that_is_not_empty_is_seen():
    assert histogram([1000, 0, 1, 0], 100).plain == "█ ▁ "
    assert histogram([1000, 0, 1, 0], 60).plain == "█▁"


def test_numbers_as_far_apart_as_can_be_have_a_histogram(pole, tmp_path):
    rewards = np.append([-1.7e308, 1.7e308], np.linspace(0, 1e-320, len(pole[1]) - 2))
    rows = replace(pole[1], columns=pole[1].columns | {"rewards": rewards})
    summary = summarise(tmp_path / "it.npz", rows)
    assert sum(summary.rewards.spread.histogram) == len(rows)


def test_a_module_that_only_the_file_names_is_not_imported(pole, tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    rows = replace(pole[1], metadata={"env": "hostile:CartPole-v1"})
    assert summarise(tmp_path / "it.npz", rows).components[0].name == ""
    assert not (tmp_path / "marker").exists()


def test_a_format_of_others_is_said_to_need_an_import(tmp_path):
    (tmp_path / "log.csv").write_text("a,b\n1,2\n")
    answer = CliRunner().invoke(app, ["data", "show", str(tmp_path / "log.csv")])
    assert answer.exit_code == 1
    assert "is a CSV file: run `cwm data import" in answer.stderr
