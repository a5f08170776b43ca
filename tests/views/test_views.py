import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import threading
import time
from dataclasses import replace
from fcntl import ioctl
from io import BytesIO, StringIO, TextIOWrapper
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from cwm_cli.evaluation import Score
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
    Strategy,
    Usage,
    Verdict,
)
from cwm_cli.search.loop import Pending, Search
from cwm_cli.views.search import Screen, live
from cwm_cli.views.tables import score_table
from cwm_cli.views.tree import SearchTree, finished_tree

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\b\u202eevil\u2028 e\u0301\u0301 日本語 👩\u200d👧 \ud800 [/x]"
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@pytest.fixture(scope="module", autouse=True)
def ordinary_terminal():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        yield


class Scripted(Strategy, Problem, Backend):
    """Strategy, problem and backend of a search: follows a list of nodes to be found."""

    def __init__(self, nodes=(), states=None):
        self.script = list(nodes)
        self.states = states or {}
        self.asked = 0

    def select(self, rng: np.random.Generator, pending) -> Move:
        node = self.script[self.asked]
        self.asked += 1
        return Move(node.action, node.parent, str(node.id))

    def update(self, node: Node) -> None:
        pass

    def state(self, node: int) -> str:
        return self.states.get(node, "")

    def messages(self, move: Move) -> tuple[Message, ...]:
        return (Message(role="user", content=move.program),)

    def judge(self, program: str) -> Verdict:
        return self.script[int(program)].verdict

    def complete(self, request) -> Completion:
        number = request.move.program
        return Completion(f"```python\n{number}\n```", self.script[int(number)].usage)

    def worst_cost(self, request) -> float:
        return 0.0


def node(number, parent=ROOT, score=0.5, failure=None, usage=None, validation=0.0) -> Node:
    return Node(
        id=number,
        step=number,
        parent=parent,
        action=GENERATE if parent == ROOT else IMPROVE,
        program="",
        verdict=Verdict(score=score, validation=validation, failure=failure),
        prompt="",
        usage=usage or Usage(),
    )


def chain(length: int) -> list[Node]:
    return [node(number, number - 1, score=number / 100) for number in range(length)]


def terminal(width=80, height=24, **options) -> Console:
    return Console(
        file=StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        legacy_windows=False,
        color_system=None,
        **options,
    )


def lines_of(renderable, width=80, height=24) -> list[str]:
    console = terminal(width, height)
    console.print(renderable)
    return console.file.getvalue().splitlines()


def screen_of(nodes, *, states=None, width=80, height=24, flights=(), title="a search", budget=300):
    """Return the lines drawn for a search that has learned `nodes` and awaits `flights`."""
    stage = Scripted(states=states)
    search = Search(stage, stage, stage)
    search.resume(nodes)
    for flight in flights:
        move = Move(flight.action, flight.parent)
        search.pending[flight.step] = Pending(flight.step, move)
    screen = Screen(search, budget=budget, title=title, console=terminal(width, height))
    return lines_of(screen.pane, width, height)


def test_a_small_search_is_shown_whole_with_its_best_node_starred():
    drawn = lines_of(finished_tree([node(0, score=0.2), node(1, 0, 0.7), node(2, 0, 0.3)]))
    assert drawn == [
        "└ #0 generate 0.200",
        "  ├ ★ #1 improve 0.700",
        "  └ #2 improve 0.300",
        "3 programs · best 0.700",
    ]


def test_a_search_without_nodes_can_be_drawn():
    assert lines_of(finished_tree([])) == ["0 programs"]
    assert lines_of(Screen(Search(*[Scripted()] * 3), budget=5, title="x", console=terminal()).pane)


def test_the_best_node_is_bold_green_and_a_buggy_one_dim_red():
    console = Console(
        file=StringIO(), width=80, height=24, force_terminal=True, color_system="standard"
    )
    bug = Failure(kind="load_error", message="oh no")
    console.print(finished_tree([node(0, score=0.0, failure=bug), node(1, score=0.9)]))
    text = console.file.getvalue()
    assert "\x1b[1;32m★ #1 generate 0.900" in text
    assert "\x1b[2;31m#0 generate 0.000" in text


