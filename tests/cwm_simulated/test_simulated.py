"""The simulated proposer follows its probabilities, and the laboratory sums its runs up."""

import ast
from collections import Counter
from functools import cache
from math import sqrt
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import recordings
from benchmarks.charts import chart
from benchmarks.curves import Band, curve
from benchmarks.training import Returns
from cwm_cli.errors import CwmError
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    FIX,
    GENERATE,
    IMPROVE,
    Message,
    Move,
    Problem,
    Request,
    Verdict,
)
from cwm_cli.search.loop import Search
from cwm_cli.search.reading import extract_program
from cwm_gif_mcts.strategy import GifMcts
from cwm_neural.training.runs import AgentTest, TrainingResult
from cwm_simulated.backend import Simulated
from cwm_simulated.original import CRASHES, Original
from folders import WORLD_MODELS
from worlds import LAKE

WRONG = Verdict(score=0.5, failure=Failure(kind="mismatch", message="row 1"))
POLES = WORLD_MODELS / "cartpole_helpers.py"
ORIGINAL = Original(POLES.read_text())
CORRECT = ORIGINAL.write([])
KINDS = sorted({edit.kind for edit in ORIGINAL.edits})


def proposer(file=POLES, **options):
    """Return a proposer with probabilities 0 except for the given options."""
    still = {"errors": 0, "crashes": 0, "fixes": 0, "improves": 0, "breaks": 0}
    return Simulated(program=str(file), **still | options)


def ask(backend, move, *, seed=0, step=0):
    messages = (Message(role="user", content="12345678"),)
    return backend.complete(Request(messages, seed, move, problem=None, step=step))


def answer(backend, move, seed=0):
    return extract_program(ask(backend, move, seed=seed).text, prefix=move.prefix)


def improve(program):
    return Move(IMPROVE, 0, program, WRONG)


def fix(program, line):
    failure = Failure(kind="step_error", message="NameError", line=line)
    return Move(FIX, 0, program, Verdict(score=0.0, failure=failure))


def errors_of(program):
    found = ORIGINAL.read_all(program)
    assert found is not None, program
    return found


