"""Reports on programs with probabilities or memory.

Probabilities are not wrong in a single row: they are off if outcomes occur more or less often than
predicted, or if an outcome occurs that the program called impossible. Programs with memory become
wrong at some step of an episode.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric, Score, match
from cwm_cli.evaluation.calibration import calibration
from cwm_cli.evaluation.finding import ContractName, Finding, RecordedPast
from cwm_cli.problems.feedback.kinds import outcome_counts
from cwm_cli.problems.feedback.report import report
from cwm_cli.problems.feedback.steps import RecordedSteps
from cwm_cli.text import clean, percent, share
from cwm_cli.worlds.model import Predictions

MOST_SITUATIONS = 5
MOST_OUTCOMES = 6
MOST_EXAMPLES = 3
LEAST_HELD = 0.001
"""Probability that the score gives to an outcome that was called impossible."""
OFF = 2.5
"""A probability is reported if the recorded frequency is this many standard errors away."""
MOST_MISTAKES = 5
"""Mistakes of a program with memory that are shown."""
EARLY = (1, 2, 3, 10)
"""Last steps of the ranges for counts of mistakes: the first steps are often guesses."""
SPREAD = 1.25
"""Ratio of the spread of draws to the recorded spread that is reported."""
MOST_BEFORE = 12
"""Steps of an episode that are shown before a wrong step of a program with memory."""


def on_chance(finding: Finding | None, contract: ContractName, names: Sequence[str] = ()) -> str:
    """Return what the rows show of chance or hidden state, "" for the plain contract."""
    if contract == "plain":
        return ""
    known = finding is not None and finding.contract != "plain"
    found = f": {finding.words(names)}" if finding is not None and known else ""
    if contract == "memory":
        return f"The observation does not show the whole state{found}."
    return (
        f"Chance decides some results{found}. A score of 0 means the overall outcome frequencies "
        "of each action, 1 means the true probabilities."
    )


def hidden_examples(rows: Dataset) -> list[str]:
    """Return situations that led to different outcomes, each with the step before it."""
    past, steps = RecordedPast(rows), RecordedSteps(rows)
    outcome, lines = past.outcome, list[str]()
    for rows_of_it in _by_situation(past.situation[past.follows], np.flatnonzero(past.follows)):
        first = {int(outcome[row]): row for row in reversed(rows_of_it)}
        if len(first) < 2:
            continue
        row = rows_of_it[0]
        cases = [
            f"after {steps.observation(r - 1)} | {steps.action(r - 1)} it led to "
            f"{_followed(steps, r)}"
            for r in list(first.values())[:2]
        ]
        lines.append(f"- {steps.observation(row)} | {steps.action(row)}: {'; '.join(cases)}")
        if len(lines) == MOST_EXAMPLES:
            break
    return lines


def uncertain_report(
    rows: Dataset,
    answers: Predictions,
    metric: Metric,
    description: str = "",
    *,
    contract: ContractName = "chance",
    brief: bool = False,
) -> str:
    """Describe where a program with probabilities or memory is off, in about 4,000 characters.

    The arguments are the same as for `report`; the program may give several answers to a row.
    """
    sections = [list(_summary(metric.score(answers, rows)))]
    if contract == "memory":
        sections.append(list(_by_step(rows, answers)))
    if answers.shape == "certain":
        if contract == "chance":
            sections.append(
                [
                    "The program gives one certain answer to each row, but some results are "
                    "random: return all possible outcomes with their probabilities."
                ]
            )
        text = report(rows, answers.columns, metric, description, contract=contract, brief=brief)
        sections.append([text])
    else:
        sections.append(list(_frequencies(rows, answers)))
        sections.append(list(_situations(rows, answers)))
        sections.append(list(_numbers(rows, answers)))
    return clean("\n\n".join("\n".join(part) for part in sections if part), newlines=True)


def _summary(score: Score) -> Iterator[str]:
    """Yield the score and its reference points."""
    if score.skill is None:
        yield f"The score is {share(score.value, 4)}."
        return
    best = (
        "a program that is always certain and right"
        if score.reached is None
        else "the true environment"
    )
    error = f" ± {score.skill_stderr:.2g}" if score.skill_stderr is not None else ""
    yield (
        f"The score is {score.skill:.3f}{error}: 0 is the overall outcome frequency of each "
        f"action, 1 is {best}."
    )
    yield f"The mean log-likelihood of a transition is {score.log_likelihood:.4g} nats."
    if score.energy is not None:
        yield f"The energy score of real numbers is {score.energy:.4g} (less is better)."
    if score.impossible:
        yield (
            f"{score.impossible} of {score.transitions} transitions have probability 0: the "
            "recorded result is not among the outcomes of the program."
        )


def _by_step(rows: Dataset, answers: Predictions) -> Iterator[str]:
    """Count mistakes by the step of the episode, and show an episode up to a mistake."""
    right = match(answers.likeliest(), rows).losses(rows.columns["terminations"]) == 0
    if right.all():
        return
    episodes = rows.columns["episodes"]
    starts = np.flatnonzero(np.concatenate([[True], episodes[1:] != episodes[:-1]]))
    step = np.arange(len(rows)) - np.repeat(starts, np.diff([*starts, len(rows)])) + 1
    yield "Transitions that are not predicted exactly, by the step of the episode:"
    low = 0
    for high in (*EARLY, int(step.max())):
        some = (step > low) & (step <= high)
        if some.any():
            which = f"step {high}" if high == low + 1 else f"steps {low + 1} to {high}"
            yield f"- {which}: {int((~right[some]).sum())} of {int(some.sum())} wrong"
        low = max(low, high)
    late = np.flatnonzero(~right & (step > EARLY[2]))
    wrong = late if len(late) else np.flatnonzero(~right)
    places = np.unique(np.linspace(0, len(wrong) - 1, min(len(wrong), MOST_MISTAKES)).astype(int))
    steps = RecordedSteps(rows)
    yield "Examples of mistakes, each with the recorded steps before it:"
    for row in wrong[places].tolist():
        yield f"Step {int(step[row])} of an episode is wrong:"
        yield from steps.chain(steps.up_to(row, MOST_BEFORE))
        yield f"  recorded  {_followed(steps, row)}"
        yield f"  predicted {_likeliest(rows, answers, row)}"


def _frequencies(rows: Dataset, answers: Predictions) -> Iterator[str]:
    """Yield the probabilities of rewards and ends that differ from the recorded frequencies."""
    lines = []
    for one in calibration(answers, rows).reliability:
        for said, came, count in zip(one.said, one.came, one.counts, strict=True):
            error = np.sqrt(max(said * (1 - said), 1 / count) / count)
            if abs(said - came) > OFF * error:
                lines.append(
                    (
                        abs(said - came) * count,
                        f"- {one.what}: predicted with probability {said:.3f}, recorded in "
                        f"{percent(came)} of {count} cases",
                    )
                )
    if lines:
        yield "Probabilities that differ from the recorded frequencies:"
        yield from (line for _, line in sorted(lines, reverse=True)[:MOST_SITUATIONS])


def _situations(rows: Dataset, answers: Predictions) -> Iterator[str]:
    """Yield the situations with the largest differences of probability and frequency."""
    past = RecordedPast(rows)
    terminal = rows.columns["terminations"]
    held = np.zeros(len(rows))
    for columns, shares in answers.answers():
        held += shares * (match(columns, rows).losses(terminal) == 0)
    if not held.any() and past.real:
        return
    outcome = past.outcome
    pairs = np.stack([past.situation, outcome])
    _, code, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    often = counts[code.reshape(-1)] / np.bincount(past.situation)[past.situation]
    lacking = np.log(often) - np.log(np.maximum(held, LEAST_HELD))
    lost = np.bincount(past.situation, weights=lacking)
    worst = [each for each in np.argsort(-lost, kind="stable")[:MOST_SITUATIONS] if lost[each] > 1]
    if not worst:
        return
    steps = RecordedSteps(rows)
    yield (
        "Largest errors of probabilities (observation | action: recorded outcomes; predicted ones):"
    )
    for situation in worst:
        members = np.flatnonzero(past.situation == situation)
        seen: dict[str, int] = {}
        for row in members.tolist():
            words = _followed(steps, row)
            seen[words] = seen.get(words, 0) + 1
        row = int(members[0])
        recorded = outcome_counts(seen, always=True)
        yield (
            f"- {steps.observation(row)} | {steps.action(row)}: recorded {recorded}; "
            f"predicted {_likeliest(rows, answers, row)}"
        )


def _numbers(rows: Dataset, answers: Predictions) -> Iterator[str]:
    """Compare mean and spread of each real number's draws with the recorded values."""
    going = ~rows.columns["terminations"]
    lines, place = list[str](), 0
    names = RecordedSteps(rows).names
    for leaf in rows.observation_space.leaves("next_observations"):
        if leaf.space.is_float and going.any():
            drawn = answers.columns[leaf.name][going].astype(np.float64)
            drawn = drawn.reshape(*drawn.shape[:2], -1)
            true = rows.columns[leaf.name][going].reshape(len(drawn), -1).astype(np.float64)
            lines += _compared(drawn, true, _weights(answers)[going], names[place:])
        place += leaf.space.size
    if lines:
        yield "Real numbers (in recorded units), recorded compared with predicted:"
        yield from lines