def test_a_buggy_node_tells_its_kind_and_the_first_line_of_its_message():
    bug = Failure(kind="step_error", message="NameError: name 'x' is not defined\nsecond line")
    wrong = Failure(kind="mismatch", message="predicted 3")
    drawn = "\n".join(lines_of(finished_tree([node(0, failure=bug), node(1, failure=wrong)])))
    assert "step error: NameError: name 'x' is not defined" in drawn
    assert "second line" not in drawn
    assert "predicted" not in drawn


def test_the_states_that_the_strategy_gives_stand_beside_the_nodes():
    drawn = screen_of([node(0), node(1)], states={0: "fix pending", 1: "terminal"})
    assert "★ #0 generate 0.500  fix pending" in drawn[1]
    assert "#1 generate 0.500  terminal" in drawn[2]


def test_completions_in_flight_hang_from_their_parents_and_are_counted():
    drawn = screen_of([node(0), node(1)], flights=[node(2, 0), node(3)])
    assert drawn[1:5] == [
        "├ ★ #0 generate 0.500",
        "│ └ … improve",
        "├ #1 generate 0.500",
        "└ … generate",
    ]
    assert "2/300 completions · 0 s · 2 in flight" in drawn[5]


def test_completions_in_flight_stay_when_their_parents_fold():
    nodes = [*chain(30), *(node(number, score=0.9) for number in range(30, 300))]
    drawn = screen_of(nodes, flights=[node(300, 17), node(301, 5)], height=12)
    assert sum("… improve" in line for line in drawn) == 2


def test_a_large_search_folds_to_the_height_of_the_terminal():
    rng = np.random.default_rng(0)
    nodes = [node(0), *(node(n, int(rng.integers(-1, n)), rng.random()) for n in range(1, 400))]
    drawn = screen_of(nodes, budget=400)
    assert len(drawn) <= 23
    assert sum("★" in line for line in drawn) == 1
    assert all(any(f"#{number} " in line for line in drawn) for number in (397, 398, 399))
    assert "400/400 completions" in drawn[-2]


def test_a_long_path_folds_in_its_middle():
    drawn = lines_of(finished_tree(chain(60)), height=16)
    assert "#0 " in drawn[0]
    assert "★ #59" in drawn[-2]
    assert sum("more, best" in line for line in drawn) == 1
    assert "more, best" not in drawn[1] + drawn[-3]


def test_a_fold_tells_how_many_nodes_it_hides_and_the_best_score_among_them():
    nodes = [node(0, score=0.9), *(node(number, 0, score=number / 200) for number in range(1, 101))]
    drawn = lines_of(finished_tree(nodes), height=13)
    hidden = int(re.search(r"… (\d+) more, best 0\.(\d+)", "\n".join(drawn)).group(1))
    shown = [int(number) for line in drawn for number in re.findall(r"#(\d+)", line)]
    assert hidden + len(shown) == 101
    best = max(number / 200 for number in range(1, 101) if number not in shown)
    assert f"… {hidden} more, best {best:.3f}" in "\n".join(drawn)


def test_a_node_whose_parent_is_folded_names_it():
    nodes = [*chain(40), node(40, 20, score=0.1), *(node(n, score=0.05) for n in range(41, 44))]
    assert any("#40 improve of #20 0.100" in line for line in lines_of(finished_tree(nodes)))


def test_a_single_node_is_shown_rather_than_folded():
    for count in range(10, 40):
        drawn = lines_of(finished_tree([node(number) for number in range(count)]), height=16)
        assert not any("… 1 more" in line for line in drawn)


def test_a_file_receives_the_whole_tree():
    console = Console(file=StringIO(), width=80)
    console.print(finished_tree([node(number) for number in range(500)]))
    assert len(console.file.getvalue().splitlines()) == 501


def test_a_deep_chain_does_not_fold_what_lies_beside_it():
    nodes = [*chain(60), *(node(number, 0, score=0.1) for number in range(60, 100))]
    drawn = lines_of(finished_tree(nodes), height=80)
    assert all(any(f"#{number} " in line for line in drawn) for number in range(60, 100))
    assert all(cell_len(line) <= 80 for line in drawn)
    assert any("★ #59" in line for line in drawn)


