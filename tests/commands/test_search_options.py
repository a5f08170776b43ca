"""Moves that cost no completion: a start, and refiners, in searches that stop at any moment."""

import json
import signal
import threading
import time
from dataclasses import dataclass, field
from random import Random

import pytest

from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import JOURNAL, SearchConfig, SearchHeader, SearchRun
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    GENERATE,
    IMPROVE,
    ROOT,
    START,
    Backend,
    Completion,
    Message,
    Move,
    Problem,
    Refinement,
    Refiner,
    Remark,
    Strategy,
    Verdict,
)
from cwm_cli.search.loop import MAX_REFINEMENTS, Search
from cwm_gif_mcts.strategy import GifMcts
from cwm_replay.backend import Replay
from cwm_worldcoder.strategy import WorldCoder
from recordings import cartpole, dataset

LONG = 30


class Letters(Problem):
    """Programs are scored by how many letters x they have; the other letters are bugs."""

    def __init__(self):
        self.told = []

    def update(self, node):
        self.told.append(node.id)

    def messages(self, move):
        known = move.verdict.findings if move.verdict else ""
        return (Message(role="user", content=f"{move.action} {move.program} {known}"),)

    def varied(self, move, number):
        return (Message(role="user", content=f"{self.messages(move)[0].content} {number}"),)

    def read(self, text, move):
        return text.strip("`\n")

    def judge(self, program):
        if set(program) - {"x"}:
            return Verdict(score=0.0, failure=Failure(kind="step_error", message="it raised"))
        failure = None if len(program) >= LONG else Failure(kind="mismatch", message="too short")
        return Verdict(score=min(1.0, len(program) / LONG), validation=0.0, failure=failure)


@dataclass
class Improve(Strategy):
    """Improves the newest node that runs."""

    nodes: list = field(default_factory=list, init=False)

    def select(self, rng, pending):
        running = [node for node in self.nodes if not node.verdict.is_bug]
        if not running:
            return Move(GENERATE)
        return Move(IMPROVE, running[-1].id, running[-1].program, running[-1].verdict)

    def update(self, node):
        self.nodes.append(node)


@dataclass
class Writer(Backend):
    """Answers with the shown program and one more letter, sometimes with a bug."""

    asked: list = field(default_factory=list)
    slow: tuple = ()

    def complete(self, request):
        self.asked.append(request.messages[-1].content)
        time.sleep(0.02 * (request.step in self.slow))
        wrong = "!" * (Random(request.seed).random() < 0.3)
        return Completion(f"```\n{request.move.program or 'xx'}x{wrong}\n```")


@dataclass(frozen=True)
class Longer(Refiner):
    """Adds a letter to programs of an odd length, and says so."""

    def refine(self, task):
        program = task.node.program
        if len(program) % 2 == 0:
            return Refinement("", f"{len(program)} is even")
        return Refinement(program + "x", "it was odd")


@dataclass(frozen=True)
class Shorter(Refiner):
    """Takes letters away, which is never better."""

    def refine(self, task):
        return Refinement(task.node.program[:-1], "shorter")


@dataclass(frozen=True)
class Broken(Refiner):
    """Raises."""

    def refine(self, task):
        raise ZeroDivisionError("by nothing")


BOTH = {"longer": Longer(), "shorter": Shorter()}
HEADER = SearchHeader(
    config=SearchConfig(env="Count-v0", dataset="", strategy="any", backend="none"),
    description="It counts.",
    versions={},
    source="",
    created="now",
)


def searching(strategy=Improve, backend=None, refiners=BOTH, begin="", **settings):
    start = (lambda problem, tell: Refinement(begin, "given")) if begin else None
    made = strategy()
    return Search(Letters(), made, backend or Writer(), refiners=refiners, start=start, **settings)


def shape(search):
    return [(node.action, node.parent, node.program) for node in search.nodes]


