"""Sides of a comparison: mean returns, the relative return R, and the number of episodes."""

import pytest

from cwm_cli.commands.episodes import Episode
from cwm_cli.commands.sides import (
    Mean,
    Side,
    better_baseline,
    episodes_by_length,
    mean_of,
    relative_return,
)


def side(returns, length=1) -> Side:
    return Side([Episode(number=n, returned=r, length=length) for n, r in enumerate(returns)])


def test_mean_has_its_standard_error() -> None:
    assert mean_of([1.0, 3.0]) == (2.0, 1.0)
    assert mean_of([4.0]) == (4.0, None)
    assert mean_of([1.0, 2.0, 3.0, 4.0]).stderr == pytest.approx((5 / 3 / 4) ** 0.5)


@pytest.mark.parametrize(
    ("model", "oracle", "baseline", "ratio"),
    [
        ([5, 5], [9, 9], [1, 1], 0.5),
        ([0, 0], [9, 11], [2, 2], -0.25),
        ([5], [9], [1], 0.5),
        ([5, 5], [4, 4], [4, 4], None),
        ([5, 5], [1, 1], [4, 4], None),
        ([5, 5], [9, 1], [1, 8], None),
    ],
)
def test_relative_return_needs_an_oracle_better_than_the_baseline(
    model, oracle, baseline, ratio
) -> None:
    assert relative_return(side(model), side(oracle), side(baseline)) == ratio
    assert side(model).mean == Mean(*mean_of(model))


@pytest.mark.parametrize(
    ("random", "idle", "better"),
    [([1, 2], [2, 3], "idle"), ([1, 2], [0, 2], "random"), ([1, 2], [2, 1], "random")],
)
def test_baseline_is_the_side_with_the_higher_return(random, idle, better) -> None:
    assert better_baseline({"random": side(random), "idle": side(idle)}) == better
    assert better_baseline({"random": side(random)}) == "random"
    assert better_baseline({"random": side(random), "idle": side([])}) == "random"


@pytest.mark.parametrize(
    ("lengths", "episodes"),
    [((1,), 2000), ((5, 9), 333), ((50, 200), 15), ((1000, 20), 10), ((3000,), 10)],
)
def test_short_episodes_are_played_more_often(lengths, episodes) -> None:
    sides = [side([0.0] * 10, length) for length in lengths]
    assert episodes_by_length(sides) == episodes
    longer = [Side([*each.episodes, *side([0.0] * 30, 7000).episodes[10:]]) for each in sides]
    assert episodes_by_length(longer) == episodes  # only the first ten episodes count


def test_number_of_episodes_is_unknown_before_ten_episodes_of_each_side() -> None:
    assert episodes_by_length([side([0.0] * 10), side([0.0] * 9)]) is None