def test_the_bar_tells_scores_tokens_and_cost():
    usage = Usage(prompt_tokens=1000, completion_tokens=234, cost=0.0123)
    drawn = screen_of([node(0, score=0.9, validation=0.8, usage=usage)], budget=4)
    assert drawn[-1] == "best 0.900 (validation 0.800) · 1,234 tokens · $0.0123"
    done, rest = drawn[-2].count("━"), drawn[-2].count("─")
    assert done == (done + rest) // 4


@pytest.mark.parametrize(
    ("costs", "words"),
    [((0.0, 0.0), ""), ((0.5, None), " · cost unknown"), ((0.25, 0.5), " · $0.7500")],
)
def test_a_cost_is_given_when_there_is_one_and_called_unknown_when_it_is(costs, words):
    nodes = [node(number, usage=Usage(cost=cost)) for number, cost in enumerate(costs)]
    assert screen_of(nodes)[-1] == f"best 0.500{words}"


def test_a_validation_score_is_left_out_when_it_says_nothing_new():
    assert screen_of([node(0, score=0.9, validation=0.9)])[-1] == "best 0.900"


@pytest.mark.parametrize("width", [20, 40, 80, 140])
def test_hostile_texts_neither_reach_the_terminal_nor_widen_the_picture(width):
    bug = Failure(kind="crash", message=HOSTILE.replace("\r", "") + "文" * 400)
    nodes = [node(0, failure=bug), node(1, failure=Failure(kind="crash", message=HOSTILE))]
    drawn = screen_of(nodes, states={0: HOSTILE}, title=HOSTILE, width=width)
    assert all(cell_len(line) <= width for line in drawn)
    assert not set("".join(drawn)) & set("\x1b\x07\r\b\u202e\u2028\u0301\u200d\ud800👩")
    assert len(drawn) == 5


@st.composite
def searches(draw) -> list[Node]:
    count = draw(st.integers(1, 120))
    spread = draw(st.integers(1, 120))
    bug = Failure(kind="timeout_wall", message=draw(st.text(max_size=60)))
    nodes = []
    for number in range(count):
        parent = draw(st.integers(max(ROOT, number - spread), number - 1))
        score = draw(st.integers(0, 20)) / 20
        nodes.append(node(number, parent, score, bug if score == 0 else None))
    return nodes


def refined(number, parent, score) -> Node:
    return replace(node(number, parent, score), action="calibrate", asked=False)


def test_completions_and_refiner_moves_are_counted_apart():
    nodes = [node(0, score=0.3), refined(1, 0, 0.5), refined(2, 1, 0.6), node(3, 2, 0.2)]
    drawn = screen_of(nodes, budget=4)
    assert "2/4 completions" in drawn[-2]
    assert drawn[-2].count("━") == drawn[-2].count("─")
    assert drawn[-1] == "2 refiner moves · best 0.600"
    finished = lines_of(finished_tree(nodes))
    assert finished[-1] == "4 programs · 2 completions · 2 refiner moves · best 0.600"


def test_a_tall_terminal_shows_the_score_curve_and_the_diagnosis_of_the_best_program():
    wrong = Failure(kind="mismatch", message="3 of 9 transitions are wrong.\n\n- reward: half\n")
    nodes = [node(0, score=0.3), node(1, 0, 0.7, wrong), node(2, 1, 0.5)]
    drawn = screen_of(nodes, height=31)
    place = drawn.index("Best score so far")
    assert drawn[place + 1].startswith(" 1│") and "3 completions" in drawn[place + 8]
    assert drawn[place + 9 : -2] == [
        "Diagnosis of #1, the best program so far",
        "3 of 9 transitions are wrong.",
        "- reward: half",
    ]
    low = screen_of(nodes, height=30)
    assert len(low) == 6 and not any("Diagnosis" in line for line in low)


def test_the_titles_of_the_picture_are_bold():
    stage, file = Scripted(), StringIO()
    console = Console(file=file, width=80, height=40, force_terminal=True, color_system="standard")
    search = Search(stage, stage, stage)
    search.resume([node(0)])
    console.print(Screen(search, budget=3, title="a search", console=console).pane)
    for title in ("a search", "Best score so far", "Diagnosis of #0"):
        assert f"\x1b[1m{title}" in file.getvalue()


