"""The problem of rules in words: prompts, parsing of answers, and scores."""

import threading
from math import exp, inf, log

import numpy as np
import pytest

from cwm_cli.data.dataset import Transition
from cwm_cli.envs.text_view import Change, TextView
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import (
    GENERATE,
    IMPROVE,
    ROOT,
    Backend,
    Completion,
    Move,
    Node,
    Usage,
)
from cwm_cli.search.loop import Search
from cwm_cli.text import estimated_tokens
from cwm_gif_mcts.strategy import GifMcts
from cwm_theorize.problem import MISTAKES, TheoryProblem, read_rules
from cwm_theorize.statistician import Statistician
from cwm_theorize.theories.symbolic import Symbolic
from cwm_worldcoder.strategy import WorldCoder
from cwm_zero_shot.strategy import ZeroShot

PLACES = 12


class Path(TextView):
    """A path of twelve places; the agent walks, or bumps at the end."""

    kinds = ("walked", "bumped")
    vocabulary = {"way": ("on", "back")}  # noqa: RUF012
    conclusions = {"walked": {}, "bumped": {}}  # noqa: RUF012

    def __init__(self, lists_discovered=False):
        self.lists_discovered = lists_discovered

    def guide(self):
        return "A path of twelve places."

    def state(self, observation):
        return f"You are at place {observation}."

    def action(self, observation, action):
        return f"You go {self.vocabulary['way'][action]}."

    def facts(self, observation, action):
        return {"way": self.vocabulary["way"][action]}

    def change(self, row):
        return self.candidates(row.observation)[row.next_observation == row.observation]

    def candidates(self, observation):
        return [Change("You walk.", "walked"), Change("You bump.", "bumped")]


def walk(*starts, steps=1, episode=0):
    """Return rows of an agent that takes some steps forward from each start."""
    return [
        Transition(at, 0, min(at + 1, PLACES - 1), 0.0, step == steps - 1, episode=episode + number)
        for number, start in enumerate(starts)
        for step, at in enumerate(range(start, start + steps))
    ]


class Counting(Backend):
    """Scores rules by their length, and records requests."""

    can_score = True

    def __init__(self):
        self.asked = []

    def score(self, requests):
        self.asked += [(each.question.rules, each.question.transition.state) for each in requests]
        self.said = [each.messages[-1].content for each in requests]
        return [[-0.1 * len(each.question.rules), -1.0] for each in requests]


def problem_of(backend, rows=(), *, view=None, **options):
    problem = TheoryProblem(Statistician(view or Path(), backend), **options)
    if rows:
        problem.observe(rows)
    return problem


def test_score_is_likelihood_of_recorded_transitions():
    problem = problem_of(Symbolic(noise=0.2), walk(0, 1, 2, PLACES - 1), simplicity=0)
    verdict = problem.judge("Always, walked.")
    right, wrong = log(0.9), log(0.1)
    assert verdict.log_likelihood == pytest.approx(3 * right + wrong)
    assert verdict.score == pytest.approx(exp((3 * right + wrong) / 4))
    assert verdict.parts == pytest.approx({"walked": 0.9, "bumped": 0.1})
    assert not verdict.is_bug
    assert "`bumped`" in verdict.failure.message


def test_fewer_words_rank_higher_at_equal_likelihood():
    problem = problem_of(Symbolic(noise=0.2), walk(0, 1, 2, PLACES - 1), simplicity=0.5)
    short, long = map(problem.judge, ("Always, walked.", "Always, walked.\nAlways, walked."))
    assert short.log_likelihood == long.log_likelihood == pytest.approx(3 * log(0.9) + log(0.1))
    assert (short.log_prior, long.log_prior) == (-1.0, -2.0)
    assert short.rank > long.rank
    assert short.score == pytest.approx(exp((short.log_likelihood - 1.0) / 4))


