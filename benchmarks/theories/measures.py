"""Measures of the benchmark of rules: each runs one case with one seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import cwm_cli as cwm
from benchmarks.parts import Figures
from cwm_theorize.comparing import compare_with_program
from cwm_theorize.parts import NamedBackend, TheoryChoices
from cwm_theorize.runs import TheorizingResult, TheoryRun, discovered
from cwm_theorize.scoring import RuleScores

DOOR, PLAYGROUND = "Door-v0", "PlaygroundText-v0"

NAMED_RULES = ("not blue", "not a blue key", "neither green nor large", "always", "never")
"""The five named doors of the publications."""

METHODS: Mapping[str, Mapping[str, Any]] = {
    "metropolis": {},
    "metropolis, corrected": {"hastings": True},
    "metropolis, phase": {"evidence": "phase"},
    "importance": {"method": "importance"},
    "best-of": {"method": "best-of", "evidence": "phase"},
}
"""Search options by name. With `phase`, each phase uses its own evidence only, as published."""

EXPERIMENTERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "O-Random": ("random", {}),
    "O-Hardest": ("oracle", {"experimenter.plan": "hardest"}),
    "O-Curriculum": ("oracle", {"experimenter.plan": "curriculum"}),
    "O-Ideal": ("oracle", {"experimenter.plan": "ideal"}),
    "RL-LogP": ("curiosity", {"experimenter.reward": "ll"}),
    "RL-ALP": ("curiosity", {"experimenter.reward": "alp"}),
    "RL-ALPEXP": ("curiosity", {"experimenter.reward": "alpexp"}),
}
"""Experimenters with their options, by the names of the publication."""

PUBLISHED: Mapping[str, Sequence[float]] = {
    "O-Hardest": (0.01, 0.32, 0.51, 0.73),
    "O-Curriculum": (0.0, 0.42, 0.54, 0.71),
    "O-Random": (0.0, 0.55, 0.74, 0.83),
    "O-Ideal": (0.01, 0.58, 0.71, 0.80),
    "RL-LogP": (0.0, 0.35, 0.58, 0.74),
    "RL-ALP": (0.0, 0.62, 0.77, 0.84),
    "RL-ALPEXP": (0.0, 0.52, 0.66, 0.77),
}
"""Published top-1, -3, -5 and -10 of the best rules of Phi-3-mini (3.8 billion weights)."""

BIG = "big animal grown"
"""The kind of transition that needs the longest plan."""


def theorize(env: str, folder: Path, seed: int, **options: Any) -> TheorizingResult:
    """Find rules in a folder; an interrupted run continues."""
    return cwm.theorize(env, run=folder, seed=seed, data_seed=1000 + seed, **options)


def score_rules(env: str, result: TheorizingResult) -> RuleScores:
    """Score the best rules of a run on its held-out rows, with exact reading of the rules."""
    held_out = TheoryRun.load(result.run).held_out()
    return cwm.score(env, rules=f"{result.rules}\n", dataset=held_out, statistician="symbolic")


def door(statistician: str) -> Callable[[str, int, Path], Figures]:
    """Return a measure that finds the rule of a door in 40 phases.

    Each phase has five transitions and five proposals.
    """

    def measure(case: str, seed: int, folder: Path) -> Figures:
        method, _, rule = case.partition(": ")
        options = METHODS[method]
        result = theorize(
            DOOR, folder, seed, env_args={"rule": rule}, statistician=statistician, **options
        )
        ranks = score_rules(DOOR, result).ranks.all  # exact, also if the tiny model found them
        return {
            "recovered": ranks.top[1] >= 1.0,
            "accuracy": ranks.top[1],
            "held_out": result.phases[-1].held_out_total,
            "scorings": result.scorings,
            "rules": result.rules,
        }

    return measure


def door_table(found: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a line for each method: number of exact rules, accuracy and log-likelihood."""
    yield f"{'method':24s} {'found exactly':>14s} {'accuracy':>9s} {'log-likelihood':>15s}"
    for method in METHODS:
        own = [
            each
            for case, runs in found.items()
            for each in runs
            if case.partition(": ")[0] == method
        ]
        if own:
            exact = f"{sum(each['recovered'] for each in own)} of {len(own)}"
            likely = mean(each["held_out"] for each in own)
            accuracy = mean(each["accuracy"] for each in own)
            yield f"{method:24s} {exact:>14s} {accuracy:9.3f} {likely:15.2f}"


def playground(phases: int) -> Callable[[str, int, Path], Figures]:
    """Return a measure that finds the rules of the playground from data of an experimenter."""

    def measure(case: str, seed: int, folder: Path) -> Figures:
        experimenter, options = EXPERIMENTERS[case]
        result = theorize(
            PLAYGROUND,
            folder,
            seed,
            experimenter=experimenter,
            options=[f"{name}={value}" for name, value in options.items()],
            phases=phases,
        )
        counts, first = discovered(result.phases)
        ranks = score_rules(PLAYGROUND, result).ranks
        return {
            "top": list(ranks.all.top.values()),
            "kinds": {kind: each.top[1] for kind, each in ranks.kinds.items()},
            "kinds3": {kind: each.top[3] for kind, each in ranks.kinds.items()},
            "nll": ranks.all.nll,
            "held_out": [each.held_out_total for each in result.phases],
            "rows": result.phases[-1].rows,
            "found": dict(counts),
            "first": first,
            "seconds": result.seconds,
            "rules": result.rules,
        }

    return measure