def test_a_large_search_on_a_tall_terminal_leaves_room_for_the_diagnosis():
    wrong = Failure(kind="mismatch", message="\n".join(f"line {n}" for n in range(90)))
    drawn = screen_of([node(number, score=0.5, failure=wrong) for number in range(200)], height=50)
    assert len(drawn) == 49
    place = drawn.index("Diagnosis of #0, the best program so far")
    assert drawn[place + 1 : -2] == [f"line {n}" for n in range(6)]


def test_the_last_picture_of_a_search_is_its_tree_alone():
    stage = Scripted([node(0, score=0.3)])
    search, console = Search(stage, stage, stage), terminal(height=50)
    with live(search, budget=1, title="a search", console=console) as view:
        for record in search.run(1):
            view.learned(record.node)
    text = ESCAPES.sub("", console.file.getvalue())
    assert "Diagnosis" not in text[text.rindex("a search") :]


@settings(max_examples=60, deadline=None)
@given(nodes=searches(), width=st.integers(30, 160), height=st.integers(8, 50))
def test_any_search_fits_shows_its_best_node_and_counts_what_it_folds(nodes, width, height):
    drawn = screen_of(nodes, width=width, height=height)
    tree = drawn[1 : drawn.index("Best score so far") if height > 30 else -2]
    assert len(drawn) < height
    assert all(cell_len(line) <= width for line in drawn)
    best = max(nodes, key=lambda one: (one.verdict.score, -one.id))
    assert sum(f"★ #{best.id} " in line for line in tree) == 1
    folds = [re.search(r"^[├└│ ]*… ([\d,]+) more", line) for line in tree]
    hidden = sum(int(fold[1].replace(",", "")) for fold in folds if fold)
    assert hidden + sum(fold is None for fold in folds) == len(nodes)


@settings(max_examples=40, deadline=None)
@given(nodes=searches())
def test_a_tree_that_grew_node_by_node_knows_every_subtree(nodes):
    tree = SearchTree(nodes)
    for top in nodes:
        below = [n for n in nodes if top.id in tree.ancestors(n.id)]
        ranks = [(tuple(-part for part in n.verdict.rank), n.id) for n in (top, *below)]
        branch = tree.branches[top.id]
        assert (branch.below, branch.best) == (len(below), min(ranks))
        assert all(a < b for a, b in pairwise(branch.children))


def test_a_search_that_is_followed_ends_with_its_last_picture_and_a_visible_cursor():
    stage = Scripted([node(0, score=0.3), node(1, 0, 0.6)], {1: "terminal"})
    search, console = Search(stage, stage, stage), terminal()
    with live(search, budget=2, title="a search", console=console) as view:
        for record in search.run(2):
            view.learned(record.node)
    text = console.file.getvalue()
    picture = ESCAPES.sub("", text[text.rindex("a search") :]).splitlines()
    assert picture[1:3] == ["└ #0 generate 0.300", "  └ ★ #1 improve 0.600  terminal"]
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_the_cursor_and_the_streams_come_back_when_the_search_fails():
    stage, console = Scripted(), terminal()
    streams = sys.stdout, sys.stderr
    with (
        pytest.raises(KeyboardInterrupt),
        live(Search(stage, stage, stage), budget=2, title="t", console=console),
    ):
        raise KeyboardInterrupt
    assert (sys.stdout, sys.stderr) == streams
    assert console.file.getvalue().rindex("\x1b[?25h") > console.file.getvalue().rindex("\x1b[?25l")


def test_what_other_code_prints_appears_above_the_picture_made_harmless():
    stage, console = Scripted(), terminal()
    with live(Search(stage, stage, stage), budget=2, title="TITLE", console=console):
        sys.stdout.write("10 %\r99 %\rall done\x1b[2J\x07\n")
        sys.stderr.write("[/red] no end")
        sys.stderr.flush()
    text = console.file.getvalue()
    assert "all done\ufffd[2J\ufffd\n" in text
    assert "[/red] no end\n" in text
    assert text.rindex("no end") < text.rindex("TITLE")
    assert not set(ESCAPES.sub("", text)) & set("\x1b\x07")


