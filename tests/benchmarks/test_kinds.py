"""The comparison of kinds of world models on the same rows."""

import pytest

from benchmarks.kinds import measures
from benchmarks.parts import Job


@pytest.fixture
def small(monkeypatch):
    """Make the benchmark as small as possible."""
    for name, value in {
        "SIZES": (60,),
        "HELD_OUT": 30,
        "LEAST_WORTH": 20,
        "ROLLOUTS": 2,
        "EPISODES": 1,
        "MOST_STEPS": 4,
    }.items():
        monkeypatch.setattr(measures, name, value)


def figures(exact):
    return dict.fromkeys(("error", "return", "oracle", "random", "seconds", "size"), 1.0) | {
        "exact": exact
    }


def test_the_table_has_means_over_seeds_and_the_figure_the_band_between_them():
    runs = {"ensemble 100": [figures(0.25), figures(0.75)], "recalled 300": [figures(1.0)]}
    told = list(measures.table(runs))
    assert told[1].split()[:3] == ["ensemble", "100", "0.5"]
    assert told[-2:] == ["return of oracle: 1", "return of random: 1"]
    found = {
        Job("CartPole-v1", case, seed): each
        for case, every in runs.items()
        for seed, each in enumerate(every)
    }
    assert measures.drawn("CartPole-v1", found).startswith("<svg")
    assert measures.drawn("FrozenLake-v1", found) == ""


@pytest.mark.long
def test_a_recalled_program_is_measured_like_any_other_kind(small, tmp_path):
    found = measures.measured("CartPole-v1")("recalled 60", 100, tmp_path / "recalled")
    assert found["exact"] > 0.9
    assert found["return"] == 4
    assert found["size"] > 20


@pytest.mark.long
@pytest.mark.parametrize("kind", ["induction", "ensemble", "transformer"])
def test_every_kind_is_made_from_the_same_rows(small, tmp_path, kind):
    if kind != "induction":
        pytest.importorskip("torch").set_num_threads(1)
    for env in ("CartPole-v1", "FrozenLake-v1"):
        found = measures.measured(env)(f"{kind} 60", 100, tmp_path / env / kind)
        assert found["size"] > 0 and found["seconds"] > 0
        assert 0 <= found["exact"] <= 1
