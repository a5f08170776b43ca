"""Replayed answers: a search with the same answers has the same tree."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import JOURNAL, SearchConfig, SearchHeader, SearchRun
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    GENERATE,
    IMPROVE,
    ROOT,
    Backend,
    Completion,
    Message,
    Move,
    Node,
    Problem,
    Record,
    Request,
    Strategy,
    Usage,
    Verdict,
)
from cwm_cli.search.loop import Search
from cwm_gif_mcts.strategy import GifMcts
from cwm_replay.backend import Replay
from cwm_zero_shot.strategy import ZeroShot

BUDGET = 6
CONFIG = SearchConfig(env="Count-v0", dataset="", strategy="any", backend="replay")
HEADER = SearchHeader(
    config=CONFIG, description="It counts.", versions={}, source="", created="now"
)
SPACE = Space("discrete", low=(0,), high=(1,))
DATASET = Dataset.of([Transition(0, 1, 1, 1.0, False)], observation_space=SPACE, action_space=SPACE)


class LongestProgram(Problem):
    """Asks for long programs: a tenth of a point per line."""

    def messages(self, move):
        return (Message(role="user", content=f"{move.action} {move.program}"),)

    def judge(self, program):
        mismatch = Failure(kind="mismatch", message="too short")
        return Verdict(score=len(program.splitlines()) / 10, failure=mismatch)


@dataclass
class Refine(Strategy):
    """Improves the newest program, and sometimes an older one again."""

    def __post_init__(self):
        self.nodes = []

    def select(self, rng, pending):
        if not self.nodes:
            return Move(GENERATE)
        node = self.nodes[max(0, len(self.nodes) - int(rng.integers(1, 4)))]
        return Move(IMPROVE, node.id, node.program, node.verdict)

    def update(self, node):
        self.nodes.append(node)

    def state(self, node):
        return ""


@pytest.fixture
def texts(tmp_path):
    """A folder of answers; the name of the last one sorts first."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(BUDGET):
        lines = "\n".join(f"x{line} = {number}" for line in range(number + 1))
        (folder / f"{number}.md").write_text(f"```python\n{lines}\n```\n")
    (folder / "notes.json").write_text("{}")
    return folder


@dataclass
class Unordered(Backend):
    """Answers with texts; some arrive after later ones."""

    texts: Path

    def complete(self, request):
        time.sleep(0.03 * (request.step % 3 == 0))
        return Replay(str(self.texts)).complete(request)


def search(folder, strategy, backend, budget=BUDGET, parallel=1):
    """Search with a run folder, new or continued, and return the run."""
    run = (
        SearchRun.load(folder)
        if folder.exists()
        else SearchRun.start(folder, HEADER, {"dataset.npz": DATASET})
    )
    with run:
        searching = Search(
            LongestProgram(), strategy, backend, seed=3, parallel=parallel, journal=run.learn
        )
        searching.resume(run.nodes())
        list(searching.run(budget))
    return run


def question(text, occurrence=0, step=0):
    messages = (Message(role="user", content=text),)
    return Request(messages, 0, Move(GENERATE), None, step, occurrence)


@pytest.mark.parametrize("strategy", [ZeroShot, Refine])
def test_replayed_run_has_the_same_journal(strategy, texts, tmp_path):
    first = search(tmp_path / "first", strategy(), Replay(str(texts)))
    again = search(tmp_path / "again", strategy(), Replay(str(first.folder)))
    assert len(list(first.nodes())) == BUDGET
    assert (again.folder / JOURNAL).read_bytes() == (first.folder / JOURNAL).read_bytes()


@pytest.mark.parametrize("strategy", [ZeroShot, Refine])
@pytest.mark.parametrize("cut", range(BUDGET))
def test_interrupted_replay_continues(strategy, cut, texts, tmp_path):
    first = search(tmp_path / "first", strategy(), Replay(str(texts)))
    search(tmp_path / "again", strategy(), Replay(str(first.folder)), budget=cut)
    again = search(tmp_path / "again", strategy(), Replay(str(first.folder)))
    assert (again.folder / JOURNAL).read_bytes() == (first.folder / JOURNAL).read_bytes()


@pytest.mark.parametrize("strategy", [Refine, GifMcts])
def test_run_with_several_completions_in_flight_is_replayed_in_its_order(strategy, texts, tmp_path):
    first = search(tmp_path / "first", strategy(), Unordered(texts), parallel=3)
    recorded = (first.folder / JOURNAL).read_bytes()
    assert [node.step for node in first.nodes()] != list(range(BUDGET))
    for parallel in (1, 2, 3):
        again = search(
            tmp_path / f"{parallel}", strategy(), Replay(str(first.folder)), BUDGET, parallel
        )
        assert (again.folder / JOURNAL).read_bytes() == recorded
    for cut in range(BUDGET):
        folder, lines = tmp_path / f"cut {cut}", recorded.splitlines(keepends=True)
        part = search(folder, strategy(), Replay(str(first.folder)), cut)
        assert (part.folder / JOURNAL).read_bytes() == b"".join(lines[:cut])
        search(folder, strategy(), Replay(str(first.folder)))
        assert (part.folder / JOURNAL).read_bytes() == recorded


