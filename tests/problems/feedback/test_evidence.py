"""The section on recorded transitions: chosen steps, facts, and gaps in the data."""

import re

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.feedback.description import split_passages, trim_description
from cwm_cli.problems.feedback.evidence import Evidence, evidence, gather_evidence
from cwm_cli.problems.feedback.steps import (
    RecordedSteps,
    StepKinds,
    likeliest,
    number,
    rows_by_action,
)
from cwm_cli.problems.templates import template
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import environment
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, Move, Verdict
from cwm_cli.text import estimated_tokens
from folders import ROOT

SHIPPED = ROOT / "data" / "cwm_data"
ACTIONS = Space("discrete", low=(0.0,), high=(1.0,))
GRID = Space("discrete", low=(0.0,), high=(99.0,))


def real(size: int) -> Space:
    """Return a space of `size` real numbers."""
    infinite = (np.inf,) * size
    return Space("box", "float32", (size,), tuple(-x for x in infinite), infinite)


def dataset(rows: list[Transition], space: Space, action_space: Space = ACTIONS) -> Dataset:
    return Dataset.of(rows, observation_space=space, action_space=action_space)


def gather(rows: Dataset, **options: int) -> Evidence:
    """Return the evidence of rows."""
    return gather_evidence(rows, AccuracyMetric.of(rows), **options)


def fall(count: int = 300, seed: int = 0) -> Dataset:
    """Drop a ball that loses a fifth of its speed on the floor, and is caught above 2 metres."""
    rng = np.random.default_rng(seed)
    rows, episode, height, speed = [], 0, 1.0, 0.0
    for _ in range(count):
        action = int(rng.integers(2))
        faster = np.float32(speed - 0.05 + 0.08 * action)
        higher = np.float32(height + 0.05 * faster)
        if higher < 0:
            higher, faster = -higher, np.float32(-0.8 * faster)
        before, after = np.array([height, speed], "f4"), np.array([higher, faster], "f4")
        ended = bool(higher > 2)
        rows.append(Transition(before, action, after, float(faster > 1), ended, episode=episode))
        height, speed = float(higher), float(faster)
        if ended or rng.random() < 0.05:
            episode, height, speed = episode + 1, rng.uniform(0.2, 1.9), rng.uniform(-1, 1.5)
    return dataset(rows, real(2))


def described(env: str, **arguments: object) -> str:
    """Return the description that prompts have of an environment."""
    spec = environment(env)
    made = spec.make(**arguments)
    try:
        return spec.describe(made)
    finally:
        made.close()


def test_a_description_keeps_its_rules_and_loses_what_no_program_needs() -> None:
    """Rewards, ends and names stay; drawn starts go, and spaces, which every prompt has anyway."""
    whole = described("CartPole-v1")
    short = trim_description(whole)
    assert "uniformly random" in whole and "uniformly random" not in short
    for fact in ("fixed force", "Pole Angular Velocity", "±12°", "+1"):
        assert (fact in short) == (fact in whole), fact
    assert trim_description(short) == short
    assert "Termination: Pole Angle" in short and "Truncation" not in short
    assert "cut after" in whole and "cut after" not in short
    assert "state `[36]`" in trim_description(described("CliffWalking-v1"))
    lake = trim_description(described("FrozenLake-v1"))
    assert "P(move left)=1/3" in lake and "SFFF" in lake


def test_options_that_are_off_are_shortened_and_explained_options_are_left_out() -> None:
    """The defaults of options that no passage explains stay."""
    text = (
        "## Rewards\nMinus `weight` (1) per step.\n\n"
        "## Arguments\nIt has options.\n\n"
        "| Name | Default |\n| --- | --- |\n"
        "| `weight` | 1 (see `Rewards` section) |\n"
        "| `wind` | 0.3, always from the left |\n\n"
        "## References\nA book.\n\n"
        "## Spaces\nObservation: an integer"
    )
    short = trim_description(text)
    assert "| `wind` | 0.3, always from the left |" in short
    assert "see `Rewards`" not in short and "A book" not in short and "options." not in short
    off = text.replace("It has options.", "`rain=False`: if True it rains, at random.\n")
    assert "`rain=False`" in trim_description(off) and "it rains" not in trim_description(off)
    on = off + "\n\nThe environment was made with `rain=True`."
    assert "it rains" in trim_description(on)


