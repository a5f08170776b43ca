"""Scores in a sentence: on how many transitions a program is exact, and whether it is solved."""

from collections.abc import Sequence

import numpy as np

from cwm_cli.evaluation.component_scores import ComponentScore
from cwm_cli.evaluation.metric import Score
from cwm_cli.text import percent, share_with_error


def verdict(
    train: Score | None,
    test: Score | None,
    *,
    solved: bool = False,
    finished: bool = False,
    settled: bool = False,
    unverified: Sequence[str] = (),
) -> str:
    """Return in one sentence whether a search solved its environment.

    Args:
        train: Score of the best program on training transitions, None without a program.
        test: Its score on held-out transitions, None without any.
        solved: No transition is wrong, and held-out transitions verify every rare event.
        finished: The search had nothing left to improve on training transitions.
        settled: Nothing improved for long, and the best possible score is unknown.
        unverified: Phrases on rare events that no held-out transition contains. If the search is
            solved, phrases on events that no transition contains: the verdict on an exact program
            is then "Exact on the data" instead of "Solved".
    """
    words, score = score_words(train, test), test or train
    if score is None:
        return "Not solved: no program was written"
    if _measures_noise(train, test):
        return "; ".join([f"{words[0].upper()}{words[1:]}", *unverified])
    if solved:
        if unverified and score.skill is None:
            words = f"Exact on the data: {exact_words(train, test)}"
        else:
            words = f"Solved: {words}"
        return "; ".join([words, *unverified])
    if settled:
        return f"Stopped: no improvement; best possible score unknown; {words}"
    is_wrong = bool((train and train.refuted) or (test and test.refuted))
    if finished and unverified and not is_wrong:
        events = " and ".join(unverified)
        return f"Not verified: {words}, but {events} and in no held-out transition"
    is_open = finished and is_wrong and train is not None and train.skill is None
    rest = "; the training data do not determine the rest" if is_open else ""
    return f"Not solved: {words}{rest}"


def largest_gap(components: Sequence[ComponentScore]) -> str:
    """Name the component with the largest error beyond noise, and what its errors depend on.

    Returns:
        For example "temp_c: RMSE 0.41, noise about 0.3; errors depend on pump", "" if noise
        explains all errors.
    """
    left = [each for each in components if not each.is_explained]
    if not left:
        left = [each for each in components if not each.is_complete]
        if not left:
            return ""
        levels = ", ".join(f"{each.name} to about {_digits(each.filtered or 0)}" for each in left)
        return f"a program with memory can filter the noise of {levels}"
    worst = max(left, key=_open_share)
    words = f"{worst.name}: {_error_words(worst)}"
    if worst.typical is not None and (worst.error or 0) > 1.1 * worst.typical:
        few = f"{worst.outliers} outlier{'s' * (worst.outliers > 1)}"
        words += f"; {_digits(worst.typical)} without {few} in {worst.rows:,} rows"
    if worst.depends_on:
        words += f"; errors depend on {', '.join(worst.depends_on[:3])}"
    return words


def _open_share(score: ComponentScore) -> float:
    """Return the squared error beyond noise, as a share of the squared change."""
    if score.error is None or score.explained is None:
        return np.inf
    noise = (score.noise or 0.0) / score.error if score.error else 1.0
    return (1 - score.explained) * (1 - min(1.0, noise) ** (1 if score.is_label else 2))


def _error_words(score: ComponentScore) -> str:
    """Return the error of a component, with the noise level."""
    if score.error is None:
        return "not a finite number in all rows"
    name = "wrong labels" if score.is_label else "RMSE"
    text = percent if score.is_label else _digits
    # A level that is only due to rounded arithmetic is no noise.
    level = score.noise or 0.0
    noise = f", noise about {text(level)}" if level > 1e-9 * score.error else ""
    return f"{name} {text(score.error)}{noise}"


