"""Say what `cwm plan` found out."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from cwm_cli.agents.contests import Side, SideName
    from cwm_cli.agents.plans import Journal
    from cwm_cli.cli.playing import Contest


def report(contest: Contest, journal: Journal, *, render: Path | None, json: bool) -> None:
    """Print what the episodes came to."""
    from cwm_cli.cli.shared import console
    from cwm_cli.views.sides import report_words, side_table

    sides = contest.outcome(journal)
    subject = sides[contest.subject.side]
    facts = _facts(contest, sides) | {
        "journal": str(journal.file),
        "render": None if render is None else str(render),
    }
    if json:
        typer.echo(jsonlib.dumps(facts))
    out = console(json=json)
    out.print(side_table(sides))
    out.print(_verdict(contest, facts["R"]), highlight=False)
    if subject.report:
        words = report_words(subject.report)
        out.print(f"planner   {words}", highlight=False, markup=False, soft_wrap=True)
    out.print(f"episodes  {journal.file}", highlight=False, markup=False, soft_wrap=True)
    _warn(subject)


def _facts(contest: Contest, sides: Mapping[SideName, Side]) -> dict[str, Any]:
    """Return what `--json` prints."""
    from cwm_cli.agents.contests import relative_return

    subject, random, oracle = sides[contest.subject.side], sides["random"], sides.get("oracle")
    compared = oracle is not None and contest.subject.side == "model"
    speeds = {name: _speeds(side) for name, side in sides.items() if side.cost.decisions}
    plans = subject.report
    return {
        "returns": subject.returns,
        "lengths": subject.lengths,
        **subject.mean._asdict(),
        "random": random.mean._asdict(),
        "oracle": oracle.mean._asdict() if oracle else None,
        "R": relative_return(subject, oracle, random) if oracle and compared else None,
        **_speeds(subject),
        "failures": subject.cost.failures,
        "failure": asdict(subject.failure) if subject.failure else None,
        "planner": plans.planner if plans else None,
        "form": " and ".join(plans.forms) if plans else None,
        "note": plans.note if plans else None,
        "decisions": subject.cost.decisions,
        "model_steps": subject.cost.model_steps,
        "speeds": speeds,
        "oracle_returns": oracle.returns if oracle else None,
        "random_returns": random.returns,
    }


def _speeds(side: Side) -> dict[str, float | None]:
    """Return decisions and steps of the model per second that one worker plans."""
    decisions, _, steps, seconds = side.cost
    return {
        "decisions_per_second": decisions / seconds if seconds else None,
        "model_steps_per_second": steps / seconds if seconds else None,
    }


def _verdict(contest: Contest, ratio: float | None) -> str:
    """Say how close to the oracle the model is."""
    if contest.subject.side == "oracle":
        return "R         none: these plans are the oracle's"
    if "oracle" not in contest.sides:
        return "R         none: there is no oracle"
    if ratio is None:
        return "R         none: the oracle is not clearly better than chance"
    return f"R         {ratio:.3f} (the oracle has 1, random actions have 0)"


def _warn(side: Side) -> None:
    """Tell failures of the program, of which the first is shown."""
    if side.failure is None:
        return
    failure = side.failure
    where = f", line {failure.line}" if failure.line else ""
    complain(
        f"the program failed in {side.cost.failures} of {side.cost.decisions} decisions, which "
        f"were random instead; the first: {failure.kind}{where}: {failure.message}",
        kind="Warning",
    )