def some(kind, *, but=()):
    """Return an error of a kind at a place without another error."""
    fits = [e for e in ORIGINAL.edits if e.kind == kind and not any(map(e.overlaps, but))]
    return fits[len(fits) // 2]


def assert_share(count, asked, chance):
    """Check a frequency to four standard deviations."""
    assert abs(count - asked * chance) <= 4 * sqrt(asked * chance * (1 - chance))


@pytest.mark.parametrize("name", ["cartpole_helpers", "taxi_walls", "pendulum_math", "lake_table"])
def test_every_error_is_found_in_the_text_and_reverted_exactly(name):
    original = Original((WORLD_MODELS / f"{name}.py").read_text())
    correct = original.write([])
    for edit in original.edits:
        wrong = original.write([edit])
        assert wrong != correct
        assert original.read_all(wrong) == {edit}
        assert extract_program(f"Here:\n\n```python\n{wrong}```\n") == wrong
        assert original.write(original.read_all(wrong) - {edit}) == correct


@pytest.mark.parametrize("name", ["cartpole_helpers", "taxi_walls", "pendulum_math", "lake_table"])
def test_only_syntax_errors_do_not_parse(name):
    original = Original((WORLD_MODELS / f"{name}.py").read_text())
    for edit in original.edits:
        try:
            ast.parse(original.write([edit]))
        except SyntaxError:
            assert edit.kind == "syntax", edit
        else:
            assert edit.kind != "syntax", edit


@pytest.mark.parametrize("kind", KINDS)
def test_improvement_repairs_errors_of_every_kind(kind):
    wrong = ORIGINAL.write([some(kind)])
    assert answer(proposer(improves=1), improve(wrong)) == CORRECT


def test_errors_of_every_kind_exist():
    everywhere = {e.kind for e in Original((WORLD_MODELS / "taxi_map.py").read_text()).edits}
    kinds = ["branch", "comparison", "constant", "deletion", "function", "name", "operator"]
    assert sorted(everywhere) == KINDS == [*kinds, "syntax"]


def test_errors_are_found_in_texts_beyond_ascii():
    original = Original('name = "é" * 3 + str(1)  # ü\n')
    for edit in original.edits:
        assert original.read_all(original.write([edit])) == {edit}
    assert {"constant", "operator", "syntax", "name"} <= {edit.kind for edit in original.edits}


def test_many_errors_are_distinguished():
    for seed in range(40):
        program = answer(proposer(errors=20), Move(GENERATE), seed)
        errors = errors_of(program)
        assert len(errors) > 5
        assert ORIGINAL.write(errors) == program


def test_loops_that_might_not_end_are_not_changed():
    original = Original("x = 1\nwhile x < 9:\n    x += 1\n")
    assert {edit.line for edit in original.edits} == {0}


@pytest.mark.slow
def test_most_single_errors_change_the_score(poles, sandbox):
    problem = recordings.problem(poles, sandbox)
    assert problem.judge(CORRECT).solved
    edits = ORIGINAL.edits[::8]
    verdicts = [problem.judge(ORIGINAL.write([edit])) for edit in edits]
    changed = [not verdict.solved for verdict in verdicts]
    assert np.mean(changed) > 0.7
    crashing = [v.is_bug for edit, v in zip(edits, verdicts, strict=True) if edit.kind in CRASHES]
    assert np.mean(crashing) > 0.8
    assert len({round(verdict.score, 2) for verdict in verdicts}) > 4


def test_equal_requests_get_equal_answers_and_other_seeds_or_steps_different_ones():
    backend = Simulated(program=str(POLES))
    first = ask(backend, Move(GENERATE), seed=3, step=7)
    assert ask(Simulated(program=str(POLES)), Move(GENERATE), seed=3, step=7) == first
    assert ask(backend, Move(GENERATE), seed=4, step=7) != first
    assert ask(backend, Move(GENERATE), seed=3, step=8) != first


def test_answers_are_labelled_as_simulated_and_cost_nothing():
    completion = ask(proposer(), Move(GENERATE))
    assert completion.text.startswith("This is a simulated proposal.\n\n```python\n")
    assert completion.usage.cost == 0
    assert completion.usage.prompt_tokens == 2
    assert completion.usage.completion_tokens == -(-len(completion.text) // 4)
    assert proposer().worst_cost(None) == 0


def test_new_programs_have_the_expected_numbers_of_errors_and_crashes():
    asked, mean, crashes = 400, 3.0, 0.3
    backend = proposer(errors=mean, crashes=crashes)
    found = [errors_of(answer(backend, Move(GENERATE), seed)) for seed in range(asked)]
    count = sum(map(len, found))
    assert abs(count - asked * mean) <= 4 * sqrt(asked * mean)
    assert_share(sum(e.kind in CRASHES for errors in found for e in errors), count, crashes)
    kinds = Counter(e.kind for errors in found for e in errors if e.kind not in CRASHES)
    assert len(kinds) == 6
    assert min(kinds.values()) > max(kinds.values()) / 2


def test_fix_repairs_the_exception_with_its_probability():
    raising, silent = some("name"), some("constant", but=[some("name")])
    wrong, asked = ORIGINAL.write([raising, silent]), 600
    backend, move = proposer(fixes=0.6, improves=1), fix(wrong, raising.line + 1)
    answers = [errors_of(answer(backend, move, seed)) for seed in range(asked)]
    assert set(answers) == {frozenset([raising, silent]), frozenset([silent])}
    assert_share(answers.count(frozenset([silent])), asked, 0.6)


def test_fix_repairs_syntax_errors_in_any_line():
    syntax, name = some("syntax"), some("name", but=[some("syntax")])
    wrong = ORIGINAL.write([syntax, name])
    assert errors_of(answer(proposer(fixes=1), fix(wrong, name.line + 1))) == {name}


def test_fix_repairs_a_misspelt_name_only_in_the_line_that_raised():
    name, silent = some("name"), some("constant", but=[some("name")])
    wrong = ORIGINAL.write([name, silent])
    assert name.line != silent.line
    for line in (silent.line + 1, None):
        assert errors_of(answer(proposer(fixes=1), fix(wrong, line))) == {name}


def test_improvement_repairs_any_error_with_its_probability():
    present = [some("constant"), some("branch", but=[some("constant")])]
    wrong, asked = ORIGINAL.write(present), 600
    backend = proposer(improves=0.4, fixes=1)
    left = Counter(errors_of(answer(backend, improve(wrong), seed)) for seed in range(asked))
    assert_share(left[frozenset(present)], asked, 0.6)
    for one in present:
        assert_share(left[frozenset([one])], asked, 0.2)
    assert len(left) == 3


@pytest.mark.parametrize("move", [improve, lambda program: fix(program, None)])
def test_revision_adds_an_error_with_its_probability(move):
    present, asked = some("constant"), 600
    wrong, broken = ORIGINAL.write([present]), 0
    backend = proposer(breaks=0.3, improves=1, fixes=1)
    for seed in range(asked):
        errors = errors_of(answer(backend, move(wrong), seed))
        assert len(errors) <= 1
        assert not any(map(present.overlaps, errors))
        broken += len(errors)
    assert_share(broken, asked, 0.3)


def test_correct_program_stays_correct_without_new_errors():
    for seed in range(20):
        assert answer(proposer(improves=1), improve(CORRECT), seed) == CORRECT
        assert len(errors_of(answer(proposer(breaks=1), improve(CORRECT), seed))) == 1


def test_prefix_keeps_its_errors_and_following_lines_are_drawn_again():
    lines = 30
    parent = ORIGINAL.write(errors_around(lines))
    prefix = "".join(f"{line}\n" for line in parent.split("\n")[:lines])
    move = Move(GENERATE, 0, parent, WRONG, prefix)
    kept = {edit for edit in errors_of(parent) if edit.line < lines}
    assert kept
    programs = [answer(proposer(errors=6), move, seed) for seed in range(100)]
    assert all(program.startswith(prefix) for program in programs)
    assert {e for p in programs for e in errors_of(p) if e.line < lines} == kept
    assert len(set(programs)) > 75
    fresh = sum(len(errors_of(program) - kept) for program in programs)
    mean = 6 * (1 - lines / len(ORIGINAL.lines))
    assert abs(fresh - 100 * mean) <= 4 * sqrt(100 * mean)


def errors_around(line):
    """Return an error above a line and one below it."""
    return [
        next(e for e in ORIGINAL.edits if e.kind == "constant"),
        next(e for e in ORIGINAL.edits if e.kind == "operator" and e.line > line),
    ]


def test_program_may_contain_fences_and_begin_with_blank_lines(tmp_path):
    text = '\n\n"""\n```python\nx = 1\n```\n"""\nclass Environment:\n    LIMIT = 1\n\n\n'
    file = tmp_path / "fences.py"
    file.write_text(text)
    assert answer(proposer(file), Move(GENERATE)) == text.strip() + "\n"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, {"program": ""}, "needs a correct program: give -o backend.program=FILE"),
        (None, {}, "there is no "),
        (b"\xff\xfe", {}, "not UTF-8 text"),
        (b"class Environment(:", {}, "is not a program"),
        (b"", {}, "has no parts to change"),
        (b"x = 1", {"model": "openai/gpt-5"}, "uses no model: leave out --model"),
    ],
)
def test_unusable_programs_are_rejected_in_one_line(tmp_path, content, options, message):
    file = tmp_path / "program.py"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CwmError, match=message) as refused:
        Simulated(**{"program": str(file)} | options)
    assert "\n" not in str(refused.value)


