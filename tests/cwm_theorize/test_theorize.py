"""`cwm theorize` end to end: phases, interrupted and continued runs, views and reports."""

import json
import os
import re
import shutil
import signal
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from cwm_cli import theorize
from cwm_theorize.problem import MISTAKES
from cwm_theorize.runs import TheoryRun, rule_changes
from cwm_theorize.view import (
    kinds_chart,
    likelihood_chart,
    phase_words,
    theorizing_view,
)
from notes import Notes
from openai_server import OpenAIServer, error
from processes import wait_until

THEORIST = """
from dataclasses import dataclass, field
from time import sleep

import numpy as np

from cwm_cli import hookimpl
from cwm_cli.search.contracts import Backend, Completion, Usage

RULES = [
    f"If {fact}, then closed.\\nOtherwise, opened."
    for fact in ("colour is blue", "shape is key", "size is large", "colour is not red")
]


@dataclass(frozen=True)
class Drawing(Backend):
    model: str = ""
    patience: float = field(default=0.0, metadata={"identity": False})

    def worst_cost(self, request):
        return 0.001

    def complete(self, request):
        sleep(self.patience)
        place = np.random.default_rng(request.seed).integers(len(RULES))
        return Completion(RULES[place], Usage(10, 5, 0.001), log_probability=-float(np.log(4)))


@hookimpl
def cwm_backends():
    return {"drawing": Drawing}
"""
DOOR = ("theorize", "--env", "Door-v0", "--env-arg", 'rule="not blue"', "--theorist", "drawing")
TIMES = ("seconds", "created")


@pytest.fixture
def door(cwm):
    cwm.install("drawing", THEORIST)
    return cwm


def lines(folder: Path) -> list[dict]:
    """Return the journal without times."""
    found = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    for line in found:
        for usage in (line.get("weighed"), line.get("node", {}).get("usage")):
            if usage:
                usage.pop("seconds")
    return found