def test_passages_have_subjects_and_contain_the_whole_description() -> None:
    """A heading without a known word has the subject of the heading above."""
    text = "A lake.\n\n## Episode End\n\n### Causes\nA hole.\n\n## Reward\nOne."
    assert [part.subject for part in split_passages(text)] == ["task", "ends", "ends", "reward"]
    assert "".join("".join(map(str, split_passages(text))).split()) == "".join(text.split())


def test_all_distinct_steps_are_shown_if_they_fit() -> None:
    """They are listed by observation, or by episode if observations are real numbers."""
    rows = [Transition(n, 0, n + 1, -1.0, n == 8) for n in range(9)] * 3
    rows += [Transition(n, 1, 0, 5.0, False) for n in range(4)]
    found = gather(dataset(rows, GRID))
    assert found.complete
    assert "3: 0>4; 1>0 reward 5" in found.words()
    assert "8: 0>9 ended" in found.words()
    assert "-1 (27x), 5 (4x)" in found.words()
    ball = fall(12)
    words = gather(ball).words()
    for row in range(len(ball)):
        assert all(number(x) in words for x in ball.row(row).next_observation)


def test_steps_on_either_side_of_a_threshold_are_shown_together() -> None:
    """Six steps in a row; ends and rewards on either side; a bounce; extremes."""
    ball = fall()
    found = gather(ball)
    assert not found.complete
    steps, shown = RecordedSteps(ball), set(found.rows)
    first, *others = found.groups
    assert len(first.rows) == 6
    assert all(
        b == a + 1 and steps.follows[b] for a, b in zip(first.rows, first.rows[1:], strict=False)
    )
    ends = next(group for group in others if "Ends beyond the largest [0]" in group.reason)
    assert steps.ended[ends.rows[0]] and not steps.ended[ends.rows[1]]
    assert steps.after[~steps.ended, 0].max() == steps.after[ends.rows[1], 0]
    paid = next(group for group in others if group.reason.startswith("Reward 1: "))
    assert "[1]" in paid.reason
    assert steps.after[steps.rewards == 1, 1].min() == steps.after[paid.rows[0], 1]
    bounced = (steps.before[:, 1] < -0.1) & (steps.after[:, 1] > 0.1)
    assert bounced.any() and shown & set(np.flatnonzero(bounced).tolist())
    extremes = {int(steps.before[:, i].argmin()) for i in (0, 1)}
    assert extremes <= shown


def test_similar_steps_with_different_results_are_shown_in_pairs() -> None:
    """A wall that stops a walk in one place is shown beside a place where it does not."""
    rng = np.random.default_rng(3)
    space = Space("multidiscrete", shape=(2,), low=(0.0, 0.0), high=(29.0, 29.0))
    rows = []
    for _ in range(600):
        x, y = (int(v) for v in rng.integers(0, 29, 2))
        wall = (x, y) == (7, 7)
        rows.append(Transition(np.array([x, y]), 0, np.array([x + (not wall), y]), -1.0, False))
    rows.append(Transition(np.array([7, 7]), 0, np.array([7, 7]), -1.0, False))
    words = gather(dataset(rows, space)).words()
    lines = words.splitlines()
    place = lines.index("[7,7] | 0 | [7,7] | -1")
    x, y = map(int, re.findall(r"\d+", lines[place + 1])[:2])
    assert abs(x - 7) + abs(y - 7) <= 6
    assert re.search(r"- \[0\] under action 0: \+1.*, unchanged \(\d+x\)|but unchanged if", words)


