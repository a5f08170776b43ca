"""Reports on programs with probabilities or memory, and on dead ends.

Probabilities are not wrong in a single row: they are off if outcomes occur more or less often than
predicted, or if an outcome occurs that the program called impossible. Programs with memory become
wrong at some step of an episode. A dead end is a program that is right on all rows that prompts
may show and wrong on hidden ones; its report reveals no hidden value.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Metric, Score, match
from cwm_cli.evaluation.calibration import calibration
from cwm_cli.evaluation.finding import CERTAIN, ContractName, Finding, RecordedPast
from cwm_cli.problems.feedback.examples import ComparedRows, actions_taken
from cwm_cli.problems.feedback.report import report
from cwm_cli.problems.feedback.steps import RecordedSteps, outcome_counts
from cwm_cli.text import clean, percent, share
from cwm_cli.worlds.model import Predictions

MIN_STANDARD_ERRORS = 2.5
"""A probability or a mean is reported if it is this many standard errors from the recorded one."""
ONE_ANSWER = (
    "The program gives one certain answer to each row, but some results are random: return all "
    "possible outcomes with their probabilities."
)


def on_chance(finding: Finding | None, contract: ContractName, names: Sequence[str] = ()) -> str:
    """Return what the rows show of chance or hidden state, "" if answers are certain."""
    if contract in CERTAIN:
        return ""
    known = finding is not None and finding.contract not in CERTAIN
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
    following = np.flatnonzero(past.follows)
    situations, counts = np.unique(past.situation[following], return_counts=True)
    for situation in situations[np.argsort(-counts, kind="stable")][:50]:
        members = following[past.situation[following] == situation].tolist()
        # The first row of each outcome; the first row of all comes last.
        first = {int(outcome[row]): row for row in reversed(members)}
        if len(first) < 2:
            continue
        cases = [
            f"after {steps.observation(r - 1)} | {steps.action(r - 1)} it led to "
            f"{_result(steps, r)}"
            for r in list(first.values())[:2]
        ]
        row = members[0]
        lines.append(f"- {steps.observation(row)} | {steps.action(row)}: {'; '.join(cases)}")
        if len(lines) == 3:
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
    sections: list[Iterable[str]] = [_summary(metric.score(answers, rows))]
    if contract == "memory":
        sections.append(_by_step(rows, answers))
    if answers.shape == "certain":
        if contract == "chance":
            sections.append([ONE_ANSWER])
        text = report(rows, answers.columns, metric, description, contract=contract, brief=brief)
        sections.append([text])
    else:
        sections += [each(rows, answers) for each in (_frequencies, _situations, _compare_draws)]
    texts = filter(None, map("\n".join, sections))
    return clean("\n\n".join(texts), newlines=True)


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
    # The first steps, which are often guesses, are counted one by one.
    for high in (1, 2, 3, 10, int(step.max())):
        some = (step > low) & (step <= high)
        if some.any():
            which = f"step {high}" if high == low + 1 else f"steps {low + 1} to {high}"
            yield f"- {which}: {int((~right[some]).sum())} of {int(some.sum())} wrong"
        low = max(low, high)
    late = np.flatnonzero(~right & (step > 3))
    wrong = late if len(late) else np.flatnonzero(~right)
    places = np.unique(np.linspace(0, len(wrong) - 1, min(len(wrong), 5)).astype(int))
    steps = RecordedSteps(rows)
    yield "Examples of mistakes, each with the recorded steps before it:"
    for row in wrong[places].tolist():
        yield f"Step {int(step[row])} of an episode is wrong:"
        yield from steps.chain(steps.up_to(row, 12))
        yield f"  recorded  {_result(steps, row)}"
        yield f"  predicted {_likeliest(rows, answers, row)}"


def _frequencies(rows: Dataset, answers: Predictions) -> Iterator[str]:
    """Yield the probabilities of rewards and ends that differ from the recorded frequencies."""
    lines = []
    for one in calibration(answers, rows).reliability:
        for said, came, count in zip(one.said, one.came, one.counts, strict=True):
            # One of `count` outcomes bounds the error below, since 0 and 1 have no variance.
            error = np.sqrt(max(said * (1 - said), 1 / count) / count)
            if abs(said - came) > MIN_STANDARD_ERRORS * error:
                line = f"- {one.what}: predicted with probability {said:.3f}, recorded in "
                line += f"{percent(came)} of {count} cases"
                lines.append((abs(said - came) * count, line))
    if lines:
        yield "Probabilities that differ from the recorded frequencies:"
        yield from (line for _, line in sorted(lines, reverse=True)[:5])


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
    # The score gives outcomes that were called impossible a probability of 0.001.
    lacking = np.log(often) - np.log(np.maximum(held, 0.001))
    lost = np.bincount(past.situation, weights=lacking)
    worst = [each for each in np.argsort(-lost, kind="stable")[:5] if lost[each] > 1]
    if not worst:
        return
    steps = RecordedSteps(rows)
    yield (
        "Largest errors of probabilities (observation | action: recorded outcomes; predicted ones):"
    )
    for situation in worst:
        members = np.flatnonzero(past.situation == situation).tolist()
        recorded = outcome_counts(Counter(_result(steps, row) for row in members), always=True)
        row = members[0]
        yield (
            f"- {steps.observation(row)} | {steps.action(row)}: recorded {recorded}; "
            f"predicted {_likeliest(rows, answers, row)}"
        )


def _weights(answers: Predictions) -> np.ndarray:
    """Return the probability of each answer to each row."""
    if answers.probabilities is not None:
        return answers.probabilities
    shape = answers.columns["rewards"].shape
    return np.full(shape, 1 / shape[1])


def _compare_draws(rows: Dataset, answers: Predictions) -> Iterator[str]:
    """Compare mean and spread of each real number's draws with the recorded values."""
    going = ~rows.columns["terminations"]
    weights = _weights(answers)[going][:, :, None]
    names = iter(RecordedSteps(rows).names)
    lines = []
    for leaf in rows.observation_space.leaves("next_observations"):
        own_names = list(islice(names, leaf.space.size))
        if not leaf.space.is_float or not going.any():
            continue
        true = rows.columns[leaf.name][going].reshape(int(going.sum()), -1).astype(np.float64)
        draws = answers.columns[leaf.name][going].astype(np.float64)
        draws = draws.reshape(*draws.shape[:2], -1)  # (rows, answers, components)
        mean = (weights * draws).sum(axis=1)
        variance = (weights * (draws - mean[:, None]) ** 2).sum(axis=1)
        for name, missed, spread2 in zip(own_names, (true - mean).T, variance.T, strict=True):
            bias, spread = float(missed.mean()), float(missed.std())
            own = float(np.sqrt(spread2.mean()))
            words = []
            if abs(bias) > MIN_STANDARD_ERRORS * spread / np.sqrt(len(true)) and abs(bias) > 1e-9:
                words.append(f"the recorded mean is {bias:+.3g} from the predicted one")
            if spread > 1.25 * own or own > 1.25 * spread:
                words.append(f"standard deviation recorded {spread:.3g}, predicted {own:.3g}")
            if words and max(spread, own) > 1e-6:
                lines.append(f"- {name}: {'; '.join(words)}")
    if lines:
        yield "Real numbers (in recorded units), recorded compared with predicted:"
        yield from lines


