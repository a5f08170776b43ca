"""`cwm theorize` as a user meets it: phases that collect, weigh and propose; killed, continued."""

import json
from pathlib import Path

import pytest

THEORIST = """
from dataclasses import dataclass
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
    patience: float = 0.0

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
