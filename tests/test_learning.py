"""Learning while acting: the loop, its run, what it is sure of and what it asks."""

from pathlib import Path

import numpy as np
import pytest

from cwm_cli.agents.learning.actor import OpenQuestion
from cwm_cli.agents.learning.certificate import EpisodeRecord, Verification
from cwm_cli.agents.learning.learn import described
from cwm_cli.agents.learning.loop import OutcomeCounts
from cwm_cli.agents.learning.questions import Questions
from cwm_cli.agents.learning.runs import LearnConfig, LearnHeader, LearnRun, StepsTaken
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.runs.listing import load, summary_of

SPACES = {
    "observation_space": Space("box", "float32", (2,), (-1.0, -1.0), (1.0, 1.0)),
    "action_space": Space("discrete", low=(0,), high=(1,)),
}


def episode(number: int, length: int = 100, **told: object) -> EpisodeRecord:
    facts = {"returned": 1.0, "promised": 1.0, "aims": {"exploit": length}} | told
    return EpisodeRecord(number=number, steps=(number + 1) * length, length=length, **facts)


def test_a_certificate_needs_clean_play_and_says_how_far_it_goes() -> None:
    watched = Verification()
    assert watched.certificate() is None
    for number in range(14):
        watched.episode(episode(number))
    found = watched.certificate(["action 3"])
    assert watched.enough
    assert found.steps == 1400
    assert found.episodes == 14
    assert 1 - 0.025 ** (1 / 1400) <= found.bound < 0.004
    assert found.untried == ("action 3",)
    watched.episode(episode(14, mismatched=1))
    assert not watched.enough
    assert (watched.attempt, watched.changed) == (2, 1500)


@pytest.mark.parametrize(
    "told", [{"returned": 0.5}, {"promised": None}, {"mismatched": 2}], ids=str
)
def test_play_below_its_promise_certifies_nothing(told: dict[str, object]) -> None:
    watched = Verification()
    for number in range(40):
        watched.episode(episode(number))
    watched.episode(episode(40, **told))
    assert not watched.enough


def test_episodes_for_the_unknown_are_no_play() -> None:
    watched = Verification()
    for number in range(40):
        watched.episode(episode(number, aims={"explore": 1, "exploit": 99}))
    assert watched.episodes == 0


@pytest.mark.parametrize("bad", ["any step", "a start"])
def test_few_bounds_are_exceeded_whether_steps_or_starts_go_wrong(bad: str) -> None:
    """Worlds of any share of mismatches: those certified at all keep their bound in 95 of 100."""
    rng, told, broken = np.random.default_rng(0), 0, 0
    for _ in range(300):
        share = 10 ** rng.uniform(-4, -0.3)

        def play(share: float = share) -> tuple[int, bool]:
            if bad == "a start":
                wrong = rng.random() < share
                return (1 if wrong else 50), wrong
            first = int(rng.geometric(share))
            return min(first, 50), first <= 50

        watched, steps = Verification(), 0
        while steps < 5000 and not watched.enough:
            length, wrong = play()
            steps += length
            watched.episode(episode(0, length, mismatched=int(wrong)))
        if not watched.enough:
            continue
        further = [play() for _ in range(400)]
        met = sum(wrong for _, wrong in further)
        told += 1
        broken += not watched.certificate().holds(met, sum(length for length, _ in further))
    assert told > 60
    assert broken <= 0.05 * told


def test_what_came_out_otherwise_again_is_chance_and_the_usual_outcome_the_rule() -> None:
    seen, chance = OutcomeCounts(), set()
    rows = [Transition(0, 1, after, 0.0, False) for after in (1, 2, 2, 1, 2)]
    assert [seen.take(n, row, chance) for n, row in enumerate(rows)] == [False, *[True] * 4]
    assert chance == {0, 3}
    assert seen.contradicted == 1


def test_questions_are_answered_when_nobody_asks_them_any_more() -> None:
    known = Questions()
    limit = OpenQuestion("where is the limit?", weight=2.0)
    action = OpenQuestion("action 3 was never tried", action=np.int64(3), weight=5.0)
    assert len(known.update([limit, action], "play", 10)) == 2
    assert [each.text for each in known.open] == [action.text, limit.text]
    assert known.open[0].action == 3
    assert known.update([limit, action], "play", 20) == []
    [answered] = known.update([limit], "play", 30)
    assert (answered.state, answered.asked) == ("answered", 10)
    assert "30" in answered.answer
    known.update([OpenQuestion("12 of 64 pairs were recorded")], "gaps", 30)
    [changed] = known.update([OpenQuestion("13 of 64 pairs were recorded")], "gaps", 40)
    assert (changed.state, changed.asked) == ("open", 30)


def test_rows_come_back_from_a_journal_as_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(21, 2)).astype(np.float32)
    points[3] = np.nan, np.inf
    rows = [Transition(points[i], i % 2, points[i + 1], rng.normal(), i == 9) for i in range(20)]
    whole = Dataset.of(rows, **SPACES)
    header = LearnHeader(config=LearnConfig(env="Any-v0"), description="")
    with LearnRun.start(tmp_path / "r", header, {"dataset.npz": whole[np.arange(0)]}) as run:
        run.append(StepsTaken.of(whole[np.arange(8)]))
        run.append(StepsTaken.of(whole[np.arange(8, 20)]))
        run.append(episode(0, 20))
    again = load(tmp_path / "r")
    assert again.dataset().digest == whole.digest
    assert summary_of(again).done == "20 steps"
    assert "exploit" in str(again.grids())


def test_what_a_program_is_worth_is_said_at_its_head() -> None:
    text = described("class Environment:\n    pass\n", ['It has """quotes""".', "- and\\more"])
    exec(compile(text, "best.py", "exec"), space := {})
    assert space["Environment"]
    assert text.startswith('"""It has')
