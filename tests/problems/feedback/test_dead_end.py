"""Dead ends are reported once, then a hidden episode is disclosed; no prompt is repeated.

The environment counts up by 1 or 2, but from 70 to 79 it returns to 0. Only hidden episodes contain
this rule.
"""

import re
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.runs.nodes import SearchRecord
from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun
from cwm_cli.search.contracts import (
    FIX,
    GENERATE,
    IMPROVE,
    ROOT,
    Backend,
    Completion,
    Move,
    Usage,
)
from cwm_cli.search.loop import Search
from cwm_gif_mcts.strategy import GifMcts
from cwm_replay.backend import Replay
from cwm_worldcoder.strategy import WorldCoder
from cwm_zero_shot.strategy import ZeroShot
from recordings import COUNTER, MOVES

PROGRAM = """
class Environment:
    def set_state(self, observation):
        self.count = observation

    def step(self, action):
        after = {after}
        self.count = after
        return after, float(after % 10 == 0), False
"""
NAIVE = PROGRAM.format(after="self.count + 1 + action")
RIGHT = PROGRAM.format(after="0 if 70 <= self.count < 80 else self.count + 1 + action")
OFF = PROGRAM.format(after="self.count + 2")
RAISES = PROGRAM.format(after="self.missing")


CONFIG = SearchConfig(env="Count-v0", dataset="", strategy="any", backend="any")
HEADER = SearchHeader(
    config=CONFIG, description="It counts.", versions={}, source="", created="now"
)


def naive(number):
    """Return the same rule with other text."""
    return NAIVE.replace("+ 1 + action", f"+ {number + 1} + action - {number}")


def counting(episodes=20):
    """Record episodes of five steps; hidden episodes (3, 6, 9, ...) start at 67 or 68."""
    rows = []
    for episode in range(episodes):
        is_hidden = episode % 10 in (3, 6, 9)
        count = 67 + episode % 2 if is_hidden else 3 * episode
        for step in range(5):
            action = (episode + step) % 2
            after = 0 if 70 <= count < 80 else count + 1 + action
            rows.append(
                Transition(count, action, after, float(after % 10 == 0), False, False, episode)
            )
            count = after
    return Dataset.of(rows, observation_space=COUNTER, action_space=MOVES)


DATA = counting()
HIDDEN = sorted(set(DATA.columns["episodes"][~DATA.fitted].tolist()))


@dataclass
class ScriptedBackend(Backend):
    """A backend that returns prepared answers in order, and keeps its requests."""

    answers: list[str] = field(default_factory=list)
    requests: list[object] = field(default_factory=list)

    def complete(self, request):
        self.requests.append(request)
        return Completion(f"```python\n{self.answers[request.step]}\n```")

    def prompts(self):
        requests = sorted(self.requests, key=lambda request: request.step)
        return [request.messages[-1].content for request in requests]


def problem(sandbox, **options):
    return WorldModelProblem("It counts.", DATA, sandbox, AccuracyMetric.of(DATA), **options)


def start_search(sandbox, answers, strategy=GifMcts, parallel=1, **options):
    backend = ScriptedBackend(list(answers))
    search = Search(problem(sandbox, **options), strategy(), backend, parallel=parallel)
    return search, backend


def test_only_hidden_episodes_contain_the_return_to_zero():
    assert HIDDEN == [3, 6, 9, 13, 16, 19]
    shown = DATA[DATA.fitted].columns["observations"]
    assert not ((shown >= 70) & (shown < 80)).any()


def test_the_report_on_a_dead_end_names_parts_actions_and_regions_but_no_hidden_value(sandbox):
    verdict = problem(sandbox).judge(NAIVE)
    words = verdict.failure.message
    wrong = int((DATA.columns["observations"] >= 70).sum())
    assert f"{wrong} of {int((~DATA.fitted).sum())} transitions of other episodes" in words
    assert re.search(rf"- observation: {wrong}\n", words)
    assert "- reward: " in words
    assert "- by action: action 0: " in words
    shown = DATA[DATA.fitted].columns["observations"]
    assert f"observation above all shown values (at most {shown.max()})" in words
    hidden = {row.observation for row in DATA[~DATA.fitted]} - set(shown.tolist())
    counts = {wrong, int((~DATA.fitted).sum())}
    assert not {int(n) for n in re.findall(r"\d+", words)} & (hidden - counts)
    assert verdict.dead_end == 3


def test_one_episode_is_disclosed_after_one_question_about_a_dead_end(sandbox):
    answers = [NAIVE, naive(1), naive(2), RIGHT]
    search, backend = start_search(sandbox, answers)
    records = list(search.run(6))
    assert [record.node.disclosed for record in records] == [None, 3, None, None]
    first, blind, informed, again = backend.prompts()
    assert "of other episodes are not" not in first
    assert "of other episodes are not" in blind
    assert "## Recorded transitions" in blind
    assert not re.search(r"^7\d: ", blind, re.MULTILINE)
    assert "of other episodes are not" not in informed
    assert "at full precision" in informed
    hidden = DATA[DATA.columns["episodes"] == 3]
    assert any(f"observation       {row.observation}\n" in informed for row in hidden)
    assert "predicted" in again
    assert search.solved


