"""`cwm theorize` as a user meets it: phases that collect, weigh and propose; killed, continued."""

import json
import os
import signal
from pathlib import Path

import pytest

from cwm_cli import theorize
from cwm_cli.agents.theorizing.runs import TheoryRun
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


def test_rules_of_the_door_are_found_and_every_phase_says_how_likely_they_make_what_is_held_out(
    door,
) -> None:
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
    assert found["scorings"] > found["proposals"]  # what is kept is weighed again
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
    """Ends a process, as far as a test in the same one can tell."""


@pytest.mark.slow
def test_a_run_that_crashes_after_every_line_goes_on_to_the_same_end(tmp_path, monkeypatch) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = theorize(**CURIOUS, run=whole)
    write, crashes = TheoryRun._write, 0

    def crash(run, *records):
        write(run, *records)
        with (broken / "journal.jsonl").open("ab") as journal:
            journal.write(b'{"kind":"phase","numb')  # of the next line
        raise Crash

    while True:
        try:
            with monkeypatch.context() as patch:
                if len(lines(whole)) > crashes:
                    patch.setattr(TheoryRun, "_write", crash)
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
def test_a_run_that_is_killed_goes_on_to_the_same_end(door) -> None:
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


def test_more_phases_go_on_where_fewer_ended(tmp_path) -> None:
    asked = {"env": "Door-v0", "proposals": 2, "seed": 3}
    theorize(**asked, phases=2, run=tmp_path / "parts")
    theorize(**asked, phases=4, run=tmp_path / "parts")
    theorize(**asked, phases=4, run=tmp_path / "whole")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_what_it_costs_stops_a_run_which_goes_on_with_more_money(door) -> None:
    asked = (*DOOR, "--phases", "3", "--proposals", "2", "--run", "r", "--json")
    poor = json.loads(door.inside(*asked, "--max-cost", "0.0035").stdout)
    assert (poor["stopped"], poor["completions"], len(poor["phases"])) == ("money", 3, 1)
    rich = json.loads(door.inside(*asked, "--max-cost", "1").stdout)
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
    "weighs nothing": (["--statistician", "grammar"], "and nothing else: name another"),
}


def test_what_cannot_be_is_refused_in_a_line_and_leaves_no_run(cwm) -> None:
    wrong = {}
    for name, (given, words) in REFUSED.items():
        done = cwm.inside(*DOOR[:3], *given, "--run", "r")
        told = done.stderr.strip().splitlines()
        if done.returncode != 1 or len(told) != 1 or words not in told[0]:
            wrong[name] = done.stderr
        if (cwm.folder / "r").exists():
            wrong[name] = "it left a run"
    assert not wrong
