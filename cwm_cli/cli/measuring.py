"""The work of `cwm bench-speed`: three sides measured one after the other, and a report."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from cwm_cli.agents.subjects import Subject
from cwm_cli.agents.synthesizing import check_flags
from cwm_cli.bench.speed import INTERRUPTED, Asked, Comparison, Inquiry, Questioner, World
from cwm_cli.cli.answering import answering
from cwm_cli.cli.shared import console
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, Metric
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.views.speed import comparison_parts

TIMED = 1000
"""Transitions on which the world model and the environment are timed, all at once if they can."""

TEMPERATURE = 0.0
"""Of a language model that is to predict: what it holds likeliest."""


class Predictor(NamedTuple):
    """The language model to ask, and what asks it; nobody where none was named."""

    name: str
    factory: Any
    options: dict[str, Any]
    sandbox: dict[str, Any]
    max_cost: float | None

    @classmethod
    def named(
        cls,
        backend: str | None,
        model: str | None,
        pairs: list[str],
        flags: Mapping[str, Any],
        max_cost: float | None,
    ) -> Self:
        """Read what a user chose; what cannot be is refused before anything is measured."""
        owners = [Owner("sandbox", Limits)]
        if not (backend or model or os.environ.get("CWM_MODEL")):
            return cls("", None, {}, read_options(pairs, owners)["sandbox"], max_cost)
        answers, (name,) = answering(backend or "litellm", [model or ""])
        owners.append(Owner("backend", find("backend", answers)))
        options = read_options(pairs, owners)
        given = {flag: value for flag, value in flags.items() if value is not None}
        check_flags(answers, given)
        usual = {"temperature": TEMPERATURE} if "temperature" in owners[1].options else {}
        chosen = usual | options["backend"] | given
        return cls(name or answers, owners[1].factory, chosen, options["sandbox"], max_cost)

    def limits(self, usual: dict[str, Any]) -> Limits:
        """Return what a program may use up."""
        return Limits.chosen(usual | self.sandbox)

    def ask(
        self, questioner: Questioner, rows: Dataset, metric: Metric, heard: Callable[[int], None]
    ) -> Asked:
        """Ask for rows; a language model that cannot be asked is reported."""
        try:
            backend = self.factory(model=self.name, **self.options)
        except CwmError as error:
            return Asked(stopped=str(error))
        return Inquiry(backend, questioner, metric, self.max_cost).ask(rows, heard)


@dataclass(frozen=True)
class Measuring:
    """What is compared on which transitions: `count` are predicted, more are timed."""

    spec: EnvironmentSpec
    subject: Subject
    data: Dataset
    sandbox: Sandbox
    count: int
    examples: int
    seed: int

    def compare(self, predictor: Predictor) -> Comparison:
        """Measure the world model and the environment, and the language model last."""
        metric, (asked, timed, train) = AccuracyMetric.of(self.data.train), self._rows()
        world = World(self.spec, self.subject.env_args, metric, self.seed)
        assert self.subject.text is not None
        err = Console(stderr=True)
        with err.status("timing world model and environment"), redirect_stdout(sys.stderr):
            measured = world.measure(self.subject.text, self.sandbox, asked=asked, timed=timed)
        if predictor.factory is None:
            return Comparison(measured, None)
        with redirect_stdout(sys.stderr):
            description = world.description()
        questioner = Questioner(description, train, self.examples, self.seed)
        with err.status(f"asking {escape(predictor.name)}") as status:

            def heard(count: int) -> None:
                status.update(f"asking {escape(predictor.name)}: {count} of {len(asked)} answered")

            return Comparison(measured, predictor.ask(questioner, asked, metric, heard))

    def _rows(self) -> tuple[Dataset, Dataset, Dataset]:
        """Draw the rows to predict, held out ones if there are any, and rows to time.

        The third part are train rows that nobody is asked for.
        """
        data, rng = self.data, np.random.default_rng(self.seed)
        held_out = np.flatnonzero(data.columns["split"] == 1)
        candidates = held_out if len(held_out) else np.arange(len(data))
        asked = np.sort(rng.permutation(candidates)[: self.count])
        timed = rng.permutation(len(data))[:TIMED]
        is_train = data.columns["split"] == 0
        is_train[asked] = False
        return data[asked], data[timed], data[is_train]


def report(measuring: Measuring, predictor: Predictor, *, json: bool) -> None:
    """Measure, and print what came of it; an interruption ends the asking only."""
    found = measuring.compare(predictor)
    out = console(json=json)
    for part in comparison_parts(found, predictor.name, out.width):
        out.print(part)
    if json:
        typer.echo(jsonlib.dumps(found.to_json(), allow_nan=False))
    if found.language_model and found.language_model.stopped == INTERRUPTED:
        raise KeyboardInterrupt("interrupted: what was answered before is reported above")