def _result(steps: RecordedSteps, row: int) -> str:
    """Write the result of a row: observation, reward and end."""
    return f"{steps.result(row)} reward {steps.outcome(row)}"


def _likeliest(rows: Dataset, answers: Predictions, row: int) -> str:
    """Write the prediction of a row, the most probable outcome first."""
    if answers.shape == "certain":
        weights = np.ones(1)
        columns = {name: column[[row]] for name, column in answers.columns.items()}
    else:
        weights = _weights(answers)[row]
        columns = {name: column[row] for name, column in answers.columns.items()}
    # Copies of the row, with the predicted results instead of the recorded one.
    copies = rows[np.full(len(weights), row)]
    steps = RecordedSteps(replace(copies, columns=copies.columns | columns))
    if answers.shape == "certain":
        return _result(steps, 0)
    chances: dict[str, float] = defaultdict(float)
    for place in np.flatnonzero(weights > 0).tolist():
        chances[_result(steps, place)] += float(weights[place])
    order = sorted(chances.items(), key=lambda each: -each[1])
    more = f" and {len(order) - 6} more" if len(order) > 6 else ""
    return " or ".join(f"{words} ({p:.3g})" for words, p in order[:6]) + more


# --- dead ends

UNSEEN = (
    "Every transition that may be shown is predicted correctly, but {wrong} of {rows} transitions "
    "of other episodes are not: the program fits the examples and not the environment."
)
GENERALISE = "Replace code that was fitted to single rows by the general rule."
COVERAGE = (
    "Either the program memorises single rows, or it lacks a rule that no shown transition needs, "
    "or it has a rule that does not exist. Look for situations that the shown transitions do not "
    "cover. The bounds above belong to the shown transitions."
)