def test_replay_ends_with_the_recording_and_reports_it(texts, tmp_path):
    first = search(tmp_path / "first", Refine(), Replay(str(texts)), budget=3)
    searching = Search(LongestProgram(), Refine(), Replay(str(first.folder)), seed=3)
    records = list(searching.run(BUDGET))
    assert [record.note for record in records] == ["", "", "the recording ends after 3 completions"]
    assert not list(searching.drain())


def test_journal_without_times_of_requests_is_replayed(texts, tmp_path):
    first = search(tmp_path / "first", Refine(), Unordered(texts), parallel=2)
    journal = first.folder / JOURNAL
    recorded = journal.read_bytes()
    journal.write_bytes(re.sub(rb',"known":\d+', b"", recorded))
    assert journal.read_bytes() != recorded
    again = search(tmp_path / "again", Refine(), Replay(str(first.folder)))
    assert (again.folder / JOURNAL).read_bytes() == recorded


def test_replayed_answers_keep_their_tokens_and_cost_nothing(tmp_path):
    node = Node(
        id=0,
        step=0,
        parent=ROOT,
        action=GENERATE,
        program="",
        verdict=Verdict(score=0.5),
        prompt=question("hi").key,
        usage=Usage(prompt_tokens=7, completion_tokens=5, cost=0.25, seconds=3.5),
    )
    with SearchRun.start(tmp_path / "paid", HEADER, {"dataset.npz": DATASET}) as run:
        run.learn(Record(node, "Hello."))
    replay = Replay(str(run.folder))
    usage = Usage(prompt_tokens=7, completion_tokens=5, cost=0.0, seconds=0.0)
    assert replay.complete(question("hi")) == Completion("Hello.", usage)
    assert replay.worst_cost(question("hi")) == 0.0


def test_equal_prompts_get_their_answers_in_the_order_of_requests(texts, tmp_path):
    """The journal has them in the order of arrival."""
    run = search(tmp_path / "run", ZeroShot(), Replay(str(texts)))
    journal = run.folder / JOURNAL
    journal.write_bytes(b"".join(reversed(journal.read_bytes().splitlines(keepends=True))))
    replay = Replay(str(run.folder))
    answers = [replay.complete(question("generate ", n)).text for n in range(BUDGET)]
    assert answers == [file.read_text() for file in sorted(texts.glob("*.md"))]


def test_unrecorded_prompt_has_no_answer(texts, tmp_path):
    run = search(tmp_path / "run", ZeroShot(), Replay(str(texts)))
    replay = Replay(str(run.folder))
    advice = "replay with --env Count-v0 --strategy any --seed 0 --dataset .*dataset.npz and"
    with pytest.raises(CwmError, match=f"never asked this: {advice}"):
        replay.complete(question("something else"))
    with pytest.raises(CwmError, match=f"asked this only 6 times: {advice}"):
        replay.complete(question("generate ", BUDGET))


def test_nth_text_file_answers_the_nth_request(texts):
    replay = Replay(str(texts))
    answers = [replay.complete(question("?", step=step)).text for step in reversed(range(BUDGET))]
    assert answers[::-1] == [file.read_text() for file in sorted(texts.glob("*.md"))]
    with pytest.raises(CwmError, match="contains only 6 completions: lower --budget or add files"):
        replay.complete(question("one more", step=BUDGET))


@pytest.mark.parametrize("cut", range(BUDGET))
def test_text_files_continue_to_answer_in_a_resumed_search(cut, texts, tmp_path):
    whole = search(tmp_path / "whole", Refine(), Replay(str(texts)))
    search(tmp_path / "cut", Refine(), Replay(str(texts)), budget=cut)
    cut_run = search(tmp_path / "cut", Refine(), Replay(str(texts)))
    assert (cut_run.folder / JOURNAL).read_bytes() == (whole.folder / JOURNAL).read_bytes()


@pytest.mark.parametrize("name", ["", "nowhere", "empty"])
def test_folder_without_answers_is_rejected_immediately(name, texts, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(texts)  # no name does not mean the working directory
    with pytest.raises(CwmError, match="contains no completions: give --model the folder of a run"):
        Replay(name and str(tmp_path / name))


def test_truncated_journal_is_replayed_up_to_the_cut(texts, tmp_path):
    run = search(tmp_path / "run", ZeroShot(), Replay(str(texts)))
    whole = (run.folder / JOURNAL).read_bytes()
    (run.folder / JOURNAL).write_bytes(whole[:-10])
    replay = Replay(str(run.folder))
    assert replay.complete(question("generate ", BUDGET - 2)).text.startswith("```python")
    with pytest.raises(CwmError, match="only 5 times"):
        replay.complete(question("generate ", BUDGET - 1))


def test_journal_with_a_broken_line_is_replayed_without_it(texts, tmp_path):
    run = search(tmp_path / "run", ZeroShot(), Replay(str(texts)))
    (run.folder / JOURNAL).write_bytes(b'{"node": 1}\n' + (run.folder / JOURNAL).read_bytes())
    again = search(tmp_path / "again", ZeroShot(), Replay(str(run.folder)))
    assert list(again.nodes()) == list(run.nodes())
    lines = (run.folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (run.folder / JOURNAL).write_bytes(b"".join([*lines[:2], b"?\n", *lines[4:]]))
    rest = search(tmp_path / "rest", ZeroShot(), Replay(str(run.folder)), budget=BUDGET - 2)
    assert [n.program for n in rest.nodes()] == [n.program for n in run.nodes()]