def test_a_start_is_node_0_costs_nothing_and_is_refined_before_anything_is_asked():
    half = "x" * (LONG // 2)
    search = searching(begin=half)
    list(search.run(1))
    assert shape(search)[:2] == [(START, ROOT, half), ("longer", 0, f"{half}x")]
    assert [node.asked for node in search.nodes[:3]] == [False, False, True]
    assert search.completions == 1
    assert search.nodes[2].step == 0
    assert search.nodes[0].verdict.confirmed
    assert search.problem.told == [node.id for node in search.nodes]
    assert f"{IMPROVE} {half}x" in search.backend.asked[0]
    said = "it was odd\n\nTried without success: shorter"
    assert said in search.backend.asked[0], "what refiners found is in the next prompt"


def test_a_start_that_explains_less_than_half_is_not_improved_first():
    search = searching(begin="xxx", refiners={})
    list(search.run(2))
    first, second = search.backend.asked
    assert first.split() == [GENERATE, "given"], "its findings are mentioned, its text is not"
    assert second.startswith(IMPROVE)


def test_a_start_with_the_right_probabilities_explains_the_rows_although_none_is_exact():
    plain = Verdict(score=0.9, floor=0.5, parts={"exact": 0.3})
    chance = Verdict(score=0.9, parts={"exact": 0.0}, stderr=0.01)
    assert (plain.explained, chance.explained) == (0.3, 0.9)


def test_a_program_is_not_improved_while_a_refiner_works_on_it():
    @dataclass(frozen=True)
    class Slow(Refiner):
        def refine(self, task):
            time.sleep(0.05)
            return Refinement(task.node.program + "x") if len(task.node.program) < 8 else None

    search = searching(begin="x" * 5, refiners={"slow": Slow()}, parallel=2)
    list(search.run(4))
    refined = {node.parent for node in search.nodes if node.action == "slow"}
    improved = {node.parent for node in search.nodes if node.action == IMPROVE}
    assert refined
    assert not refined & improved, "their refinements are improved instead"


def test_a_start_that_is_right_ends_the_search_without_a_completion():
    search = searching(begin="x" * LONG)
    assert [record.node.action for record in search.run(5)] == [START]
    assert search.solved
    assert (search.completions, search.backend.asked) == (0, [])


def test_a_start_that_comes_to_nothing_is_a_remark_and_is_not_tried_again():
    journal, tried = [], []

    def start(problem, tell):
        tried.append(1)
        raise CwmError("there is nothing")

    def search():
        made = searching(journal=journal.append)
        made.start = start
        return made

    list(search().run(1))
    assert journal[0] == Remark(
        node=ROOT, by=START, note="no starting program: CwmError: there is nothing"
    )
    again = search()
    again.resume(e if isinstance(e, Remark) else e.node for e in journal)
    list(again.run(3))
    assert len(tried) == 1
    assert again.completions == 3


def test_what_betters_a_program_is_a_node_below_it_and_what_does_not_is_a_remark():
    search = searching()
    list(search.run(3))
    for node in search.nodes:
        if node.action == "longer":
            parent = search.nodes[node.parent]
            assert node.verdict.score > parent.verdict.score
            assert node.step == parent.step
            assert not node.asked
        assert node.action != "shorter"
    tried = [(each.by, each.findings) for some in search.remarks.values() for each in some]
    assert ("shorter", "Tried without success: shorter") in tried


def test_programs_that_fail_are_right_or_were_refined_before_are_not_refined():
    seen = []

    @dataclass(frozen=True)
    class Seeing(Refiner):
        def refine(self, task):
            seen.append(task.node)

    list(searching(refiners={"seeing": Seeing()}).run(60))
    assert seen
    assert all(not node.verdict.is_bug and not node.verdict.solved for node in seen)
    assert len({node.program for node in seen}) == len(seen)


def test_refiners_go_round_while_they_better_but_not_for_ever():
    @dataclass(frozen=True)
    class More(Refiner):
        def refine(self, task):
            return Refinement(task.node.program + "x")

    search = searching(refiners={"a": More(), "b": More()})
    list(search.run(1))
    assert [node.action for node in search.nodes[1:]] == ["a", "b"] * (MAX_REFINEMENTS // 2)


def test_a_refinement_that_harms_the_rows_that_nothing_is_fitted_to_is_none():
    class Hidden(Letters):
        def judge(self, program):
            return Verdict(score=len(program) / LONG, validation=1 / (1 + len(program)))

    search = searching(refiners={"longer": Longer()})
    search.problem = Hidden()
    list(search.run(1))
    assert [node.action for node in search.nodes] == [GENERATE]


def test_a_refiner_that_raises_is_told_of_and_the_search_goes_on():
    journal = []
    search = searching(refiners={"broken": Broken(), **BOTH}, journal=journal.append)
    list(search.run(2))
    notes = [each.note for each in journal if isinstance(each, Remark) and each.note]
    assert notes[0] == "broken of #0 failed: ZeroDivisionError: by nothing"
    assert search.completions == 2


def test_others_are_the_best_programs_that_run_the_best_first():
    seen = []

    @dataclass(frozen=True)
    class Seeing(Refiner):
        def refine(self, task):
            seen.append((task.node, task.others))

    list(searching(refiners={"seeing": Seeing()}, begin="xx").run(12))
    node, others = seen[-1]
    assert others
    assert node.program not in {other.program for other in others}
    ranks = [other.verdict.rank for other in others]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.parametrize("strategy", [Improve, GifMcts, WorldCoder])
def test_a_search_cut_anywhere_also_between_refinements_goes_on_to_the_same_tree(strategy):
    events = []

    def noted(found):
        events.append(found if isinstance(found, Remark) else found.node)

    whole = searching(strategy, begin="xxx", journal=noted, seed=3)
    list(whole.run(6))
    assert sum(isinstance(event, Remark) for event in events) > 1
    for cut in range(len(events) + 1):
        resumed = searching(strategy, begin="xxx", seed=3)
        resumed.resume(events[:cut])
        list(resumed.run(6))
        assert resumed.nodes == whole.nodes, f"another tree after {cut} of {len(events)} events"
        assert resumed.remarks == whole.remarks


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_replayed_run_has_the_same_journal_whatever_refined_it(parallel, tmp_path):
    def run(folder, search):
        with SearchRun.begin(tmp_path / folder, HEADER, {"dataset.npz": ROWS}) as run:
            search.journal = run.learn
            search.resume(run.learned())
            list(search.run(8))
            return (run.folder / JOURNAL).read_bytes()

    first = run("first", searching(begin="xxx", parallel=parallel, backend=Writer(slow=(1, 4))))
    replay = Replay(str(tmp_path / "first"))
    assert run("again", searching(backend=replay, refiners={})) == first
    lines = first.splitlines(keepends=True)
    for cut in range(1, len(lines), 5):
        with SearchRun.begin(tmp_path / f"{cut}", HEADER, {"dataset.npz": ROWS}) as part:
            (part.folder / JOURNAL).write_bytes(b"".join(lines[:cut]))
        assert run(f"{cut}", searching(backend=replay, refiners={})) == first


ROWS = dataset([(0, 1, 1, False)])


def test_parallel_completions_go_on_while_one_is_refined():
    waiting, both = threading.Event(), threading.Barrier(2)

    @dataclass(frozen=True)
    class Patient(Refiner):
        def refine(self, task):
            if task.node.step == 0:
                assert waiting.wait(10)

    class Knocking(Writer):
        def complete(self, request):
            if request.step in (2, 3):  # as many in flight as without the refiner
                both.wait(10)
                waiting.set()
            return super().complete(request)

    search = searching(refiners={"patient": Patient()}, backend=Knocking(), parallel=2)
    list(search.run(5))
    assert search.completions == 5


def test_a_right_program_does_not_wait_for_refiners_at_work():
    never = threading.Event()

    @dataclass(frozen=True)
    class Endless(Refiner):
        def refine(self, task):
            never.wait(60)

    class Solving(Writer):
        def complete(self, request):
            return Completion(
                f"```\n{'x' * (LONG if request.step == 2 else 3 + request.step)}\n```"
            )

    search = searching(refiners={"endless": Endless()}, backend=Solving(), parallel=3)
    began = time.monotonic()
    list(search.run(9))
    list(search.drain())
    assert search.solved
    assert time.monotonic() - began < 30
    never.set()


def test_what_is_being_refined_is_told_and_shown_as_in_flight():
    told = []

    @dataclass(frozen=True)
    class Telling(Refiner):
        def refine(self, task):
            task.tell("3 numbers")
            told.append((dict(search.doing), [f.move.action for f in search.pending.values()]))

    search = searching(refiners={"telling": Telling()})
    list(search.run(1))
    assert told == [({0: "telling of #0: 3 numbers"}, ["telling"])]


def test_a_journal_keeps_remarks_with_their_nodes_and_without_notes(tmp_path):
    with SearchRun.start(tmp_path / "r", HEADER, {"dataset.npz": ROWS}) as run:
        search = searching(begin="xxx", journal=run.learn)
        list(search.run(2))
        run.learn(Remark(node=99, by="nobody"))
    assert [*run.nodes()] == search.nodes
    remarks = [event for event in run.learned() if isinstance(event, Remark)]
    assert len(remarks) == sum(map(len, search.remarks.values()))
    assert run.summary().completions == 2
    lines = [json.loads(line) for line in (run.folder / JOURNAL).open()]
    assert {"kind", "node", "by", "findings"} == set(lines[-1])


REFINERS = '''
"""Refiners for a test, and who answers it: a program of which a constant is wrong."""
import os
import time
from dataclasses import dataclass
from cwm_cli import hookimpl
from cwm_cli.search.contracts import Backend, Completion, Refinement, Refiner

@hookimpl
def cwm_refiners():
    return {"gravity": Gravity, "waiting": Waiting}

@hookimpl
def cwm_backends():
    return {"writer": Writer}

@dataclass(frozen=True)
class Gravity(Refiner):
    gravity: float = 9.8
    """What gravity is."""

    def refine(self, task):
        heavier = task.node.program.replace("5.0 * sin", f"{self.gravity} * sin")
        return Refinement(heavier, "heavier")

@dataclass(frozen=True)
class Waiting(Refiner):
    def refine(self, task):
        task.tell("for the end")
        while os.path.exists("wait"):
            time.sleep(0.02)

@dataclass(frozen=True)
class Writer(Backend):
    model: str = ""
    program: str = ""

    def complete(self, request):
        return Completion(f"```python\\n{open(self.program).read()}```")
'''
HEAVY, LIGHT = cartpole(), cartpole(gravity=5.0).replace("5 * sin", "5.0 * sin")
CART = ("synthesize", "--env", "CartPole-v1", "--json")


@pytest.fixture
def refined(cwm):
    cwm.install("refiners_plugin", REFINERS)
    (cwm.folder / "light.py").write_text(LIGHT)
    (cwm.folder / "heavy.py").write_text(HEAVY)
    return cwm


def actions(shell, run):
    lines = (json.loads(line) for line in (shell.folder / run / JOURNAL).open())
    return [line["node"]["action"] if "text" in line else f"({line['by']})" for line in lines]


@pytest.mark.long
def test_a_file_or_a_run_is_begun_with_and_what_solves_it_is_said(refined):
    offline = ("--backend", "induction", "--start")
    answer = refined.inside(*CART[:-1], *offline, "heavy.py", "--run", "r")
    assert answer.returncode == 0, answer.stderr
    assert "solved by start after 0 completions" in answer.stdout
    assert actions(refined, "r") == [START]
    again = json.loads(refined.inside(*CART, *offline, "r", "--run", "s").stdout)
    assert (again["solved"], again["completions"], again["unasked"]) == (True, 0, START)
    light = (*CART, *offline, "light.py", "--budget", "1", "-o", "refine=gravity", "--run")
    one = json.loads(refined.inside(*light, "one").stdout)
    assert (one["solved"], one["completions"], one["unasked"]) == (True, 0, "gravity")
    assert actions(refined, "one") == [START, "gravity"]
    (refined.folder / "light.py").write_text(HEAVY)
    other = refined.inside(*light, "one")
    assert "one was started with other settings, search.start" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--start", "nowhere.py"), "there is no nowhere.py: choose induction, a program file"),
        (("--start", "."), ". is not a run folder: `cwm runs list` lists the runs here"),
        (("-o", "refine=gravty"), "did you mean gravity?"),
        (("-o", "gravity=x"), "invalid option gravity=x"),
    ],
)
def test_a_mistake_about_moves_that_cost_nothing_is_one_line(refined, arguments, message):
    refused = refined.inside(*CART, "--backend", "induction", *arguments)
    assert refused.returncode == 1
    assert message in refused.stderr
    assert refused.stderr.count("Error: ") == 1


