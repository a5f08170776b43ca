"""Scores in a sentence: on how many transitions a program is exact, and whether it is solved."""

from collections.abc import Sequence

from cwm_cli.evaluation.metric import Score
from cwm_cli.text import share_with_error


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
    if train is None and test is None:
        return "Not solved: no program was written"
    words = score_words(train, test)
    if solved:
        score = test or train
        if unverified and score is not None and score.skill is None:
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
    if finished and is_wrong and train is not None and train.skill is None:
        return f"Not solved: {words}; the training data do not determine the rest"
    return f"Not solved: {words}"


def score_words(train: Score | None, test: Score | None) -> str:
    """Return the skill, or on how many transitions a program is exact."""
    score = test or train
    if score is None:
        return "no transitions"
    if score.skill is None:
        return f"exact on {exact_words(train, test)}"
    part = "held-out" if test else "training"
    skill = share_with_error(score.skill, score.skill_stderr)
    return f"{part} skill {skill} (baseline 0, true environment 1)"


def exact_words(train: Score | None, test: Score | None) -> str:
    """Return the number of exact transitions, such as "all 674 training transitions"."""
    named = (("training", train), ("held-out", test))
    scores = {title: score for title, score in named if score is not None and score.transitions}
    is_exact = all(score.exact == 1 for score in scores.values())
    counts = [
        f"{score.transitions:,} {title}"
        if is_exact
        else f"{score.exact * score.transitions:,.0f} of {score.transitions:,} {title}"
        for title, score in scores.items()
    ]
    return f"{'all ' * is_exact}{' and '.join(counts)} transitions"
