"""The end of `cwm synthesize`: scores by part, a verdict in words, and the next command."""

import shlex
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from cwm_cli.commands.comparison import LearnFrom
from cwm_cli.commands.plays import mismatches_of
from cwm_cli.commands.synthesize import SynthesisResult
from cwm_cli.evaluation.verdicts import verdict
from cwm_cli.registry import find
from cwm_cli.runs.places import named
from cwm_cli.runs.progress import models_grid
from cwm_cli.runs.searches import SearchRun
from cwm_cli.search.contracts import START
from cwm_cli.text import cached_words, money, tokens
from cwm_cli.views.lines import is_verbose
from cwm_cli.views.scores import gap_parts, labelled, part_table
from cwm_cli.views.tables import GridTable, score_table, titled

POOR_SCORE = 0.9
"""Below this normalised score the summary suggests a language model."""


def synthesis_report(result: SynthesisResult, budget: int) -> Iterator[RenderableType]:
    """Yield the scores, the verdict, the gaps of the data and the next command.

    `budget` is the number of completions that the search was given.
    """
    scores = {"train": result.scores.train, "held-out": result.scores.test}
    if is_verbose() and result.scores.train is not None:
        yield score_table(titled(result.scores._asdict()))
    elif result.scores.train is not None:
        yield part_table(scores, result.baseline)
    if len(result.models) > 1:
        yield GridTable(models_grid(result.models))
    style = "bold green" if result.solved and not result.untested else "bold yellow"
    words = verdict(
        result.scores.train,
        result.scores.test,
        solved=result.solved,
        finished=result.finished,
        settled=result.settled,
        unverified=result.untested if result.solved else result.unverified,
    )
    title, separator, rest = words.partition(": ")
    yield Text(title, style).append(f"{separator}{rest}.", "default not bold")
    yield from gap_parts(result.gaps)
    yield from labelled(_facts(result, budget))


def _facts(result: SynthesisResult, budget: int) -> dict[str, str]:
    """Return the lines below the verdict by label: cost, program, next command."""
    config = SearchRun.load(result.run).config
    backend = find("backend", config.backend)
    lines: dict[str, str] = {}
    if backend.is_language_model:
        lines["Cost"] = _cost_words(result)
    if result.program:
        lines["Program"] = named(result.program)
    score = result.scores.test or result.scores.train
    if score is None:
        lines["Run"] = named(result.run)
        return lines
    gain = score.normalised if score.skill is None else score.skill  # above the baseline
    useful = (gain is None and score.exact > 0) or score.value > score.least
    mismatches = mismatches_of(result.run)
    if not useful and not result.given_up and not result.finished:
        run = shlex.quote(named(result.run))
        more = result.completions + budget
        lines["Next"] = f"repeat with --run {run} --budget {more} (no better than the baseline)"
    elif not useful:
        lines["Next"] = "no better than the baseline: record more data, or use another --model"
    elif not result.has_simulator:
        lines["Next"] = shlex.join(["cwm", "runs", "export", named(result.run)])
    elif score.refuted or mismatches.mistakes or mismatches.unanswered:
        lines["Next"] = shlex.join(LearnFrom(config.env, config.env_args, result.run).command)
    else:
        lines["Next"] = shlex.join(["cwm", "plan", named(result.run)])
    poor = (score.accuracy if gain is None else gain) < POOR_SCORE
    if poor and backend.from_data:
        lines["Hint"] = "a language model may find more: --model PROVIDER/NAME"
    return lines


def _cost_words(result: SynthesisResult) -> str:
    """Return completions, tokens, cost and time; a start program may have cost nothing."""
    if result.unasked and not result.completions:
        if result.unasked == START:
            return "no completion: the start program is exact (ask anyway with --start none)"
        return f"no completion: solved by {result.unasked}, {result.seconds:.1f} s"
    plural = "" if result.completions == 1 else "s"
    reused = f" ({result.reused} from the cache)" if result.reused else ""
    read = cached_words(result.cached_tokens, result.reasoning_tokens)
    return (
        f"{result.completions} completion{plural}{reused}, {tokens(result.tokens)} tokens{read}, "
        f"{money(result.cost)}, {result.seconds:.1f} s"
    )