@pytest.mark.slow
def test_a_run_killed_in_the_middle_of_a_refinement_goes_on_there(refined):
    asking = ("--backend", "writer", "-o", "backend.program=light.py", "--start", "none")
    asking += ("-o", "refine=waiting,gravity", "-o", "gravity=9.7", "--budget", "2")
    whole = refined.inside(*CART, *asking, "--run", "whole")
    assert whole.returncode == 0, whole.stderr
    (refined.folder / "wait").touch()
    process = refined.start(*CART, *asking, "--run", "cut")
    file = refined.folder / "cut" / JOURNAL
    deadline = time.monotonic() + 60
    while not file.exists() or not file.read_bytes().endswith(b"\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    assert actions(refined, "cut") == [GENERATE]
    (refined.folder / "wait").unlink()
    resumed = json.loads(refined.inside(*CART, *asking, "--run", "cut").stdout)
    assert resumed["completions"] == 2
    assert actions(refined, "cut") == actions(refined, "whole")
    assert actions(refined, "cut")[:3] == [GENERATE, "(waiting)", "gravity"]
    shown = refined.inside("runs", "show", "cut")
    assert "gravity" in shown.stdout
    assert "2 completions" in shown.stdout
    replayed = ("--backend", "replay", "--model", "cut", "--run", "again", "--budget", "2")
    assert refined.inside(*CART, *replayed).returncode == 0
    assert actions(refined, "again") == actions(refined, "cut")
    refused = refined.inside(*CART, *replayed[:-4], "--start", "heavy.py")
    assert "a replayed run keeps its start: leave out --start" in refused.stderr


@pytest.mark.long
def test_ctrl_c_ends_a_refinement_and_the_same_command_goes_on(refined):
    asking = ("--backend", "writer", "-o", "backend.program=light.py", "--budget", "1")
    asking += ("-o", "refine=waiting,gravity", "--run", "r")
    (refined.folder / "wait").touch()
    process = refined.start(*CART, *asking)
    file = refined.folder / "r" / JOURNAL
    deadline = time.monotonic() + 60
    while not file.exists() or not file.read_bytes().endswith(b"\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)  # a new node is counted a moment later, and then refined
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted after 1 completions: the same command continues" in err
    (refined.folder / "wait").unlink()
    assert json.loads(refined.inside(*CART, *asking).stdout)["solved"]


def test_options_and_plugins_name_what_costs_no_completion(refined):
    options = json.loads(refined.inside("options", "search", "--json").stdout)["options"]
    assert [option["name"] for option in options] == ["models", "start", "refine", "simplify"]
    [option] = json.loads(refined.inside("options", "gravity", "--json").stdout)["options"]
    assert (option["kind"], option["default"]) == ("refiner", 9.8)
    listed = json.loads(refined.inside("plugins", "--json").stdout)
    assert {"gravity", "waiting"} <= {
        n for row in listed if row["kind"] == "refiner" for n in row["names"]
    }
