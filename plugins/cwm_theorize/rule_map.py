"""A map of the rules of a run: similar texts are near each other (extra `plots`).

A point is a set of rules, placed by TF-IDF weights of its words and their first two principal
components. Colours show the phase, and a line joins the best rules of successive phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cwm_cli.errors import install_command
from cwm_cli.runs.files import RowsAdded
from cwm_cli.runs.nodes import SearchRecord
from cwm_cli.runs.report import ChartLine, LineChart, Section
from cwm_cli.search.contracts import Strategy
from cwm_cli.text import percent

MAP = "Map of the rules"
"""Title of the section."""


class AcceptedRules(NamedTuple):
    """Rules that the strategy accepted, and the phase of their first acceptance."""

    rules: str
    phase: int


def accepted_rules(events: Iterable[object], strategy: Strategy) -> list[AcceptedRules]:
    """Return the accepted proposals of a journal, each text once.

    A strategy accepts a proposal if it builds on it afterwards. For a strategy without this
    distinction, such as `best-of`, all scored proposals count.

    Args:
        events: Lines of the journal.
        strategy: The strategy of the run, in its initial state. It is updated.
    """
    found: dict[str, int] = {}
    phase = 0
    for event in events:
        if isinstance(event, RowsAdded):
            phase = event.number
        elif isinstance(event, SearchRecord):
            node = event.node
            strategy.update(node)
            keeps = node.id in strategy.held() if strategy.accepted is not None else True
            if node.asked and keeps and not node.verdict.is_bug:
                found.setdefault(node.program, phase)
    return [AcceptedRules(*each) for each in found.items()]


def rule_map(accepted: Sequence[AcceptedRules], best: Sequence[str]) -> Section | None:
    """Return the section of a page with the map; None for fewer than three different rules.

    Without scikit-learn the section is a note with the command that installs it.

    Args:
        accepted: The accepted rules.
        best: Best rules at the end of each phase; "" for none.
    """
    phases = {each.rules: each.phase for each in accepted}
    for number, rules in enumerate(best, 1):
        if rules:
            phases.setdefault(rules, number)
    if len(phases) < 3:
        return None
    if find_spec("sklearn") is None:
        words = f"The map needs scikit-learn: {install_command('cwm-cli[plots]')}"
        return Section("notes", MAP, {"lines": [words]})
    places, shares = _places(list(phases))
    at = dict(zip(phases, places.tolist(), strict=True))
    lines = [
        ChartLine.of(
            "best rules by phase",
            (at[rules] for rules in best if rules),
            tone="quiet",
            tips=[_tip(number, rules) for number, rules in enumerate(best, 1) if rules],
        )
    ]
    for tone, (first, last) in enumerate(_groups(max(phases.values()))):
        own = [rules for rules, phase in phases.items() if first <= phase <= last]
        if own:
            name = f"phase {first}" if first == last else f"phases {first} to {last}"
            tips = [_tip(phases[rules], rules) for rules in own]
            points = (at[rules] for rules in own)
            lines.append(ChartLine.of(name, points, loose=True, tone=tone, tips=tips))
    x_label, y_label = (
        f"{place} component, {percent(share)} of the variance"
        for place, share in zip(("first", "second"), shares, strict=True)
    )
    about = (
        "A point is an accepted set of rules, in the colour of its first phase. Rules with similar "
        "words are near each other (TF-IDF, then PCA). The line joins the best rules of successive "
        "phases."
    )
    return Section("chart", MAP, LineChart(x_label, y_label, lines, cloud=True).data(), about)


def _places(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return a point (texts, 2) for each text, and the explained variance of both axes."""
    from sklearn.decomposition import PCA
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = r"[^\s.,:;]+|\S"  # also one letter or one mark, so that no text is without words
    weights = TfidfVectorizer(token_pattern=words).fit_transform(texts).toarray()
    if weights.shape[1] < 2:
        weights = np.hstack([weights, np.zeros_like(weights)])
    reduced = PCA(2, svd_solver="full").fit(weights)
    return reduced.transform(weights), np.nan_to_num(reduced.explained_variance_ratio_)


def _groups(last: int) -> list[tuple[int, int]]:
    """Divide the phases from 1 to `last` into groups of equal length, first and last of each."""
    # Number of colours of the page. More phases share a colour with their neighbours.
    max_colours = 6
    ends = np.unique(np.linspace(0, last, min(last, max_colours) + 1).round().astype(int)).tolist()
    return [(before + 1, end) for before, end in pairwise(ends)]


def _tip(phase: int, rules: str) -> str:
    words = f"phase {phase}: {rules}"
    max_tip_length = 400  # maximum number of characters of the rules in a label
    return words if len(words) <= max_tip_length else f"{words[: max_tip_length - 1]}…"
