"""The card of an exported environment: what it is, how right it is, and how it came to be."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cwm_cli import __version__
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation import Score
from cwm_cli.export.names import Names
from cwm_cli.export.publishing import MARK, template
from cwm_cli.export.world import World
from cwm_cli.runs.report import money, share
from cwm_cli.runs.searches import SearchRun
from cwm_cli.search.contracts import Node, total
from cwm_cli.text import clean

COLUMNS = ("accuracy", "exact", "floor", "normalised")
EXPLAINED = """
A row scores the mean of its parts right: observation, reward, terminated. `exact` is the share of rows right in every part, `floor` what "nothing changes, the most common reward, never terminated" gets on the same rows, `normalised` is (accuracy - floor) / (1 - floor). The search saw the train rows only. Each row was asked on its own: over many steps errors add up.
"""  # noqa: E501


class Findings(NamedTuple):
    """What a run came to: its nodes, the best of them, and what was written when it was over."""

    nodes: list[Node]
    best: Node
    result: Mapping[str, Any] | None

    @property
    def scores(self) -> dict[str, Score]:
        """The scores on train and held-out rows, as far as they are known."""
        parts = {name: (self.result or {}).get(name) for name in ("train", "test")}
        return {name: Score.model_validate(part) for name, part in parts.items() if part}


def card(run: SearchRun, dataset: Dataset, names: Names, world: World, findings: Findings) -> str:
    """Write the README of an exported environment."""
    limit = world.max_episode_steps
    return template("README.md").substitute(
        names._asdict(),
        environment=clean(run.config.env),
        author=_code(run.config.model) if run.config.model else "a program, not by a person",
        starts=len(world.data["starts"]),
        limit=f"It is truncated after {limit} steps." if limit else "No time limit is known.",
        valid=_VALID if dataset.has_valid_actions else "",
        scores=_scores(run, findings),
        facts="\n".join(f"| {name} | {value} |" for name, value in _facts(run, dataset, findings)),
        version=__version__,
        mark=MARK,
    )


_VALID = " `info` names the actions that are valid next: `valid_actions`, and `action_mask`."


def _scores(run: SearchRun, findings: Findings) -> str:
    """Compare the scores on train and held-out rows, or say what is known so far."""
    if not findings.scores:
        so_far = f"Right so far on train rows: {findings.best.verdict.score:.3f}."
        return f"The search was not over when this was written. {so_far} Held-out rows: not scored."
    columns = [*COLUMNS, *(["paper"] if run.config.metric == "paper" else [])]
    titles = {"train": "train", "test": "held-out"}
    lines = [
        f"| {' | '.join(['', *columns, 'transitions'])} |",
        "|---" + "|---:" * (len(columns) + 1) + "|",
    ]
    for part, score in findings.scores.items():
        shares = [share(getattr(score, name)) for name in columns]
        lines.append(f"| {' | '.join([titles[part], *shares, f'{score.transitions:,}'])} |")
    return "\n".join(lines) + "\n" + EXPLAINED.rstrip()


def _facts(run: SearchRun, dataset: Dataset, findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield how a program came to be."""
    config, header = run.config, run.header
    spent = total([node.usage for node in findings.nodes])
    versions = ", ".join(f"{name} {number}" for name, number in header.versions.items())
    train = len(dataset.train)
    yield "environment", _code(config.env)
    yield "its arguments", _code(json.dumps(config.env_args)) if config.env_args else "none"
    yield "transitions", f"{train:,} train, {len(dataset) - train:,} held-out"
    yield "their digest", _code(config.dataset)
    yield "metric", config.metric
    yield "strategy", _code(config.strategy)
    yield "answers", _code(config.model or f"the backend {config.backend}")
    yield "modules admitted", ", ".join(map(_code, config.tools)) or "none but the usual"
    yield "seed", str(config.seed)
    yield "completions", f"{len(findings.nodes)}{'' if findings.result else ', so far'}"
    yield "tokens", f"{spent.tokens:,}"
    yield "cost", money(spent.cost)
    yield "started", clean(header.created)
    yield "versions", clean(versions)


def _code(text: str) -> str:
    """Write foreign text as code, which no table and no page takes for anything else."""
    return f"`{clean(text).replace('`', ' ').replace('|', '¦')}`"