def test_nearly_impossible_rules_still_differ_in_rank():
    problem = problem_of(Counting(), walk(0, 1))
    unlikely, unlikelier = (problem.judge("x" * size) for size in (8000 // 2, 3999))
    assert unlikely.score <= 1e-150
    assert unlikelier.rank > unlikely.rank


@pytest.mark.parametrize(
    ("rules", "words"), [("", "no rules"), (" \n", "no rules"), ("x" * 5000, "5,000 characters")]
)
def test_missing_and_too_long_rules_are_not_scored(rules, words):
    backend = Counting()
    verdict = problem_of(backend, walk(0)).judge(rules)
    assert (verdict.score, verdict.log_likelihood, verdict.is_bug) == (0.0, None, True)
    assert words in verdict.failure.message
    assert len(verdict.failure.message.splitlines()) == 1
    assert not backend.asked


def test_all_rules_are_equal_without_recorded_transitions():
    verdict = problem_of(Symbolic()).judge("Always, walked.")
    assert (verdict.score, verdict.log_likelihood) == (0.0, 0.0)


def test_cumulative_evidence_scores_each_distinct_transition_once():
    backend = Counting()
    problem = problem_of(backend, walk(0, 1, 0))
    assert len(problem.evidence) == 2
    first = problem.judge("some rules")
    assert problem.judge("some rules") == first
    assert len(backend.asked) == 2
    problem.observe(walk(1, 2, 3))
    grown = problem.judge("some rules")
    assert [state for _, state in backend.asked[2:]] == [f"You are at place {n}." for n in (2, 3)]
    assert grown.log_likelihood == pytest.approx(2 * first.log_likelihood)
    assert problem.weighed == len(backend.asked) == 4


def test_phase_evidence_repeats_steps_of_last_trajectories():
    problem = problem_of(Counting(), walk(0, 1, 2), policy="phase", subset=3)
    problem.observe(walk(4, 5, 6, 5, steps=2))
    assert [t.state for t in problem.evidence] == [
        f"You are at place {place}." for place in (5, 6, 6, 7, 5, 6)
    ]
    assert problem.judge("abc").log_likelihood == pytest.approx(6 * -1.3)


def test_long_phase_keeps_last_trajectories_and_each_other_kind():
    rows = walk(PLACES - 1, PLACES - 1, 0, 1, 2, 3, 4)
    assert len(problem_of(Counting(), rows, policy="phase", subset=2).evidence) == 2
    problem = problem_of(Counting(), rows, subset=2)
    assert [t.change.kind for t in problem.evidence] == ["bumped", "walked", "walked"]
    assert problem.discovered == ("You bump.", "You walk.")


def test_window_keeps_newest_transitions():
    problem = problem_of(Counting(), walk(0, 1, 2), policy="window", window=3)
    problem.observe(walk(0, 5))
    assert {t.state for t in problem.evidence} == {f"You are at place {n}." for n in (2, 0, 5)}
    problem.observe(walk(*range(8)))
    assert {t.state for t in problem.evidence} == {f"You are at place {n}." for n in (5, 6, 7)}


def test_prompt_shows_newest_trajectories_that_fit_in_order():
    problem = problem_of(Counting(), walk(0, 3, 6, 0, 3, steps=2), evidence_tokens=60)
    words = problem.messages(Move(GENERATE))[-1].content
    shown = [place for place in range(PLACES) if f"At first: You are at place {place}." in words]
    assert shown == [0, 3]
    assert words.index("place 0") < words.index("place 3")
    assert words.count("You go on. -> You walk.") == 4
    assert "A path of twelve places." in words
    everything = problem_of(Counting(), walk(0, 3, 6, steps=2), evidence_tokens=None)
    assert everything.messages(Move(GENERATE))[-1].content.count("At first") == 3


def test_prompt_shows_start_of_too_long_trajectory():
    problem = problem_of(Counting(), walk(0, steps=10), evidence_tokens=50)
    words = problem.messages(Move(GENERATE))[-1].content
    assert 1 <= words.count("You go on.") < 10
    assert "At first: You are at place 0." in words
    recorded = words[words.index("At first") : words.index("## Your answer")]
    assert estimated_tokens(recorded) <= 52


def test_improve_prompt_shows_wrong_predictions_and_recorded_changes():
    def prompt(rules, rows, **options):
        problem = problem_of(Symbolic(noise=0.2), rows, **options)
        move = Move(IMPROVE, 0, rules, problem.judge(rules))
        return problem.messages(move)[-1].content

    walked = walk(0, 5, PLACES - 1)
    _, _, shown = prompt("Always, walked.", walked).partition(MISTAKES)
    assert shown.strip().startswith(
        f"State: You are at place {PLACES - 1}.\nAction: You go on.\n"
        "Recorded: You bump. (probability 0.1)\nPredicted: You walk.\n\n## Your answer"
    )
    undecided = prompt("If way is back, then walked.", walked)
    assert undecided.count("Predicted: You walk. or You bump.") == 3
    assert MISTAKES not in prompt("Always, walked.", walk(0, 5))
    assert MISTAKES not in prompt("Always, walked.", walked, worst=0)


def test_improve_prompt_shows_each_kind_before_repeating_one():
    rows = [*walk(0, 1, 2, 3, PLACES - 1), *walk(PLACES - 1, episode=9)]
    problem = problem_of(Symbolic(noise=0.2), rows, worst=2)
    move = Move(IMPROVE, 0, "", problem.judge("If way is back, then walked."))
    shown = problem.messages(move)[-1].content
    assert shown.count("Recorded: You walk.") == shown.count("Recorded: You bump.") == 1


@pytest.mark.parametrize(
    ("backend", "form"),
    [(Symbolic(), "If FACT is VALUE"), (Counting(), "one short sentence in plain English")],
    ids=["controlled language", "free English"],
)
def test_prompt_has_one_form_of_rules_and_a_length_limit(backend, form):
    problem = problem_of(backend, walk(0, PLACES - 1), longest=900)
    for move in (Move(GENERATE), Move(IMPROVE, 0, "Always, walked.", None)):
        prompt = problem.messages(move)[-1].content
        forms = ("If FACT is VALUE", "one short sentence")
        assert [each in prompt for each in forms] == [each in form for each in forms]
        answer = prompt[prompt.index("## Your answer") :]
        assert form in answer
        assert "one rule per line and at most 900 characters" in answer


def test_answer_in_prompted_form_is_parsed_completely():
    problem = problem_of(Symbolic(), walk(0, PLACES - 1))
    answer = "If way is on and way is not back, then walked.\nOtherwise, bumped."
    rules = problem.read(answer, Move(GENERATE))
    assert rules == answer
    assert problem.statistician.backend.unread(problem.statistician.view, rules) == ()


def test_shorter_prompt_keeps_rules_and_description():
    problem = problem_of(Counting(), walk(*range(8), steps=3))
    move = Move(IMPROVE, 0, "Always, walked.", None)
    whole = sum(len(message.content) for message in problem.messages(move))
    shorter = problem.shorter(move, whole - 300)
    assert sum(len(message.content) for message in shorter) <= whole - 300
    assert "Always, walked." in shorter[-1].content
    assert "A path of twelve places." in shorter[-1].content


ANSWERS = {
    "plain": "Water makes seeds grow.\nAnimals eat plants.",
    "numbered": "1. Water makes seeds grow.\n2) Animals eat plants.",
    "marked": "- Water makes seeds grow.\n\n* **Animals** eat plants.",
    "fenced": "Here they are:\n```\nWater makes seeds grow.\nAnimals eat plants.\n```\nGood luck!",
    "introduced": "These rules hold:\nWater makes seeds grow.\nAnimals eat plants.",
    "explained": "Rules:\n\n1. Water makes seeds grow.\n2. Animals eat plants.\n\nI hope it helps.",
    "wrapped": "1. Water makes\n   seeds grow.\n2. Animals eat\n   plants.",
    "thought": "<think>\n1. Yes?\n2. No.\n</think>\nWater makes seeds grow.\nAnimals eat plants.",
    "dressed": "(1) `Water makes seeds grow.`\r\n(2) Animals eat plants.\r\n",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_rules_are_parsed_from_any_answer_format(answer):
    rules = read_rules(answer)
    assert rules == "Water makes seeds grow.\nAnimals eat plants."
    assert read_rules(rules) == rules


def test_parsing_handles_empty_answers_and_control_characters():
    assert read_rules("") == read_rules("```\n```") == read_rules("<think>on and on") == ""
    assert "\x1b" not in read_rules("Water \x1b[31mmakes\x07 seeds grow.")
    assert read_rules("Everything grows:") == "Everything grows:"
    assert read_rules("Here it is:\n1. Everything grows.\nGood luck!") == "Everything grows."
    assert read_rules("- Everything grows.\nAnd eats.") == "Everything grows.\nAnd eats."


def node_of(number, rules, verdict):
    return Node(number, number, ROOT, GENERATE, rules, verdict, "", Usage())


def test_uninformative_statistician_gives_one_warning():
    problem = problem_of(Symbolic(), walk(0, 1))
    for number in range(8):
        rules = f"This is not rule {number}."
        problem.update(node_of(number, rules, problem.judge(rules)))
        assert bool(problem.warning) == (number >= 4)
    assert len(problem.warning.splitlines()) == 1
    assert "--statistician" in problem.warning
    assert problem.scorings == 8
    fine = problem_of(Symbolic(), walk(0, 1))
    for number, rules in enumerate(["Always, walked.", *(f"Rule {n}." for n in range(8))]):
        fine.update(node_of(number, rules, fine.judge(rules)))
    assert not fine.warning


def test_discovered_sentences_are_listed_and_invalidate_scores():
    backend = Counting()
    problem = problem_of(backend, walk(0), view=Path(lists_discovered=True))
    problem.judge("some rules")
    assert "You bump." not in backend.said[-1]
    problem.observe(walk(PLACES - 1))
    assert problem.discovered == ("You walk.", "You bump.")
    problem.judge("some rules")
    assert all("You bump." in said for said in backend.said)
    assert len(backend.asked) == 3


def test_nan_from_statistician_is_rejected():
    class Broken(Counting):
        def score(self, requests):
            return [[float("nan")] for _ in requests]

    with pytest.raises(CwmError, match="--statistician"):
        problem_of(Broken(), walk(0)).judge("some rules")


def test_impossible_transition_does_not_hide_differences():
    class Certain(Counting):
        def score(self, requests):
            sure = [each.question.transition.state.endswith("0.") for each in requests]
            weights = super().score(requests)
            return [[float("-inf")] if s else w for s, w in zip(sure, weights, strict=True)]

    problem = problem_of(Certain(), walk(0, 1))
    likelier, other = problem.judge("short"), problem.judge("rather long")
    assert -inf < other.log_likelihood < likelier.log_likelihood < -9000


def test_rules_are_scored_concurrently():
    problem, found = problem_of(Symbolic(), walk(*range(PLACES))), {}

    def work(number):
        found[number] = problem.judge("Always, walked." if number % 2 else "Always, bumped.")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = problem_of(Symbolic(), walk(*range(PLACES)))
    assert found[1] == found[7] == alone.judge("Always, walked.")
    assert found[0] == found[6] == alone.judge("Always, bumped.")


class Guesser(Backend):
    """Predicts at random."""

    def complete(self, request):
        kind = Path.kinds[int(np.random.default_rng(request.seed).random() < 0.5)]
        return Completion(f"1. Always, {kind}.")


def test_problem_accepts_strategies_by_their_moves():
    problem = problem_of(Symbolic(), walk(*range(5)))
    search = Search(problem, ZeroShot(), Guesser())
    for _ in search.run(8):
        pass
    assert search.best.program == "Always, walked."
    for strategy in (GifMcts(), WorldCoder()):
        with pytest.raises(CwmError, match="another strategy") as refused:
            Search(problem, strategy, Guesser())
        assert len(str(refused.value).splitlines()) == 1


def test_prompt_has_language_and_unreadable_lines():
    problem = problem_of(Symbolic(), walk(0))
    words = problem.messages(Move(GENERATE))[-1].content
    assert "- way: on, back" in words
    assert "walked, bumped" in words
    assert "If FACT is VALUE" in words
    rules = "If way is on, then walked.\nAgents that go on walk."
    bettered = problem.messages(Move(IMPROVE, 0, rules, None))[-1].content
    assert "line 2 is no rule" in bettered
    assert "line 1" not in bettered
    free = problem_of(Counting(), walk(0)).messages(Move(IMPROVE, 0, rules, None))[-1].content
    assert "FACT" not in free
    assert "cannot be read" not in free