def test_nodes_may_be_learned_while_the_picture_is_drawn():
    nodes = [node(number, number // 2 - 1, score=number / 1000) for number in range(600)]
    stage = Scripted()
    search = Search(stage, stage, stage)
    screen = Screen(search, budget=600, title="t", console=terminal())
    pictures: list[list[str]] = []
    over = threading.Event()

    def draw() -> None:
        while not over.is_set():
            pictures.append(lines_of(screen.pane))

    thread = threading.Thread(target=draw)
    thread.start()
    for one in nodes:
        search.learn(one)
        screen.learned(one)
    over.set()
    thread.join()
    assert pictures
    assert all(len(picture) <= 23 for picture in pictures)
    assert "#599 " in "".join(lines_of(screen.pane))


def plain(nodes, budget=10, **options) -> str:
    stage, console = Scripted(nodes), Console(file=StringIO(), width=30, **options)
    search = Search(stage, stage, stage)
    with live(search, budget=budget, title="a search", console=console) as view:
        for record in search.run(len(nodes)):
            view.learned(record.node)
    return console.file.getvalue()


def test_without_a_terminal_a_better_node_has_a_line_and_every_node_if_verbose(monkeypatch):
    bug = Failure(kind="timeout_cpu", message="step took longer than 2 s\nmore")
    nodes = [node(0, score=0.9), node(1, 0, 0.874), node(2, 1, 0.0, bug)]
    assert plain(nodes).splitlines() == ["[ 1/10] generate: 0.900 (best 0.900)  0 s"]
    monkeypatch.setattr("cwm_cli.views.search.is_verbose", lambda: True)
    text = plain(nodes)
    assert text.splitlines() == [
        "[ 1/10] generate: 0.900 (best 0.900)  0 s",
        "[ 2/10] improve of #0: 0.874 (best 0.900)  0 s",
        "[ 3/10] improve of #1: 0.000 (best 0.900)  0 s  timeout cpu: step took longer than 2 s",
    ]


def test_a_plain_line_of_a_refiner_move_has_no_counter():
    stage, console = Scripted(), Console(file=StringIO(), width=80)
    search = Search(stage, stage, stage)
    with live(search, budget=10, title="a search", console=console) as view:
        for one in (node(0, score=0.3), refined(1, 0, 0.5)):
            view.learned(one)
    assert console.file.getvalue().splitlines() == [
        "[ 1/10] generate: 0.300 (best 0.300)  0 s",
        "        calibrate of #0: 0.500 (best 0.500)  0 s",
    ]


def test_plain_lines_hold_no_control_character_whatever_a_program_says():
    text = plain([node(0, score=0.1, failure=Failure(kind="crash", message=HOSTILE))])
    assert not set(text) & set("\x1b\x07\r\b\u202e\u2028\ud800")


def test_a_terminal_that_knows_no_lines_and_stars_gets_plain_lines():
    file = TextIOWrapper(BytesIO(), encoding="ascii", errors="backslashreplace")
    stage, console = Scripted([node(0)]), Console(file=file, width=80, force_terminal=True)
    with live(Search(stage, stage, stage), budget=1, title="a search", console=console) as view:
        view.learned(node(0))
    file.flush()
    assert file.buffer.getvalue() == b"[1/1] generate: 0.500 (best 0.500)  0 s\n"


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert plain([node(0)], force_terminal=True) == "[ 1/10] generate: 0.500 (best 0.500)  0 s\n"


def test_without_colour_the_picture_has_none(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=StringIO(), width=80, height=24, force_terminal=True)
    console.print(finished_tree([node(0)]))
    assert not re.search(r"\x1b\[[\d;]*3\dm", console.file.getvalue())


def score(**changes) -> Score:
    parts = {"accuracy": 0.9, "observation": 0.8, "reward": 1.0, "terminated": 1.0, "exact": 0.7}
    rest = {"floor": 0.4, "normalised": 0.8333, "transitions": 12345}
    return Score(**(parts | rest | changes))


def test_the_score_table_compares_every_part_and_fits_80_columns():
    rows = {"train": score(), "held-out": score(observation=None, normalised=None)}
    drawn = lines_of(score_table(rows))
    assert all(cell_len(line) <= 80 for line in drawn)
    cells = {line.split()[0]: line.split()[1:] for line in drawn if line.strip()}
    assert cells["accuracy"] == ["0.900", "0.900"]
    assert cells["observation"] == ["0.800", "\N{EN DASH}"]
    assert cells["normalised"] == ["accuracy", "0.833", "\N{EN DASH}"]
    assert cells["transitions"] == ["12,345", "12,345"]
    assert "paper" not in cells


def test_the_score_table_holds_the_published_score_when_asked_for_and_dashes_for_no_score():
    drawn = "\n".join(lines_of(score_table({"train": score(paper=0.5), "held-out": None})))
    assert re.search(r"published score +0\.500 +\N{EN DASH}", drawn)
    assert re.search(r"transitions +12,345 +\N{EN DASH}", drawn)


SCRIPT = r"""
import sys, time
from rich.console import Console
from cwm_cli.search.contracts import (
    GENERATE, IMPROVE, Backend, Completion, Message, Move, Problem, Strategy, Usage,
)
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import Verdict
from cwm_cli.search.loop import Search
from cwm_cli.views.search import live

class Noisy(Strategy, Problem, Backend):
    known = []
    def select(self, rng, pending):
        if not self.known or rng.random() < 0.2:
            return Move(GENERATE)
        return Move(IMPROVE, self.known[-1 - int(rng.integers(min(4, len(self.known))))].id)
    def update(self, node):
        if node not in self.known:  # told as a problem, and again as a strategy
            self.known.append(node)
    def state(self, node):
        return "fix pending" if node % 3 == 0 else ""
    def messages(self, move):
        return (Message(role="user", content="?"),)
    def complete(self, request):
        time.sleep(float(sys.argv[1]))
        return Completion("```python\nx\n```", Usage(completion_tokens=100, cost=0.01))
    def worst_cost(self, request):
        return 0.0
    def judge(self, program):
        print("\x1b[2J\x1b]0;owned\x07\r\u202e" + "garbage" * 30)
        print("\x1b[31mred", end="\r", file=sys.stderr, flush=True)
        message = "\x1b[2J\x07\u202e\u6587" * 100
        count = len(self.known)
        failure = Failure(kind="crash", message=message) if count % 2 else None
        return Verdict(score=count / 1000, failure=failure)

noisy = Noisy()
search = Search(noisy, noisy, noisy, parallel=3)
with live(search, budget=60, title="noise", console=Console(stderr=True)) as view:
    for record in search.run(60):
        view.learned(record.node)
"""


def in_a_terminal(seconds: float, *, interrupt: bool = False) -> tuple[str, int]:
    """Run the noisy search on a terminal of 80 columns and 24 rows; return its output."""
    child, descriptor = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        time.sleep(0.1)  # until the terminal has its size
        os.execv(sys.executable, [sys.executable, "-c", SCRIPT, str(seconds)])
    ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    output = b""
    while select.select([descriptor], [], [], 30)[0]:
        try:
            output += os.read(descriptor, 65536)
        except OSError:
            break
        if interrupt and b"3/60" in output:
            os.kill(child, signal.SIGINT)
            interrupt = False
    os.close(descriptor)
    return output.decode(), os.waitpid(child, 0)[1]


@pytest.mark.slow
def test_on_a_real_terminal_no_line_is_wider_whatever_programs_print():
    output, status = in_a_terminal(0.02)
    assert status == 0
    assert "garbage" in output
    text = ESCAPES.sub("", output)
    assert not set(text) & set("\x1b\x07\u202e")
    assert "\x1b[2J" not in output
    assert all(cell_len(line) <= 80 for line in re.split(r"[\r\n]+", text))
    last = re.split(r"[\r\n]+", text[text.rindex("noise") :].strip())
    assert len(last) <= 23
    assert "60/60" in last[-2]
    assert re.fullmatch(r"best 0\.0\d\d · 6,000 tokens · \$0\.6000", last[-1])


@pytest.mark.slow
def test_an_interrupted_view_leaves_its_picture_and_gives_the_cursor_back():
    output, _ = in_a_terminal(0.3, interrupt=True)
    assert "KeyboardInterrupt" in output
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    picture = output[output.rindex("noise", 0, output.rindex("Traceback")) :]
    assert "in flight" not in picture