def test_a_board_is_shown_once_and_then_by_its_changed_cells() -> None:
    """However large a picture is, and however many steps there are, the size is bounded."""
    rng = np.random.default_rng(0)
    space = Space("box", "int8", (12, 12), (0.0,) * 144, (3.0,) * 144)
    board = rng.integers(0, 3, (12, 12)).astype("i1")
    rows = []
    for step in range(200):
        after = board.copy()
        after[step % 12, step * 5 % 12] = 3
        rows.append(Transition(board, 0, after, 0.0, False))
        board = after
    words = gather(dataset(rows, space)).words()
    assert words.count("[[") == 1
    assert re.search(r"\[\d+, \d+\] [0-2]>3", words)
    assert estimated_tokens(words) <= 2000


@pytest.mark.parametrize("tokens", [300, 1000, 2000])
def test_wide_observations_do_not_exceed_the_allowance(tokens: int) -> None:
    """Hundreds of real numbers, and long texts, fit into few tokens."""
    rng = np.random.default_rng(0)
    wide = [
        Transition(*rng.normal(size=(3, 400)).astype("f4")[[0, 1, 2]], 1.0, False)
        for _ in range(60)
    ]
    texts = [Transition("x" * n, 0, "y" * 3000, 0.0, False) for n in range(2000, 2040)]
    for rows in (
        dataset(wide, real(400), real(400)),
        dataset(texts, Space("text", max_length=4000)),
        fall(),
    ):
        assert 0 < estimated_tokens(gather(rows, tokens=tokens).words()) <= tokens


def test_numbers_are_written_exactly_and_briefly() -> None:
    """Numbers of 32 bits are read back exactly, and nothing is written longer than needed."""
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(size=500), 10.0 ** rng.uniform(-30, 30, 500)]).astype("f4")
    for value in [*values, np.float32(0.1), np.float32(1.0)]:
        assert np.float32(number(value)) == value, value
    assert (number(np.float32(0.1)), number(np.float64(1 / 3)), number(2.0)) == (
        "0.1",
        "0.333333333",
        "2",
    )
    ball = fall(40)
    chained = gather(ball).groups[0]
    numbers = [float(text) for text in re.findall(r"[-\d.e]+", chained.lines[0])]
    observation = np.array(numbers[:2], "f4")
    assert (observation == ball.row(chained.rows[0]).observation).all()


def test_evidence_is_deterministic_and_each_variant_differs() -> None:
    """If not all rows fit, each variant chooses other rows."""
    ball, metric = fall(), AccuracyMetric.of(fall())
    words = [evidence(ball, metric, variant=variant) for variant in (0, 0, 1, 2, 3)]
    assert words[0] == words[1]
    assert len(set(words)) == 4
    assert evidence(ball, metric, tokens=0) == ""


def test_outcomes_of_chance_are_counted_with_the_best_score() -> None:
    """No other single answer for each situation has a higher score."""
    outcomes = [(1, 0.0, False), (1, 0.0, False), (2, 1.0, True)]
    rows = [
        Transition(0, 0, after, reward, ended)
        for after, reward, ended in outcomes
        for _ in range(5)
    ]
    rows += [Transition(3, 1, 4, 0.0, False)] * 5
    data = dataset(rows, GRID)
    metric = AccuracyMetric.of(data)
    words = evidence(data, metric)
    assert "1 (10x) or 2 reward 1 ended (5x)" in words
    best = metric.score(likeliest(data, metric), data).value
    assert f"{best:.4f}" in words
    for reward in (0.0, 1.0):
        for ended in (False, True):
            columns = likeliest(data, metric)
            columns["rewards"][:15], columns["terminations"][:15] = reward, ended
            assert metric.score(columns, data).value <= best


def test_facts_count_ends_and_name_gaps() -> None:
    """They give the ranges of steps without an end, and unseen actions and ends."""
    words = gather(fall()).words()
    ball = RecordedSteps(fall())
    assert f"{int(ball.ended.sum())} of {len(ball)} steps ended" in words
    assert re.search(r"Next observations without an end: \[0\] 0\.\S+ to 1\.99", words)
    still = dataset([Transition(n, 0, n + 1, 1.0, False) for n in range(9)], GRID)
    assert "No terminal transition was seen" in gather(still).words()
    assert "No row takes the action 1" in gather(still).words()


