"""The `replay` backend."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import read_answers
from cwm_cli.search.contracts import Backend, Completion, Request

SUFFIXES = (".md", ".txt")


@dataclass
class Replay(Backend):
    """Answers as before: `model` is the folder of a run, or of text files.

    A run answers the n-th asking of the same messages as it was answered
    then; of text files, in the order of their names, the n-th answers the
    n-th question. Replayed answers cost nothing.
    """

    needs_model = True

    model: str
    _recorded: Mapping[str, Sequence[Completion]] = field(init=False, repr=False)
    _texts: Sequence[Path] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        folder = Path(self.model)
        self._recorded = _recorded(folder)
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        self._texts = [file for file in files if file.suffix in SUFFIXES]
        if not self.model or not (self._recorded or self._texts):
            raise CwmError(
                f"{self.model!r} holds no answers: give --model the folder of a run,"
                f" or of files *{' and *'.join(SUFFIXES)}"
            )

    def complete(self, request: Request) -> Completion:
        """Return the answer that was given before."""
        return self._replayed(request) if self._recorded else self._text(request.step)

    def worst_cost(self, request: Request) -> float | None:
        """Return nothing: no one is asked."""
        return 0.0

    def _replayed(self, request: Request) -> Completion:
        """Return what the run answered to the same messages."""
        answers = self._recorded.get(request.key, ())
        if request.occurrence < len(answers):
            return answers[request.occurrence]
        if answers:
            raise CwmError(
                f"{self.model} asked this question only {_times(len(answers))}: lower --budget"
            )
        raise CwmError(
            f"{self.model} never asked this question:"
            " replay with the environment, data, strategy, options and seed of that run"
        )

    def _text(self, number: int) -> Completion:
        """Return the text of a file."""
        if number >= len(self._texts):
            raise CwmError(
                f"{self.model} holds only {len(self._texts)} answers: lower --budget or add files"
            )
        return Completion(self._texts[number].read_text(encoding="utf-8"))


def _recorded(folder: Path) -> Mapping[str, Sequence[Completion]]:
    """Return a run's answers by the hash of the messages, in the order of asking."""
    answers: dict[str, list[Completion]] = defaultdict(list)
    for line in sorted(read_answers(folder), key=lambda line: line.node.step):
        usage = replace(line.node.usage, cost=0.0, seconds=0.0)
        answers[line.node.prompt].append(Completion(line.text, usage))
    return dict(answers)


def _times(count: int) -> str:
    """Say how often."""
    return "once" if count == 1 else f"{count} times"
