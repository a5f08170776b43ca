"""How well rules in words predict recorded transitions: the function behind `cwm score`.

The statistician ranks the recorded change among all candidates under the rules. No rules and
guessing are the baselines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwm_cli.commands.choices import check_flags
from cwm_cli.commands.collect import find_environment, recorded_args
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.report import Grid
from cwm_theorize.parts import choose_backend, collect_held_out, load_held_out, make_statistician
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.ranking import TOP, Ranking, RankSummary
from cwm_theorize.statistician import text_transitions
from cwm_theorize.world_model import Theory

RULES, NO_RULES, GUESSING = "rules", "no rules", "guessing"
"""Labels of the compared predictors in tables."""


@dataclass(frozen=True)
class RuleScores(Result):
    """The result of `score`: ranks of the recorded changes under rules and two baselines.

    Attributes:
        source: Where the transitions come from: "collected", or the path of the dataset.
        statistician: Backend that scored the changes.
        normalises: Whether log-likelihoods are log-probabilities among the candidates. Only then
            can they be compared between statisticians.
        notes: Messages about the scores for the user.
    """

    env: str
    rules: str
    statistician: str
    normalises: bool
    source: str
    ranks: RankSummary
    without_rules: RankSummary
    guessing: RankSummary
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm score --json`."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: value.model_dump(mode="json") if isinstance(value, RankSummary) else value
            for name, value in facts.items()
        }

    def grids(self) -> list[Grid]:
        """Return the tables: all transitions for each predictor, and each kind of change."""
        return [RankSummary.grid(self._sides), self.ranks.kinds_grid()]

    def likelihoods(self) -> str:
        """Return a line with the total log-likelihood under each predictor."""
        totals = (f"{side} {each.all.log_likelihood:.2f}" for side, each in self._sides.items())
        return f"log-likelihood: {', '.join(totals)}"

    @property
    def _sides(self) -> dict[str, RankSummary]:
        return {RULES: self.ranks, NO_RULES: self.without_rules, GUESSING: self.guessing}


def score(
    env: str,
    *,
    rules: Path | str,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    top: Sequence[int] = TOP,
    statistician: str | None = None,
    model: str | None = None,
    api_base: str | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    data_seed: int = 0,
    observer: Observer = SILENT,
) -> RuleScores:
    """Rank the recorded changes of transitions among all candidates, under rules in words.

    Args:
        env: Environment ID; the environment needs a text view.
        rules: File with one rule per line, or the rules themselves as a text with several lines.
        env_args: Arguments of the environment.
        dataset: Recorded transitions; only its held-out rows count if it has any. Default: the
            held-out rows of `cwm theorize`.
        top: Values of k for top-k accuracy, at least 1.
        statistician: Backend, BACKEND/MODEL, or PROVIDER/NAME for a language model.
        model: Model of the statistician.
        api_base: Address of the model server.
        options: Options of the statistician.
        data_seed: Random seed of the collected rows.
        observer: Receives notes and warnings.

    Returns:
        The ranks under the rules, under no rules, and by guessing.

    Raises:
        CwmError: An argument is invalid, or the backend cannot score.
    """
    text, asked = read_rules_file(rules), choose_backend("statistician", statistician, model)
    if min(top, default=0) < 1:
        raise CwmError("ranks must be at least 1, such as --topk 1,3,5,10")
    flags = {"api_base": api_base} if api_base else {}
    check_flags(asked.backend, flags)
    chosen = read_options(options, [Owner("statistician", asked.owner)])["statistician"]
    spec = find_environment(env, observer)
    rows = load_held_out(spec, dataset, env_args) if dataset is not None else None
    args = dict(env_args or {}) if rows is None else recorded_args(rows, env_args)
    reads = make_statistician(asked, chosen | flags, spec, args, observer)
    if rows is None:
        rows = collect_held_out(spec, args, seed=data_seed)
    source = "collected" if dataset is None or isinstance(dataset, Dataset) else str(dataset)
    transitions = text_transitions(reads.view, rows)
    theories = [Theory(each, reads) for each in (text, "")]
    ranked, bare = (each.ranking(rows) for each in theories)
    return RuleScores(
        env=spec.id,
        rules=text,
        statistician=str(asked),
        normalises=reads.normalises,
        source=source,
        ranks=ranked.summary(top),
        without_rules=bare.summary(top),
        guessing=Ranking.uniform(transitions).summary(top),
        notes=(*reads.backend.unread(reads.view, text), *_notes(ranked, bare)),
    )


def _notes(ranked: Ranking, bare: Ranking) -> list[str]:
    """Return warnings about ranks that carry no information."""
    if not ranked.distinguishes:
        return [
            "under these rules the statistician gives the same weight to every candidate: "
            "the ranks are random"
        ]
    if ranked.places == bare.places:
        return ["the statistician cannot read these rules: it ignores them"]
    return []


def read_rules_file(source: Path | str) -> str:
    """Return the rules in a file, or in a text with several lines.

    Raises:
        CwmError: The file is unreadable, has no rules, or is longer than the problem allows.
    """
    if isinstance(source, str) and "\n" in source:
        name, text = "the text", source
    else:
        name = str(source)
        try:
            text = read_text(Path(source))
        except UnreadableError as error:
            hint = "give a text file with one rule on each line"
            raise UnreadableError(
                error.file, error.reason, hint, is_missing=error.is_missing
            ) from error
    text = "\n".join(line.strip() for line in text.splitlines() if line.strip())
    if not text:
        raise CwmError(f"{name} has no rules: write one on each line")
    if len(text) > TheoryProblem.longest:
        most = f"{len(text):,} characters, and rules have {TheoryProblem.longest:,} at most"
        raise CwmError(f"{name} has {most}: shorten them")
    if not text.replace("\n", " ").isprintable():
        raise CwmError(f"{name} is not a text file: write one rule on each line")
    return text