def problem(train: Dataset, **options: object) -> WorldModelProblem:
    """Return a problem whose programs are not run."""
    return WorldModelProblem(
        "A system.",
        train,
        Sandbox(),
        AccuracyMetric.of(train),
        **options,  # type: ignore[arg-type]
    )


def test_no_prompt_shows_anything_of_hidden_rows() -> None:
    """Generate prompts of all variants contain no number that only hidden rows contain."""
    train = fall(400)
    hidden = ~train.fitted
    train.columns["observations"][hidden] += np.float32(1000)
    train.columns["next_observations"][hidden] += np.float32(1000)
    asked = problem(train)
    secret = {number(x) for x in train.columns["next_observations"][hidden].reshape(-1)}
    for variant in range(4):
        prompt = asked.varied(Move(GENERATE), variant)[-1].content
        assert "## Recorded transitions" in prompt
        assert not secret & set(re.findall(r"[-\d.e]+", prompt))
        assert not [x for x in re.findall(r"\b\d+\.\d+", prompt) if 900 < float(x) < 1100]


def test_all_prompts_except_published_ones_contain_evidence() -> None:
    """Without tokens for evidence, prompts contain none."""
    train = fall(60)
    asked = problem(train).messages(Move(GENERATE))[-1].content
    assert "## Recorded transitions" in asked
    assert (
        "recorded"
        not in problem(train, evidence_tokens=0).messages(Move(GENERATE))[-1].content[:60]
    )
    assert (
        "## Recorded" not in problem(train, evidence_tokens=0).messages(Move(GENERATE))[-1].content
    )
    published = problem(train, feedback="paper")
    without = template("world_model/generate").template
    assert published.messages(Move(GENERATE))[-1].content == (
        problem(train, feedback="paper", evidence_tokens=0).messages(Move(GENERATE))[-1].content
    )
    assert "$description$evidence$prefix" in without
    assert "Recorded transitions" not in published.messages(Move(GENERATE))[-1].content


def test_all_prompts_of_a_search_share_their_beginning() -> None:
    """Providers cache the beginning of prompts, byte for byte."""
    asked = problem(fall(400))
    mismatch, raised = Failure("mismatch", "It is wrong."), Failure("step_error", "It raises.")
    settled = Verdict(score=0.9, failure=mismatch, parts={"reward": 1.0})
    prompts = [
        asked.messages(Move(GENERATE)),
        asked.varied(Move(GENERATE), 1),
        asked.messages(Move(IMPROVE, 0, "x = 1", Verdict(score=0.5, failure=mismatch))),
        asked.messages(Move(IMPROVE, 1, "x = 2", settled)),
        asked.messages(Move(FIX, 2, "x = 3", Verdict(score=0.0, failure=raised))),
    ]
    assert len({system for system, _ in prompts}) == 1
    assert len({user.content[: user.stable] for _, user in prompts}) == 1
    for _, user in prompts:
        assert 500 < user.stable < len(user.content)
        assert "Recorded transitions" not in user.content[: user.stable]


def test_a_prompt_that_is_too_long_loses_chosen_steps_before_facts() -> None:
    """The counts and the first steps stay longest."""
    train = fall(400)
    asked = problem(train)
    whole = asked.messages(Move(GENERATE))[-1].content
    shorter = asked.shorter(Move(GENERATE), len(whole) - 500)
    text = shorter[-1].content
    assert sum(len(message.content) for message in shorter) <= len(whole) - 500
    assert "## Recorded transitions" in text and "steps ended" in text and "Steps in a row" in text
    assert "## What to write" in text and "Think step by step" in text


@pytest.mark.slow
def test_evidence_of_shipped_datasets_fits_the_allowance() -> None:
    """Boards, texts, chance and hundreds of real numbers fit into the allowance."""
    for env in ("Humanoid-v5", "RTFM-v0", "Taxi-v4", "Blackjack-v1", "Hopper-v5"):
        train = Dataset.load(SHIPPED / f"{env}.npz").train
        rows = train[train.fitted]
        found = gather_evidence(rows, AccuracyMetric.of(train), described(env))
        assert estimated_tokens(found.words()) <= 2000, env
        assert len(set(found.rows)) >= 4, env