def _digits(value: float) -> str:
    """Write a number with two digits, or all digits of a large one."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def noise_words(components: Sequence[ComponentScore]) -> str:
    """Return the errors that an explained program leaves, e.g. "all but sensor noise: ..."."""
    text = _digits
    exact = [each.name for each in components if each.exact]
    rounded = [each for each in components if not each.exact and each.is_rounding]
    noisy = [each for each in components if not each.exact and not each.is_rounding]
    if not noisy and not rounded:
        return "all components exactly"
    what = "sensor noise" if any(each.is_sensor for each in noisy) else "noise"
    parts = [
        f"{each.name} {percent(each.error or 0) if each.is_label else text(each.error or 0)} "
        f"(noise {percent(each.noise or 0) if each.is_label else text(each.noise or 0)})"
        for each in noisy
    ]
    parts += [f"{each.name} {text(each.rmse or 0)} (rounded to {each.unit:g})" for each in rounded]
    parts += [f"{', '.join(exact)} exactly"] if exact else []
    return f"all but {what if noisy else 'rounding'}: {', '.join(parts)}"


def score_words(train: Score | None, test: Score | None) -> str:
    """Return the skill, or on how many transitions a program is exact."""
    score = test or train
    if score is None:
        return "no transitions"
    if _measures_noise(train, test):
        return _explained_words(train, test)
    if score.skill is None:
        gap = "" if score.exact == 1 else largest_gap(score.components or ())
        return f"exact on {exact_words(train, test)}{gap and f'; {gap}'}"
    part = "held-out" if test else "training"
    skill = share_with_error(score.skill, score.skill_stderr)
    best = "a certain, correct model" if score.proper_ceiling is None else "true environment"
    return f"{part} skill {skill} (baseline 0, {best} 1)"


def _explained_words(train: Score | None, test: Score | None) -> str:
    """Return the errors of a program on noisy data, and its largest gap beyond noise."""
    score = test or train
    assert score is not None
    skill = ""
    if score.skill is not None:
        skill = f"; skill {share_with_error(score.skill, score.skill_stderr)} (baseline 0)"
    for part, words in ((train, " on training transitions"), (test, " on held-out transitions")):
        measures = () if part is None else part.components or ()
        if not all(each.is_explained for each in measures):
            return f"not all but noise is explained{words}: {largest_gap(measures)}{skill}"
    explained = f"explains {noise_words(score.components or ())}{skill}"
    gaps = (part.open_gap or largest_gap(part.components or ()) for part in (train, test) if part)
    gap = next(filter(None, gaps), "")
    return f"{explained}; {gap}" if gap else explained


def explains_all_but_noise(train: Score | None, test: Score | None) -> bool:
    """Return whether noise explains all errors of a program that is scored up to noise.

    The draws of a program with random outcomes have to be spread like the recorded values, too.
    """
    least_uniformity = 0.01  # p-value below which draws count as badly spread
    scores = [score for score in (train, test) if score is not None and score.transitions]
    return _measures_noise(train, test) and all(
        not score.refuted
        and all(each.is_complete for each in score.components or ())
        and (score.uniformity is None or score.uniformity >= least_uniformity)
        for score in scores
    )


def _measures_noise(train: Score | None, test: Score | None) -> bool:
    """Return whether the program is scored up to noise, and is not exact anyway.

    A skill is so if its ceiling is unknown, but the noise of the components is known.
    """
    score = test or train
    if score is None or not score.components or is_exact(train, test):
        return False
    is_open_skill = score.skill is not None and score.proper_ceiling is None
    return score.explained is not None or is_open_skill


def is_exact(train: Score | None, test: Score | None) -> bool:
    """Return whether every transition is exact."""
    return all(score.exact == 1 for score in (train, test) if score is not None)


def exact_words(train: Score | None, test: Score | None) -> str:
    """Return the number of exact transitions, such as "all 674 training transitions"."""
    named = (("training", train), ("held-out", test))
    scores = {title: score for title, score in named if score is not None and score.transitions}
    all_exact = is_exact(train, test)
    counts = [
        f"{score.transitions:,} {title}"
        if all_exact
        else f"{score.exact * score.transitions:,.0f} of {score.transitions:,} {title}"
        for title, score in scores.items()
    ]
    return f"{'all ' * all_exact}{' and '.join(counts)} transitions"