def test_program_from_another_source_is_rejected():
    for move in (
        improve("class Environment:\n    pass\n"),
        improve(CORRECT.replace("9.8", "7.7")),
        improve(CORRECT + "x = 1\n"),
        Move(GENERATE, 0, "", WRONG, "import os\n"),
    ):
        with pytest.raises(CwmError, match="was not made from"):
            ask(proposer(), move)


class Graded(Problem):
    """Scores a program by its errors: each takes a twelfth, down to a floor of a quarter."""

    @cache  # noqa: B019
    def judge(self, program):
        errors = errors_of(program)
        score = max(0.25, 1 - len(errors) / 12)
        failure = Failure(kind="mismatch", message="row 1") if errors else None
        return Verdict(score=score, floor=0.25, failure=failure)


GRADED = Graded()


def measured(backend, move, *, seed=0):
    """Return the score above the floor that a proposal of the simulated model reaches."""
    answer = backend.complete(Request((), seed, move, GRADED)).text
    return GRADED.judge(answer[answer.index("```python\n") + 10 : -4]).normalised


def test_measured_first_programs_are_right_with_the_measured_frequency():
    asked, backend = 400, proposer(chances="measured")
    scores = [measured(backend.of_system(n), Move(GENERATE), seed=n) for n in range(asked)]
    assert_share(sum(score == 1 for score in scores), asked, 18 / 20)
    assert min(scores) > 0.8


def test_hard_system_stays_hard():
    backend = proposer(chances="measured")
    hard = [measured(backend.of_system(n), Move(GENERATE)) < 1 for n in range(60)]
    again = [measured(backend.of_system(n), Move(GENERATE), seed=5) < 1 for n in range(60)]
    assert again == hard
    assert 0 < sum(hard) < 20


def test_measured_blind_programs_are_guesses():
    backend = proposer(chances="measured-blind")
    scores = [measured(backend, Move(GENERATE), seed=seed) for seed in range(100)]
    assert max(scores) < 1
    assert np.median(scores) == 0


