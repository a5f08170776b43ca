"""What a program says about itself."""

from collections.abc import Iterable, Iterator

from cwm_induction.continuous.findings import Findings


def summary(findings: Findings) -> list[str]:
    """Return the paragraphs of the docstring, the first one a sentence on the whole."""
    count = len(findings.samples)
    first = f"A world model induced from {count} transitions alone."
    paragraphs = [" ".join(_changes(findings)), " ".join([_end(findings), _worth(findings)])]
    if findings.capped:
        paragraphs.append("The time allowed ran out: given more, more might be found.")
    return [first, *(paragraph for paragraph in paragraphs if paragraph)]


def _changes(findings: Findings) -> Iterator[str]:
    """Yield sentences on how the variables change."""
    found = findings.dynamics
    exact = [v.name for v in findings.latents.variables if v.name in found.formulas]
    still = [v.name for v in findings.latents.variables if v.name in exact and v.still]
    moving = [name for name in exact if name not in still]
    if moving:
        yield f"Exact equations with few terms were found for {_listed(moving)}."
    if found.mechanics is not None:
        share = f"{100 * found.mechanics.right:.0f} %"
        yield (
            f"{_listed(found.mechanics.names)} move as a jointed mechanism, whose masses and "
            f"forces were fitted through the integrator and predict {share} of the "
            "transitions held back from the fit."
        )
    if found.flow is not None:
        scheme = found.flow.scheme
        parts = "a step" if scheme.parts == 1 else f"{scheme.parts} parts of a step"
        yield f"{_listed(found.flow.names)} follow a vector field over {parts} ({scheme.rule})."
    if found.regimes:
        yield f"Several equations take turns for {_listed(found.regimes)}."
    if found.rough:
        yield f"No exact equation was found for {_listed(found.rough)}: expect errors there."
    if still:
        yield f"{_listed(still)} never changed."


def _end(findings: Findings) -> str:
    """Say what is known about the end of an episode."""
    seen = findings.ending.seen
    if not seen:
        return "No terminal transition was seen, so when an episode ends is not known."
    times = "one terminal transition" if seen == 1 else f"{seen} terminal transitions"
    return f"The rule for the end rests on {times}; other ways to end may exist."


def _worth(findings: Findings) -> str:
    """Say what is known about the reward."""
    reward = findings.reward
    if reward.is_constant and reward.right == 1:
        return "Every reward seen was the same."
    if reward.right > 0.98:
        return "The reward was found exactly."
    return (
        f"The reward is an approximation, right in {100 * reward.right:.0f} % of the transitions."
    )


def _listed(names: Iterable[str]) -> str:
    """Write names as a list in a sentence."""
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last
