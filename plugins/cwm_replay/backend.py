"""The `replay` backend."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cwm_cli.data.reading import read_text
from cwm_cli.errors import CwmError
from cwm_cli.runs.nodes import SearchRecord
from cwm_cli.runs.searches import SearchLine, SearchRun, read_answers
from cwm_cli.runs.store import DATASET
from cwm_cli.sandbox.failures import NO_ANSWER
from cwm_cli.search.contracts import ROOT, Backend, Completion, Remark, Request, Switch, Turn

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".md", ".txt")


@dataclass
class Replay(Backend):
    """Answers as before: `model` is the folder of a run, or of text files.

    For a run, the n-th request with the same messages gets the n-th recorded answer. The search
    sends its requests in the recorded order, so a smaller budget gives the beginning of the same
    tree, and `--parallel` has no effect. The initial program and the results of refiners are taken
    from the run. For text files, the n-th file by name answers the n-th request. Replayed answers
    cost nothing.
    """

    needs_model = True

    model: str
    _lines: Sequence[SearchLine] = field(init=False, repr=False)
    _answers: Mapping[str, Sequence[Completion]] = field(init=False, repr=False)
    _texts: Sequence[Path] = field(init=False, repr=False)
    _models: Iterator[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        folder = Path(self.model)
        self._lines = list(read_answers(folder))
        self._answers = _answers_by_prompt(self._lines)
        self._models = iter([line.node.model for line in _requested(self._lines)])
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        self._texts = [file for file in files if file.suffix in SUFFIXES]
        if not self.model or not (self._lines or self._texts):
            raise CwmError(
                f"{self.model!r} contains no completions: give --model the folder of a run,"
                f" or of files *{' and *'.join(SUFFIXES)}"
            )

    def complete(self, request: Request) -> Completion:
        """Return the recorded answer."""
        return self._replayed(request) if self._lines else self._text(request.step)

    def worst_cost(self, request: Request) -> float | None:
        """Return 0, because no provider is used."""
        return 0.0

    def recorded(self) -> Sequence[Turn]:
        """Return the turn of each event of the run.

        If a journal does not record when requests were sent, the smallest constant number of
        requests in flight that explains the order of its nodes is assumed. A journal with lost
        lines has no turns.
        """
        nodes = [line.node for line in self._lines if isinstance(line, SearchRecord)]
        if any(node.id != place for place, node in enumerate(nodes)):
            return ()
        steps = [node.step for node in nodes if node.asked]
        ahead = max((step - place for place, step in enumerate(steps)), default=0)
        turns = []
        for place, line in enumerate(self._lines):
            if isinstance(line, Remark | Switch):
                turns.append(Turn(ROOT, place, line))
            elif not line.node.asked:
                turns.append(Turn(line.node.step, place, line.node))
            else:
                step, known = line.node.step, line.node.known
                turns.append(Turn(step, max(0, step - ahead) if known is None else known))
        return turns

    def assign(self, rng: np.random.Generator, pending: Sequence[str]) -> str:
        """Return the model of the next recorded answer; searches ask in the order of steps."""
        return next(self._models, "")

    def _replayed(self, request: Request) -> Completion:
        """Return the recorded answer to the same messages."""
        answers = self._answers.get(request.key, ())
        if request.occurrence < len(answers):
            return answers[request.occurrence]
        times = "once" if len(answers) == 1 else f"{len(answers)} times"
        asked = f"asked this only {times}" if answers else "never asked this"
        raise CwmError(f"the run {self.model} {asked}: {_advice(Path(self.model))}")

    def _text(self, number: int) -> Completion:
        if number >= len(self._texts):
            raise CwmError(
                f"{self.model} contains only {len(self._texts)} completions: lower --budget "
                "or add files"
            )
        return Completion(read_text(self._texts[number]))


def _answers_by_prompt(lines: Sequence[SearchLine]) -> Mapping[str, Sequence[Completion]]:
    """Return a run's answers by the hash of their prompt, in the order of requests."""
    answers: dict[str, list[Completion]] = defaultdict(list)
    for line in _requested(lines):
        usage = replace(line.node.usage, cost=0.0, seconds=0.0)
        failure = line.node.verdict.failure
        lacking = (
            failure.message.partition("\n")[0] if failure and failure.kind == NO_ANSWER else ""
        )
        answers[line.node.prompt].append(Completion(line.text, usage, lacking=lacking))
    return dict(answers)


def _requested(lines: Sequence[SearchLine]) -> list[SearchRecord]:
    """Return the records of a run with a request, in the order of requests."""
    records = (line for line in lines if isinstance(line, SearchRecord) and line.node.asked)
    return sorted(records, key=lambda line: line.node.step)


def _advice(folder: Path) -> str:
    """Return advice on how to repeat the requests of a run."""
    try:
        chosen = SearchRun.load(folder).config
    except CwmError:
        return "replay with the environment, data, strategy, options and seed of that run"
    words = ["--env", chosen.env, "--strategy", chosen.strategy, "--seed", str(chosen.seed)]
    words += ["--dataset", str(folder / DATASET)]
    return f"replay with {shlex.join(words)} and the options of that run"