def playground_table(found: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a line per experimenter: our accuracy, the published one, kinds, discoveries."""
    yield (
        f"{'':14s} {'top-1':>6s} {'3':>5s} {'5':>5s} {'10':>5s}   {'published':>23s}   "
        f"{'worst kind':>10s} {'nll':>6s}"
    )
    for case, runs in found.items():
        top = [mean(values) for values in zip(*(each["top"] for each in runs), strict=True)]
        ours = " ".join(f"{value:5.2f}" for value in top)
        theirs = " ".join(f"{value:5.2f}" for value in PUBLISHED[case])
        worst = mean(min(each["kinds"].values()) for each in runs)
        likely = mean(each["nll"] for each in runs)
        yield f"{case:14s}  {ours}   {theirs}   {worst:10.2f} {likely:6.3f}"
    yield ""
    kinds = list(next(iter(found.values()))[0]["kinds"]) if found else []
    yield f"{'top-3 by kind':14s} " + " ".join(f"{kind:>12s}" for kind in kinds)
    for case, runs in found.items():
        own = [mean(each["kinds3"][kind] for each in runs) for kind in kinds]
        yield f"{case:14s} " + " ".join(f"{value:12.2f}" for value in own)
    yield ""
    yield f"{'found in 3,600':14s} " + " ".join(f"{kind:>12s}" for kind in kinds) + "  first big"
    for case, runs in found.items():
        if "found" in runs[0]:
            yield (
                f"{case:14s} "
                + " ".join(f"{_rate(runs, kind):12.1f}" for kind in kinds)
                + (f"  {_first_big(runs)}")
            )


def _rate(runs: Sequence[Figures], kind: str) -> float:
    return mean(3600 * each["found"].get(kind, 0) / each["rows"] for each in runs)


def _first_big(runs: Sequence[Figures]) -> str:
    """Return the steps of the first big transformation, or the numbers of rows without one."""
    steps = [each["first"].get(BIG) for each in runs]
    none = [each["rows"] for each, step in zip(runs, steps, strict=True) if step is None]
    words = ", ".join(f"{step:,}" for step in sorted(filter(None, steps)))
    return f"{words}; never in {len(none)} x {min(none):,}" if none else words


COMPARED: Mapping[str, Mapping[str, Any]] = {
    "door, 10 rows": {"env": DOOR, "policy": "random", "episodes": 10},
    "door, 40 rows": {"env": DOOR, "policy": "random", "episodes": 40},
    "playground, 3 episodes": {"env": PLAYGROUND, "policy": "oracle", "episodes": 3},
    "playground, 30 episodes": {"env": PLAYGROUND, "policy": "oracle", "episodes": 30},
}
"""The recordings for rules and programs."""


def compare_with_programs(case: str, seed: int, folder: Path) -> Figures:
    """Find rules, and a program, from the same transitions, without a language model."""
    recording = dict(COMPARED[case])
    options = ["policy.plan=ideal"] if recording["policy"] == "oracle" else []
    file = folder.with_suffix(".npz")
    rows = cwm.collect(
        recording.pop("env"),
        **recording,
        options=options,
        test_episodes=27 if case.startswith("door") else 9,
        min_rows=1,
        seed=seed,
        out=file,
    ).dataset
    symbolic, grammar = (NamedBackend(name) for name in ("symbolic", "grammar"))
    return compare_with_program(
        COMPARED[case]["env"],
        rows,
        parts=TheoryChoices("metropolis", "random", grammar, symbolic),
        folder=folder,
        phases=40,
        proposals=15,
        seed=seed,
    ).as_json()["models"]


def comparison_table(found: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a line for the rules and one for the program of each case."""
    yield (
        f"{'':24s} {'':8s} {'top-1':>6s} {'kinds':>6s} {'exact':>6s} {'nll':>6s} "
        f"{'completions':>11s} {'tokens':>6s} {'seconds':>7s}"
    )
    for case, runs in found.items():
        for name in runs[0]:
            own = [each[name] for each in runs]
            top, kinds = (mean(_top(each, part)) for part in ("all", "mean") for each in [own])
            nll = mean(each["ranks"]["all"]["nll"] for each in own)
            exact = mean(each["exact"] or 0.0 for each in own)
            spent = [
                mean(each[key] for each in own) for key in ("completions", "tokens", "seconds")
            ]
            yield (
                f"{case:24s} {name:8s} {top:6.3f} {kinds:6.3f} {exact:6.3f} {nll:6.3f} "
                f"{spent[0]:11.0f} {spent[1]:6.0f} {spent[2]:7.1f}"
            )


def _top(models: Sequence[Figures], part: str) -> list[float]:
    return [next(iter(each["ranks"][part]["top"].values())) for each in models]