def dead_end(
    dataset: Dataset, predictions: Columns, metric: Metric, shown: np.ndarray, description: str = ""
) -> str:
    """Return the wrong parts, actions and approximate regions of rows that are not shown."""
    hidden = dataset[~shown]
    answers = {name: column[~shown] for name, column in predictions.items()}
    comparison = ComparedRows.of(hidden, answers, metric, description)
    known = {name: column[shown] for name, column in predictions.items()}
    visible = ComparedRows.of(dataset[shown], known, metric)
    lines = [
        UNSEEN.format(wrong=int(comparison.wrong.sum()), rows=len(hidden)),
        "",
        "Number of wrong transitions, by part:",
        *_count_mistakes(comparison),
    ]
    where = []
    for index in range(len(comparison.names)):
        here, seen = comparison.component(index).before, visible.component(index).before
        for words, mask in _zones(here, seen) if here.dtype.kind in "biuf" else ():
            # A region explains mistakes if it has most wrong rows, but not most rows.
            if mask[comparison.wrong].mean() >= 0.9 and mask.mean() < 0.6:
                where.append(f"- {comparison.label(index)} {words}")
                break
        if len(where) == 6:
            break
    if where:
        lines += ["", "Observation before the step, in most of the wrong transitions:", *where]
    return clean("\n".join([*lines, "", COVERAGE]), newlines=True)


def _count_mistakes(comparison: ComparedRows) -> Iterator[str]:
    """Count the wrong rows of each part, of each component, and of each of few actions."""
    for part, mask in comparison.mistakes.items():
        if part != "observation" and mask.any():
            yield f"- {part}: {int(mask.sum())}"
    counts = (~comparison.right & comparison.mistakes["observation"][:, None]).sum(axis=0)
    order = [index for index in np.argsort(-counts, kind="stable").tolist() if counts[index]]
    for index in order[:6]:
        yield f"- {comparison.label(index)}: {counts[index]}"
    if len(order) > 6:
        yield f"- {len(order) - 6} more components"
    if len(taken := actions_taken(comparison)) > 1:
        pairs = [(name, int((rows & comparison.wrong).sum()), rows) for name, rows in taken]
        listed = [f"{name}: {count} of {int(rows.sum())}" for name, count, rows in pairs if count]
        yield f"- by action: {', '.join(listed)}"


def _zones(values: np.ndarray, known: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield regions relative to the shown values: beyond them, at one value, or in a third."""
    low, high = float(known.min()), float(known.max())
    yield f"above all shown values (at most {high:.4g})", values > high
    yield f"below all shown values (at least {low:.4g})", values < low
    kinds = np.unique(known)
    if len(kinds) <= 10:  # few values are named one by one
        yield "has a value that is not shown", ~np.isin(values, kinds)
        yield from ((f"is {kind:g}", values == kind) for kind in kinds.tolist())
        return
    first, second = low + (high - low) / 3, high - (high - low) / 3
    bounds = f"of {low:.4g} to {high:.4g}"
    yield f"in the lowest third, below {first:.4g} ({bounds})", values < first
    yield f"in the highest third, above {second:.4g} ({bounds})", values > second
    middle = (values >= first) & (values <= second)
    yield f"in the middle third, {first:.4g} to {second:.4g} ({bounds})", middle