@pytest.mark.parametrize("strategy", [GifMcts, WorldCoder])
def test_only_disclosed_episodes_are_ever_shown(sandbox, strategy):
    search, backend = start_search(sandbox, [naive(n) for n in range(6)], strategy)
    disclosed = []
    for number, record in enumerate(search.run(6)):
        kept = np.isin(DATA.columns["episodes"], [e for e in HIDDEN if e not in disclosed])
        secret = {f"observation       {row.observation}\n" for row in DATA[kept]}
        open_rows = {f"observation       {row.observation}\n" for row in DATA[~kept]}
        prompt = backend.prompts()[number]
        assert not any(line in prompt for line in secret - open_rows)
        if record.node.disclosed is not None:
            disclosed.append(record.node.disclosed)
    assert len(disclosed) == len(set(disclosed)) <= len(HIDDEN) // 2
    assert disclosed[0] == 3


def test_at_most_half_of_the_hidden_episodes_are_disclosed(sandbox):
    task = problem(sandbox)
    search, _ = start_search(sandbox, [NAIVE, naive(1)])
    list(search.run(2))
    task.update(search.nodes[0])
    answer = search.nodes[1]
    assert task.discloses(answer) == 3
    # Fitted episodes leave the program a dead end, so that only their number counts.
    task._history.disclosed = (0, 1)
    assert task.discloses(answer) == 3
    task._history.disclosed = (0, 1, 2)
    assert task.discloses(answer) is None
    task._history.disclosed = tuple(HIDDEN[:3])
    assert task.shown.sum() == DATA.fitted.sum() + 15


def test_verdicts_do_not_depend_on_disclosed_episodes(sandbox):
    task = problem(sandbox)
    before = task.judge(NAIVE)
    task._history.disclosed = (6, 9)
    assert task.judge(NAIVE) == before
    seen = task._verdict_on_shown(NAIVE, before)
    assert (seen.score, seen.dead_end) == (before.score, None)
    assert "at full precision" in seen.failure.message


@pytest.mark.slow
def test_a_repeated_search_discloses_the_same_episodes(sandbox, tmp_path):
    backend, width = ScriptedBackend([NAIVE, *(naive(n) for n in range(1, 6))]), 3
    for name in ("first", "again"):
        with SearchRun.start(tmp_path / name, HEADER, {"dataset.npz": DATA}) as run:
            task = problem(sandbox)
            journal = run.learn
            list(Search(task, GifMcts(), backend, parallel=width, journal=journal).run(6))
        backend, width = Replay(str(tmp_path / "first")), 1
    first, again = (
        [replace(node, usage=Usage()) for node in SearchRun.load(tmp_path / name).nodes()]
        for name in ("first", "again")
    )
    assert first == again
    assert any(node.disclosed is not None for node in first)


def test_a_resumed_search_asks_and_discloses_the_same(sandbox):
    answers = [NAIVE, *(naive(n) for n in range(1, 5))]
    uncut, backend = start_search(sandbox, answers)
    records = [
        SearchRecord(node=record.node, text=record.text).model_dump_json()
        for record in uncut.run(5)
    ]
    for cut in (1, 3):
        resumed, later = start_search(sandbox, answers)
        resumed.resume(SearchRecord.model_validate_json(line).node for line in records[:cut])
        added = [
            SearchRecord(node=record.node, text=record.text).model_dump_json()
            for record in resumed.run(5)
        ]
        assert records[:cut] + added == records
        assert later.prompts() == backend.prompts()[cut:]


def test_published_prompts_disclose_no_episode_and_list_no_changes(sandbox):
    search, backend = start_search(
        sandbox, [NAIVE] * 5, lambda: GifMcts(preset="paper"), feedback="paper"
    )
    assert not any(record.node.disclosed is not None for record in search.run(5))
    assert not any("did not help" in prompt for prompt in backend.prompts())
    assert len(set(backend.prompts())) < 5


@pytest.mark.parametrize(
    ("strategy", "program", "parallel"),
    [(GifMcts, NAIVE, 1), (GifMcts, OFF, 3), (WorldCoder, NAIVE, 3), (WorldCoder, RAISES, 1)],
)
def test_all_prompts_differ_even_if_all_answers_are_equal(sandbox, strategy, program, parallel):
    search, backend = start_search(sandbox, [program] * 7, strategy, parallel)
    list(search.run(7))
    assert len({request.key for request in backend.requests}) == 7
    assert all(request.occurrence == 0 for request in backend.requests)


def test_zero_shot_prompts_are_equal(sandbox):
    search, backend = start_search(sandbox, [OFF] * 4, ZeroShot)
    list(search.run(4))
    assert len(set(backend.prompts())) == 1


def test_prompts_list_changes_that_did_not_help_with_their_results(sandbox):
    search, backend = start_search(sandbox, [OFF, OFF.replace("+ 2", "+ 3"), RAISES, RIGHT])
    list(search.run(4))
    assert [node.action for node in search.nodes[:3]] == [GENERATE, IMPROVE, IMPROVE]
    prompt = backend.prompts()[2]
    assert "These changes were tried and did not help:" in prompt
    assert "- `after = self.count + 2` became `after = self.count + 3`: score 0." in prompt
    fix = search.problem.messages(Move(FIX, 2, RAISES, search.nodes[2].verdict))[-1].content
    assert fix.count("did not help") == 1


def test_a_repeated_generate_prompt_lists_earlier_programs(sandbox):
    task = problem(sandbox)
    search, _ = start_search(sandbox, [OFF, RAISES])
    for record in search.run(2):
        task.update(record.node)
    first, second = (task.varied(Move(GENERATE), number)[-1].content for number in (1, 2))
    assert first != second
    assert "- score 0." in first
    assert "observation right in" in first
    assert "- it raised: AttributeError" in first
    assert task.messages(Move(GENERATE, ROOT)) == problem(sandbox).messages(Move(GENERATE, ROOT))