@pytest.mark.parametrize(("errors", "exact"), [(9, 6 / 10), (4, 3 / 4), (1, 1 / 9)])
def test_measured_improvements_help_with_the_measured_frequency(errors, exact):
    backend, asked, present = proposer(chances="measured"), 300, set()
    for edit in ORIGINAL.edits[::5]:
        if len(present) < errors and not any(map(edit.overlaps, present)):
            present.add(edit)
    program = ORIGINAL.write(present)
    move = Move(IMPROVE, 0, program, GRADED.judge(program))
    scores = [measured(backend, move, seed=seed) for seed in range(asked)]
    assert_share(sum(score == 1 for score in scores), asked, exact)


def test_measured_completions_keep_given_lines():
    parent = ORIGINAL.write(errors_around(30))
    prefix = "".join(f"{line}\n" for line in parent.split("\n")[:30])
    request = Request((), 0, Move(GENERATE, 0, parent, WRONG, prefix), GRADED)
    program = extract_program(proposer(chances="measured").complete(request).text, prefix=prefix)
    assert program.startswith(prefix)


@pytest.mark.slow
def test_search_with_certain_repairs_ends_with_a_correct_program(tmp_path, sandbox):
    file = tmp_path / "lake.py"
    file.write_text(LAKE)
    recorded = recordings.record("FrozenLake-v1", episodes=30, is_slippery=False)

    def search():
        backend = proposer(file, errors=3, crashes=0.3, fixes=1, improves=1)
        return Search(recordings.problem(recorded, sandbox), GifMcts(), backend, seed=1)

    one, other = search(), search()
    texts = [record.text for record in one.run(30)]
    assert one.best.verdict.score == 1.0
    assert 1 < len(texts) < 30
    assert [record.text for record in other.run(30)] == texts
    assert other.nodes == one.nodes


def test_curve_is_within_its_band_and_certain_results_have_none():
    rng = np.random.default_rng(0)
    scores = np.maximum.accumulate(rng.random((400, 5)), axis=1)
    mean, low, high = curve("a", scores, np.zeros(400)).scores
    assert mean == pytest.approx(scores.mean(axis=0))
    error = scores.std(axis=0) / 20
    assert low == pytest.approx(mean - 1.96 * error, abs=0.2 * error[0])
    assert high == pytest.approx(mean + 1.96 * error, abs=0.2 * error[0])
    strata = np.arange(400) % 2
    flat = curve("b", np.repeat(strata[:, None] * 1.0, 5, axis=1), strata)
    assert flat.scores.low == pytest.approx(flat.scores.high)
    assert [float(band[-1]) for band in flat.solved] == pytest.approx([0.5, 0.5, 0.5])


def test_interquartile_mean_resists_outliers_and_is_resampled_within_each_task() -> None:
    rng = np.random.default_rng(0)
    scores, strata = rng.normal(size=(80, 3)), np.arange(80) % 2
    scores[0] = 1e6
    band = Band.interquartile(scores, strata)
    assert (np.abs(band.mean) < 0.5).all()
    assert ((band.low < band.mean) & (band.mean < band.high)).all()
    flat = Band.interquartile(np.repeat(strata[:, None] * 1.0, 3, axis=1), strata)
    assert [float(each[0]) for each in flat] == pytest.approx([0.5] * 3)


def test_training_returns_are_between_random_play_and_an_oracle() -> None:
    runs = []
    for seed in range(4):
        random, *tests = (
            AgentTest(number=n, steps=100 * n, returns=[20.0 + 40 * n, 20 + 44 * n], lengths=[])
            for n in range(3 + seed % 2)
        )
        runs.append(TrainingResult(Path(), [], tests, random, 300, {}, 0.0))
    found = Returns.of("dreamer", runs, 104)
    assert found.steps == [100, 200]
    assert found.band.mean == pytest.approx([0.5, 1.0])
    assert found.lines()[1] == "| dreamer | 200 | 1 | 1 to 1 | 4 |"


def test_chart_is_a_picture_with_every_strategy():
    lines = [curve(name, np.linspace(0.3, 0.9, 30)[None], np.zeros(1)) for name in ("a<b", "c")]
    root = ElementTree.fromstring(chart(lines, "simulated & not real"))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"simulated & not real", "a<b", "c", "completions"} <= set(texts)
    drawn = [element for element in root.iter() if element.tag.endswith("polyline")]
    points = [[*map(float, pair.split(","))] for pair in drawn[0].get("points").split()]
    assert len(drawn) == 2
    assert len(points) == 30
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