def _weights(answers: Predictions) -> np.ndarray:
    """Return the probability of each answer to each row."""
    if answers.probabilities is not None:
        return answers.probabilities
    shape = answers.columns["rewards"].shape
    return np.full(shape, 1 / shape[1])


def _compared(
    drawn: np.ndarray, true: np.ndarray, weights: np.ndarray, names: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each component whose mean or spread is off.

    `drawn` has the shape (rows, answers, components).
    """
    middle = (weights[:, :, None] * drawn).sum(axis=1)
    said = np.sqrt((weights[:, :, None] * (drawn - middle[:, None]) ** 2).sum(axis=1))
    missed = true - middle
    for index in range(true.shape[1]):
        bias, spread = float(missed[:, index].mean()), float(missed[:, index].std())
        own = float(np.sqrt((said[:, index] ** 2).mean()))
        words = []
        if abs(bias) > OFF * spread / np.sqrt(len(true)) and abs(bias) > 1e-9:
            words.append(f"the recorded mean is {bias:+.3g} from the predicted one")
        if spread > SPREAD * own or own > SPREAD * spread:
            words.append(f"standard deviation recorded {spread:.3g}, predicted {own:.3g}")
        if words and max(spread, own) > 1e-6:
            yield f"- {names[index]}: {'; '.join(words)}"


def _followed(steps: RecordedSteps, row: int) -> str:
    """Write the result of a row: observation, reward and end."""
    after = steps.changes(row) if steps.is_board else steps.observation(row, after=True)
    return f"{after} reward {steps.outcome(row)}"


def _likeliest(rows: Dataset, answers: Predictions, row: int) -> str:
    """Write the prediction of a row, the most probable outcome first."""
    if answers.shape == "certain":
        return _followed(RecordedSteps(_answered(rows, answers.columns, row, 1)), 0)
    weights = _weights(answers)[row]
    columns = {name: column[row] for name, column in answers.columns.items()}
    steps = RecordedSteps(_answered(rows, columns, row, len(weights)))
    chances: dict[str, float] = {}
    for place in np.flatnonzero(weights > 0).tolist():
        words = _followed(steps, place)
        chances[words] = chances.get(words, 0.0) + float(weights[place])
    order = sorted(chances.items(), key=lambda each: -each[1])
    more = f" and {len(order) - MOST_OUTCOMES} more" if len(order) > MOST_OUTCOMES else ""
    return " or ".join(f"{words} ({p:.3g})" for words, p in order[:MOST_OUTCOMES]) + more


def _answered(rows: Dataset, columns: Columns, row: int, count: int) -> Dataset:
    """Return copies of a row, with the predicted results instead of the recorded one."""
    copies = rows[np.full(count, row)]
    if count == 1 and len(columns["rewards"]) == len(rows):
        columns = {name: column[[row]] for name, column in columns.items()}
    return replace(copies, columns=copies.columns | columns)


def _by_situation(situation: np.ndarray, rows: np.ndarray) -> Iterator[list[int]]:
    """Yield the rows of each situation, the most frequent situation first."""
    values, counts = np.unique(situation, return_counts=True)
    for value in values[np.argsort(-counts, kind="stable")][:50]:
        yield rows[situation == value].tolist()
