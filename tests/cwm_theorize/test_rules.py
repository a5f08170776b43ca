"""Rules in words are parsed, written in the same form, and proposed with known probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from cwm_cli.data.dataset import Transition
from cwm_cli.envs.text_view import Change, TextView
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import EVIDENCE, GENERATE, IMPROVE, Move, Request, ScoreRequest
from cwm_cli.search.loop import Search
from cwm_theorize.playground.door import ITEMS, Door, DoorWords
from cwm_theorize.playground.door import RULES as RULES_OF_DOORS
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.statistician import (
    PredictionQuestion,
    Statistician,
    TextTransition,
    text_transitions,
)
from cwm_theorize.theories.drawing import Words
from cwm_theorize.theories.grammar import Grammar
from cwm_theorize.theories.language import (
    Conclusion,
    Reference,
    RuleLanguage,
    RuleLine,
    Ruleset,
    language_of,
)
from cwm_theorize.theories.strategies import Metropolis
from cwm_theorize.theories.symbolic import Symbolic


class GardenView(TextView):
    """A text view without an environment: an item, its target, and the result."""

    kinds = ("taken", "grown", "nothing")
    vocabulary = {  # noqa: RUF012
        "verb": ("take", "pour", "pour on and wait"),
        "plant": ("pea seed", "pea", "leek seed"),
        "in the hand": ("water", "pea seed", "nothing"),
    }
    conclusions = {  # noqa: RUF012
        "taken": {"object": ("pea seed", "pea", "leek seed"), "hand": ("left", "right")},
        "grown": {"object": ("pea", "leek")},
        "nothing": {},
    }


GROWN = Change("A pea has grown.", "grown", {"object": "pea"})
OTHER = Change("A leek has grown.", "grown", {"object": "leek"})
TAKEN = Change("You take the pea seed.", "taken", {"object": "pea seed", "hand": "left"})
AGAIN = Change("You take it to the right.", "taken", {"object": "pea seed", "hand": "right"})
NOTHING = Change("Nothing happens.", "nothing")


def transition(change: Change, verb: str, plant: str, hand: str) -> TextTransition:
    facts = {"verb": verb, "plant": plant, "in the hand": hand}
    return TextTransition("", verb, change, (GROWN, OTHER, TAKEN, AGAIN, NOTHING), facts)


POURED = transition(GROWN, "pour", "pea seed", "water")
TOOK = transition(TAKEN, "take", "pea seed", "nothing")
HELD = transition(NOTHING, "take", "pea seed", "pea seed")

RULES = """\
If verb is take and plant is the same as in the hand, then nothing.
If verb is take and in the hand is not water, then taken with object the same as plant.
If verb is pour and in the hand is water, then grown."""


@pytest.fixture
def language() -> RuleLanguage:
    return language_of(GardenView())


def test_written_rules_equal_parsed_rules(language: RuleLanguage) -> None:
    for text in (RULES, f"{RULES}\nOtherwise, nothing.", "Always, taken with hand left.", ""):
        reading = language.read(text)
        assert not reading.problems
        assert str(reading.rules) == text


def test_markers_capitals_and_order_of_conditions_are_ignored(language: RuleLanguage) -> None:
    text = """
    1. if in the hand is WATER and the verb is pour then Grown with object is pea
    - If the in the hand is the same as the plant and verb is take, then taken with hand left \