def test_theorize_finds_door_rules_and_reports_held_out_likelihood_by_phase(door) -> None:
    done = door.inside(*DOOR, "--phases", "4", "--run", "r", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rules"] == "If colour is blue, then closed.\nOtherwise, opened."
    assert (door.folder / "r" / "best.txt").read_text().strip() == found["rules"]
    assert [each["number"] for each in found["phases"]] == [1, 2, 3, 4]
    last = found["phases"][-1]
    assert last["held_out"].keys() == found["held_out"].keys() == {"closed", "opened"}
    assert sum(found["held_out"].values()) == 27
    assert last["rows"] == sum(found["found"].values()) == 20
    assert last["train"] > -1
    assert found["topk"]["all"]["top"]["1"] == 1.0
    assert found["completions"] == found["proposals"] == 20
    assert found["tokens"] == 300
    assert found["cost"] == pytest.approx(0.02)
    assert found["scorings"] > found["proposals"]  # the current rule is scored again
    assert (door.folder / "r" / "curve.svg").read_text().count("<svg") == 4
    assert "phase 4  train" in done.stderr
    assert "  + If colour is blue, then closed." in done.stderr


CURIOUS = {
    "env": "Door-v0",
    "env_args": {"rule": "not blue"},
    "experimenter": "curiosity",
    "phases": 3,
    "proposals": 3,
    "options": {"experimenter.environments": 2, "experimenter.steps": 3, "strategy.particles": 2},
}


class Crash(BaseException):
    """Simulates the end of a process within the same process."""


@pytest.mark.slow
def test_run_continues_to_same_result_after_crash_at_every_line(tmp_path, monkeypatch) -> None:
    pytest.importorskip("sb3_contrib")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = theorize(**CURIOUS, run=whole)
    write, crashes = TheoryRun.append, 0

    def crash(run, *records):
        write(run, *records)
        with (broken / "journal.jsonl").open("ab") as journal:
            journal.write(b'{"kind":"phase","numb')  # an incomplete next line
        raise Crash

    while True:
        try:
            with monkeypatch.context() as patch:
                if len(lines(whole)) > crashes:
                    patch.setattr(TheoryRun, "append", crash)
                found = theorize(**CURIOUS, run=broken)
            break
        except Crash:
            crashes += 1
    assert crashes == len(lines(whole)) > 14
    assert lines(broken) == lines(whole)
    assert found.phases == done.phases
    for name in ("best.txt", "dataset.npz", "rows-3.npz", "experimenter-3.npz"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.slow
def test_killed_run_continues_to_same_result(door) -> None:
    asked = (*DOOR, "--phases", "5", "--proposals", "4")
    assert door.inside(*asked, "--run", "whole").returncode == 0
    slow = (*asked, "-o", "theorist.patience=0.03", "--run", "killed")
    process, journal = door.start(*slow), door.folder / "killed" / "journal.jsonl"
    assert wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 12, 60)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = door.inside(*slow)
    assert "continues after phase" in done.stderr
    whole, killed = (door.folder / name for name in ("whole", "killed"))
    assert lines(killed) == lines(whole)
    assert (killed / "best.txt").read_bytes() == (whole / "best.txt").read_bytes()


@pytest.mark.slow
def test_more_phases_extend_a_finished_run(tmp_path) -> None:
    asked = {"env": "Door-v0", "proposals": 2, "seed": 3}
    theorize(**asked, phases=2, run=tmp_path / "parts")
    theorize(**asked, phases=4, run=tmp_path / "parts")
    theorize(**asked, phases=4, run=tmp_path / "whole")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_impossible_reverse_proposal_survives_resume(tmp_path) -> None:
    asked = {"env": "Door-v0", "hastings": True, "options": ["theorist.from_evidence=1"]}
    theorize(**asked, proposals=20, phases=2, run=tmp_path / "r")
    assert '"backward":-Infinity' in (tmp_path / "r" / "journal.jsonl").read_text()
    further = theorize(**asked, proposals=20, phases=3, run=tmp_path / "r")
    whole = theorize(**asked, proposals=20, phases=3, run=tmp_path / "w")
    assert [each.rules for each in further.phases] == [each.rules for each in whole.phases]


@pytest.mark.slow
def test_cost_limit_stops_run_and_higher_limit_continues_it(door) -> None:
    asked = (*DOOR, "--phases", "3", "--proposals", "2", "--json")
    poor = json.loads(door.inside(*asked, "--max-cost", "0.0035").stdout)
    assert (poor["stopped"], poor["completions"], len(poor["phases"])) == ("money", 3, 1)
    rich = json.loads(door.inside(*asked, "--max-cost", "1").stdout)
    assert rich["run"] == poor["run"]
    assert (rich["stopped"], rich["completions"], len(rich["phases"])) == ("phases", 6, 3)


REFUSED = {
    "no words": (["--env", "CartPole-v1"], "choose Door-v0"),
    "unknown theorist": (["--theorist", "gramar"], "did you mean grammar?"),
    "no model": (["--statistician", "litellm"], "write --statistician litellm/MODEL"),
    "flag of another method": (["--method", "best-of", "--hastings"], "has no --hastings"),
    "flag of another experimenter": (["--reward", "alp"], "has no --reward"),
    "no server": (["--api-base", "http://127.0.0.1:9"], "leave it out"),
    "unknown evidence": (["--evidence", "all"], "it takes cumulative or phase or window"),
    "no such rows": (["--dataset", "none.npz"], "there is no dataset none.npz"),
    "statistician without predictions": (
        ["--statistician", "grammar"],
        "only scores its own proposals",
    ),
}


def test_invalid_arguments_give_one_line_and_leave_no_run(cwm) -> None:
    wrong = {}
    for name, (given, words) in REFUSED.items():
        done = cwm.inside(*DOOR[:3], *given, "--run", "r")
        output = done.stderr.strip().splitlines()
        if done.returncode != 1 or len(output) != 1 or words not in output[0]:
            wrong[name] = done.stderr
        if (cwm.folder / "r").exists():
            wrong[name] = "it left a run"
    assert not wrong


HOSTILE = "\x1b[2J\x07\u202eevil [/x] 日本語"
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run and its last live view."""
    folder = tmp_path_factory.mktemp("runs") / "r"
    view = theorizing_view(terminal(100, 40))
    asked = {"env": "Door-v0", "env_args": {"rule": "not blue"}, "phases": 12, "proposals": 4}
    return theorize(**asked, run=folder, observer=view), view


def terminal(width: int, height: int) -> Console:
    return Console(
        file=StringIO(), force_terminal=True, width=width, height=height, legacy_windows=False
    )


def drawn(view, width: int, height: int) -> list[str]:
    console = terminal(width, height)
    view.pane._console = console
    console.print(view.pane)
    return ESCAPES.sub("", console.file.getvalue()).rstrip("\n").split("\n")


def test_moved_rule_counts_as_removed_and_added() -> None:
    moved = rule_changes("a\nb\nc", "b\nc\na")
    assert moved == [("-", "a"), ("", "b"), ("", "c"), ("+", "a")]


def test_view_shows_changes_of_rules_and_likelihoods(recorded) -> None:
    result, view = recorded
    output = drawn(view, 110, 45)
    assert output[0].startswith("Door-v0 · metropolis · grammar, symbolic")
    assert sum("\u2502" in line for line in output) > 5
    heads = {line.split("  ")[0].strip(): line for line in output}
    assert "proposal 4 of 4; " in heads["phase"]
    assert " accepted, " in heads["phase"]
    assert heads["train"].endswith(f"{result.phases[-1].evidence} changes")
    assert "27 changes" in heads["held-out"]
    assert heads["found"].startswith("found     ")
    assert heads["spent"].startswith(f"spent     {result.scorings} scorings, ")
    assert {line[4:] for line in output} >= set(result.rules.splitlines())
    assert " 12/12 phases · " in output[-1]


@pytest.mark.parametrize(("width", "height"), [(200, 50), (40, 24), (12, 6), (80, 5), (80, 2)])
def test_live_view_fits_any_terminal_with_any_rules(recorded, width, height) -> None:
    _, view = recorded
    phases = view.phases
    view.phases = [*phases, phases[-1].model_copy(update={"rules": HOSTILE, "number": 13})]
    output = drawn(view, width, height)
    view.phases = phases
    assert len(output) <= max(height - 1, 1)
    assert all(cell_len(line) <= width for line in output)
    assert not set("".join(output)) & set("\x1b\x07\u202e")


def test_theorize_runs_are_listed_shown_and_reported(recorded, cwm) -> None:
    result, _ = recorded
    shown = cwm.inside("runs", "show", str(result.run)).stdout
    assert "12 phases" in shown
    for title in ("log-likelihood by phase", "changes of the rules", "transitions discovered"):
        assert title in shown
    facts = json.loads(cwm.inside("runs", "report", str(result.run), "--json").stdout)
    assert facts["rules"] == result.rules
    (listed,) = json.loads(cwm.inside("runs", "list", str(result.run), "--json").stdout)["runs"]
    assert (listed["kind"], listed["done"], listed["strategy"]) == (
        "theorize",
        "12 phases",
        "metropolis",
    )


def test_unreadable_journal_lines_are_skipped_and_reported(recorded, tmp_path) -> None:
    result, _ = recorded
    text = (result.run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line).get("kind", "node") for line in text]
    wrong = {}
    for kind in ("node", "rows", "phase"):
        place = kinds.index(kind, 30)
        run = tmp_path / kind
        shutil.copytree(result.run, run)
        broken = [*text[:place], b'{"kind": 7, \xff}\n', *text[place + 1 :]]
        (run / "journal.jsonl").write_bytes(b"".join(broken))
        notes = Notes()
        again = theorize(
            "Door-v0",
            env_args={"rule": "not blue"},
            phases=13,
            proposals=4,
            run=run,
            observer=notes,
        )
        if again.phases[-1].number != 13 or again.phases[-1].proposals != 4:
            wrong[kind] = again.phases[-1]
        if not any("cannot be used" in words for words in notes.words):
            wrong[kind] = notes.words
    assert not wrong


def test_notes_report_uninformative_and_chat_only_statisticians(door) -> None:
    door.install("deaf", DEAF)
    deaf = door.inside(*DOOR[:5], "--phases", "2", "--statistician", "deaf", "--run", "r")
    assert deaf.returncode == 0, deaf.stderr
    output = [line for line in deaf.stderr.splitlines() if line.startswith("Warning")]
    assert len(output) == 1
    assert "the same score to" in output[0]
    chat = door.inside(*DOOR, "--phases", "1", "--statistician", "chat/x", "--run", "c", "--json")
    (output,) = [line for line in chat.stderr.splitlines() if line.startswith("Warning")]
    assert "chooses among the candidates" in output
    found = json.loads(chat.stdout)
    assert found["tokens"] > 5 * 15  # the votes count as well


@pytest.mark.slow
def test_model_sees_wrong_predictions_and_scores_held_out_rows_once(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def respond(body):
        if "messages" not in body:  # no log-probabilities: the model chooses among candidates
            return error(404, "Not Found")
        proposes = "## Your answer" in body["messages"][-1]["content"]
        return "If colour is red, then opened.\nOtherwise, closed." if proposes else "1"

    asked = {"env": "Door-v0", "env_args": {"rule": "not blue"}, "phases": 2, "proposals": 2}
    with OpenAIServer(respond) as server:
        asked |= {"theorist": "openai/x", "api_base": server.url}
        exact = theorize(**asked, run=tmp_path / "exact")
        prompts = [request.prompt for request in server.requests]
        chosen = theorize(
            **asked,
            statistician="openai/x",
            options=["statistician.votes=1"],
            run=tmp_path / "chosen",
        )
    assert exact.rules.startswith("If colour is red, then opened.")
    improve = prompts[-1]
    assert improve.count(MISTAKES) == 1
    assert "Recorded: The door opens. (probability 0.025)\nPredicted: The door stays closed." in (
        improve
    )
    assert [sum(each.held_out.values()) < 0 for each in exact.phases] == [True, True]
    assert chosen.phases[0].held_out == {}
    assert chosen.phases[1].held_out.keys() == {"closed", "opened"}
    assert "held-out" not in phase_words(chosen.phases[0])
    for chart in (likelihood_chart, kinds_chart):
        assert [*chart("", chosen.phases, chosen.held_out).series[-1].x] == [2]


DEAF = """
from dataclasses import dataclass

from cwm_cli import hookimpl
from cwm_cli.search.contracts import Backend, Completion, Usage


@dataclass(frozen=True)
class Deaf(Backend):
    model: str = ""
    can_score = True

    def score(self, requests):
        return [[-1.0] for _ in requests]


@dataclass(frozen=True)
class Chat(Backend):
    model: str = ""
    needs_model = True

    def complete(self, request):
        return Completion("1", Usage(3, 1, 0.0))


@hookimpl
def cwm_backends():
    return {"deaf": Deaf, "chat": Chat}
"""