def test_the_causes_of_changes_of_whole_numbers_are_named() -> None:
    """They are a wall in one cell, the value of another component, and a clock."""
    rng = np.random.default_rng(5)
    space = Space("multidiscrete", shape=(4,), low=(0.0,) * 4, high=(99.0,) * 4)
    rows = []
    for _ in range(500):
        x, y, speed, clock = (int(rng.integers(n)) for n in (6, 5, 3, 4))
        action = int(rng.integers(2))
        blocked = x == 5 or (x, y) == (2, 3)
        faster = min(speed + action, 2)
        after = [x + (not blocked), y + faster, faster, (clock + 1) % 4]
        arrays = np.array([x, y, speed, clock]), np.array(after)
        rows.append(Transition(arrays[0], action, arrays[1], 0.0, False))
    words = gather(dataset(rows, space)).words()
    walls = ", ".join(["2 3", *(f"5 {y}" for y in range(5))])
    assert f"[0] under any action: +1, but unchanged if [0] [1] is {walls}" in words
    assert "[1] under any action: +next [2]" in words
    assert "[2] under action 1: +1, but unchanged if [2] is 2" in words
    assert "[3] under any action: +1, but -3 if [3] is 3" in words


def test_steps_on_either_side_of_the_threshold_of_a_flag_are_shown() -> None:
    """The threshold is a value of a real component."""
    rng = np.random.default_rng(2)
    rows = []
    for _ in range(300):
        heat, on = np.float32(rng.uniform(0, 30)), bool(rng.integers(2))
        on_after = heat < 18 if not on else heat < 22
        after = np.array([heat + (1 if on_after else -1), on_after], "f4")
        rows.append(Transition(np.array([heat, on], "f4"), 0, after, 0.0, False))
    data = dataset(rows, real(2))
    steps, found = RecordedSteps(data), gather(data)
    off = next(g for g in found.groups if "changes from 1" in g.reason)
    hot, warm = off.rows
    assert steps.before[hot, 0] >= 22 > steps.before[warm, 0]
    on = steps.before[:, 1] == 1
    assert steps.before[hot, 0] == steps.before[on & (steps.before[:, 0] >= 22), 0].min()
    assert steps.before[warm, 0] == steps.before[on & (steps.before[:, 0] < 22), 0].max()


@pytest.mark.filterwarnings("error")
def test_numbers_that_are_not_finite_do_not_change_the_choice_of_steps() -> None:
    """A single step is shown, too."""
    ball = fall()
    ball.columns["next_observations"][7, 1] = np.nan
    ball.columns["observations"][9, 0] = np.inf
    words = gather(ball).words()
    assert "Steps in a row" in words and "Ends" in words
    single = fall(1)
    assert "1 steps of 1 episodes" in gather(single).words()


def test_rows_are_grouped_by_action_up_to_twenty_actions() -> None:
    """More actions give no groups, because a group would have too few rows."""
    for count in (20, 21):
        actions = Space("discrete", "int64", (), (0,), (count - 1,))
        zero = np.zeros(1, "f4")
        rows = [Transition(zero, n % count, zero, 0.0, False) for n in range(2 * count)]
        masks = rows_by_action(dataset(rows, real(1), actions))
        assert [np.flatnonzero(mask).tolist() for mask in masks] == [
            [action, action + count] for action in range(count) if count == 20
        ]


@pytest.mark.parametrize(("factor", "found"), [(50, [40]), (5, [])])
def test_steps_far_from_a_linear_law_are_found_and_usual_errors_are_not(
    factor: float, found: list[int]
) -> None:
    rng = np.random.default_rng(0)
    places = rng.uniform(-1, 1, (100, 1)).astype("f4")
    errors = rng.choice([-0.01, 0.01], (100, 1)).astype("f4")
    errors[40] *= factor
    rows = [
        Transition(place, int(rng.integers(2)), place + error, 0.0, False)
        for place, error in zip(places, errors, strict=True)
    ]
    assert StepKinds(RecordedSteps(dataset(rows, real(1)))).off_the_line == found