and with object pea seed."""
    reading = language.read(text)
    assert not reading.problems
    assert str(reading.rules) == (
        "If verb is pour and in the hand is water, then grown with object pea.\n"
        "If verb is take and plant is the same as in the hand, "
        "then taken with object pea seed and hand left."
    )
    longer = language.read("If verb is pour on and wait and plant is pea, then nothing.").rules
    assert [each.value for each in longer.lines[0].conditions] == ["pour on and wait", "pea"]


def test_unreadable_lines_are_reported_and_have_no_effect(language: RuleLanguage) -> None:
    wrong = {
        "Water makes plants grow.": "not of the form",
        "If colour is red, then nothing.": "no fact at 'colour is red'",
        "If verb is fly, then nothing.": "no value of 'verb'",
        "If verb is pour or plant is pea, then nothing.": "joined by 'and'",
        "If verb pour, then nothing.": "'is' has to follow 'verb'",
        "If plant is the same as plant, then nothing.": "with itself",
        "If verb is pour, then flown.": "no kind of change at 'flown'",
        "If verb is pour, then grown with hand left.": "no field of 'grown'",
        "If verb is pour, then grown with object pea and object leek.": "'object' twice",
        "If verb is pour, then nothing at all.": "'with' has to come",
    }
    for line, reason in wrong.items():
        reading = language.read(f"{line}\nOtherwise, nothing.")
        assert reading.rules.otherwise == Conclusion("nothing")
        assert not reading.rules.lines, line
        assert len(reading.problems) == 1
        assert reason in reading.problems[0], reading.problems
        assert reading.problems[0].startswith("line 1 is no rule")
    late = language.read("Otherwise, nothing.\nIf verb is pour, then grown.")
    assert "after the line that always applies" in late.problems[0]


def test_first_line_that_applies_decides() -> None:
    statistician = Statistician(GardenView(), Symbolic(noise=0.1))
    poured, took, held = map(np.exp, statistician.of_candidates(RULES, [POURED, TOOK, HELD]))
    assert poured == pytest.approx([0.47, 0.47, 0.02, 0.02, 0.02])  # which one is left open
    assert took == pytest.approx([0.02, 0.02, 0.47, 0.47, 0.02])  # a field that is a fact
    assert held == pytest.approx([0.02, 0.02, 0.02, 0.02, 0.92])  # the first of two that apply
    assert statistician.log_likelihoods(RULES, [POURED, TOOK, HELD]) == pytest.approx(
        np.log([0.47, 0.47, 0.92])
    )


def test_silent_and_impossible_rules_give_equal_probabilities() -> None:
    statistician = Statistician(GardenView(), Symbolic())
    impossible = "Always, taken with object pea."
    for rules in ("", "Plants grow.", "If verb is pour, then grown.", impossible):
        (weights,) = statistician.of_candidates(rules, [TOOK])
        assert np.exp(weights) == pytest.approx([0.2] * 5), rules


def test_missing_fact_has_no_value_and_equals_no_fact() -> None:
    bare = TOOK._replace(facts={"verb": "take"})
    statistician = Statistician(GardenView(), Symbolic(noise=0.5))
    for rules, likely in (
        ("If plant is the same as in the hand, then grown.", 0.2),
        ("If plant is not pea, then nothing.", 0.1),
        ("If plant is not the same as in the hand, then nothing.", 0.1),
    ):
        assert np.exp(statistician.log_likelihoods(rules, [bare])) == pytest.approx([likely])


def test_scores_do_not_depend_on_the_batch() -> None:
    few = TOOK._replace(candidates=(TAKEN, NOTHING))
    asked = [POURED, few, HELD, TOOK, few]
    statistician = Statistician(GardenView(), Symbolic())
    together = statistician.of_candidates(RULES, asked)
    for alone, among in zip(asked, together, strict=True):
        (again,) = Statistician(GardenView(), Symbolic()).of_candidates(RULES, [alone])
        assert again.tolist() == among.tolist()
        assert np.exp(among).sum() == pytest.approx(1)
        question = PredictionQuestion(GardenView(), RULES, alone)
        each = Symbolic().score([ScoreRequest((), c.text, question) for c in alone.candidates])
        assert [*map(sum, each)] == among.tolist()


def test_unscorable_input_gives_one_line() -> None:
    statistician = Statistician(GardenView(), Symbolic())
    with pytest.raises(CwmError, match="is not among the possible changes"):
        statistician.log_likelihoods("", [TOOK._replace(change=Change("?", "taken"))])
    with pytest.raises(CwmError, match="this environment lists no possible changes"):
        statistician.log_likelihoods("", [TOOK._replace(candidates=())])
    with pytest.raises(CwmError, match="choose another backend"):
        Symbolic().score([ScoreRequest((), "a plant")])
    with pytest.raises(CwmError, match="leave out --model"):
        Symbolic(model="large")


def test_reference_in_conclusion_is_parsed(language: RuleLanguage) -> None:
    line = language.read(RULES).rules.lines[1]
    assert line.conclusion.fields == (("object", Reference("plant")),)


class SwitchView(TextView):
    """A vocabulary small enough to count all rules of two lines."""

    kinds = ("on", "off")
    vocabulary = {"switch": ("up", "down"), "lamp": ("up", "broken")}  # noqa: RUF012


ON, OFF = Change("It is on.", "on"), Change("It is off.", "off")
SWITCHED = [
    TextTransition("", "", change, (ON, OFF), {"switch": switch, "lamp": lamp})
    for change, switch, lamp in (
        (ON, "up", "up"),
        (OFF, "up", "broken"),
        (OFF, "down", "up"),
    )
]


def all_rules(language: RuleLanguage) -> Iterator[Ruleset]:
    """Yield all rules of at most one line, with and without a default conclusion."""
    comparisons = Words(language, 1.0).comparisons.values()
    conclusions = [Conclusion(kind) for kind in language.fields]
    yield from (Ruleset((), conclusion) for conclusion in conclusions)
    for chosen in product(*([None, *each] for each in comparisons)):
        conditions = language.ordered([each for each in chosen if each])
        for conclusion, otherwise in product(conclusions, [None, *conclusions]):
            if conditions:
                yield Ruleset((RuleLine(conditions, conclusion),), otherwise)


class Recorded(TheoryProblem):
    """A problem whose evidence is given in words."""

    evidence: list[TextTransition] = []  # type: ignore[assignment]  # noqa: RUF012


def asked(view: TextView, evidence: list[TextTransition], rules: str | None) -> Request:
    problem = Recorded(Statistician(view, Symbolic()))
    problem.evidence = evidence
    move = Move(GENERATE) if rules is None else Move(IMPROVE, 0, rules)
    return Request((), 0, move, problem, weighed=True)


@pytest.mark.parametrize("evidence", [[], SWITCHED])
def test_grammar_probabilities_add_up_to_one(
    evidence: list[TextTransition],
) -> None:
    grammar = Grammar(lines=1, from_evidence=0.7)
    rules = [str(each) for each in all_rules(language_of(SwitchView()))]
    for given in (
        None,
        "",
        "Always, off.",
        "If switch is up, then on.",
        "If switch is the same as lamp and lamp is not broken, then on.\nOtherwise, off.",
    ):
        request = asked(SwitchView(), evidence, given)
        scores = grammar.score([ScoreRequest((), text, request) for text in rules])
        assert np.exp([sum(each) for each in scores]).sum() == pytest.approx(1), given


def test_grammar_draws_match_their_probabilities() -> None:
    grammar, draws = Grammar(lines=3), 1500
    for view, evidence, rules in (
        (GardenView(), [POURED, TOOK, HELD], RULES),
        (SwitchView(), SWITCHED, "If lamp is up, then off.\nIf lamp is up, then off."),
        (SwitchView(), SWITCHED, None),
    ):
        request = asked(view, evidence, rules)._replace(weighed=False)
        answers = [grammar.complete(request._replace(seed=seed)) for seed in range(draws)]
        counts = Counter(answer.text for answer in answers).most_common(25)
        scores = grammar.score([ScoreRequest((), text, request) for text, _ in counts])
        for (text, count), (score,) in zip(counts, scores, strict=True):
            chance = np.exp(score)
            assert abs(count / draws - chance) < 5 * np.sqrt(chance / draws), text
        weighed = [grammar.complete(request._replace(seed=seed, weighed=True)) for seed in range(9)]
        scores = grammar.score([ScoreRequest((), each.text, request) for each in weighed])
        assert [[each.log_probability] for each in weighed] == scores
        assert [each.text for each in weighed] == [each.text for each in answers[:9]]


def test_grammar_rejects_other_problems_and_texts() -> None:
    with pytest.raises(CwmError, match="only proposes rules in words"):
        Grammar().complete(Request((), 0, Move(GENERATE), None))
    with pytest.raises(CwmError, match="only scores its own proposals"):
        Grammar().score([ScoreRequest((), "rules")])
    request = asked(SwitchView(), SWITCHED, None)
    assert Grammar().score([ScoreRequest((), "Lamps shine.", request)]) == [[-np.inf]]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES_OF_DOORS)
def test_metropolis_finds_the_rule_of_a_door(rule: str) -> None:
    view, opens = DoorWords(Door(rule=rule)), RULES_OF_DOORS[rule]
    rows = [
        Transition(0, action, int(opens(item)), float(opens(item)), True, episode=action)
        for action, item in enumerate(ITEMS)
    ]
    problem = TheoryProblem(Statistician(view, Symbolic()))
    search = Search(problem, Metropolis(), Grammar(), seed=3)
    rng = np.random.default_rng(3)
    for phase in range(1, 41):
        problem.observe([rows[action] for action in rng.integers(len(ITEMS), size=5)])
        search.outdate()
        assert all(record.node.action == EVIDENCE for record in search.renew())
        assert len(list(search.run(5 * phase))) == 5
    assert search.best is not None
    items = text_transitions(view, rows)
    likely = problem.statistician.log_likelihoods(search.best.program, items)
    assert np.exp(likely) == pytest.approx([0.975] * len(ITEMS))
