"""Sections and tables on a search: scores, tokens, cost, time, models and moves."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from cwm_cli.evaluation import Score
from cwm_cli.runs.report import ChartLine, Grid, LineChart, Section, cumulative, rounded, table
from cwm_cli.search.contracts import Node, Verdict, total
from cwm_cli.search.models import ModelUse, model_gains, model_uses
from cwm_cli.text import UNKNOWN, cached_words, money, share, share_with_error

COMPLETIONS = "completions"
SCORE = "score"

FAILING, MADE, ASKED = "fails, or no answer", "refined", "runs"
"""Kinds of nodes in the score chart: failing or missing programs, programs that needed no
completion, and all others.
"""


class BestSoFar(NamedTuple):
    """The best score over completions, with its standard errors if they are known."""

    completions: list[int]
    scores: list[float]
    errors: Sequence[float] = ()

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> "BestSoFar":
        """Return the curve; a node without a completion counts with the completion before it."""
        found: dict[int, Verdict] = {}
        best = Verdict(score=0.0)
        for asked, node in zip(_asked(nodes), nodes, strict=True):
            best = max(best, node.verdict, key=lambda verdict: verdict.score)
            found[asked] = best
        is_uncertain = any(verdict.stderr for verdict in found.values())
        errors = [verdict.stderr or 0.0 for verdict in found.values()] if is_uncertain else ()
        return cls([*found], [verdict.score for verdict in found.values()], errors)


def _asked(nodes: Sequence[Node]) -> Iterator[int]:
    """Yield the number of completions up to each node."""
    return accumulate(int(node.asked) for node in nodes)


def score_curves(nodes: Sequence[Node]) -> Iterator[Section]:
    """Yield the chart of the scores of a search with more than one node."""
    if len(nodes) > 1:
        best = max(nodes, key=lambda node: node.verdict.score)
        at = next(n for n, node in zip(_asked(nodes), nodes, strict=True) if node is best)
        times = "one completion" if at == 1 else f"{at} completions"
        about = f"Best score {share(best.verdict.score)} after {times} (node {best.id})."
        about += " The band is one standard error." * bool(best.verdict.stderr)
        yield Section("chart", "Score over completions", score_curve(nodes), about)


def spending_sections(nodes: Sequence[Node]) -> Iterator[Section]:
    """Yield the tokens, cost and time of a search, and tables of its models and moves."""
    if sum(node.asked for node in nodes) == 1:
        usage = total([node.usage for node in nodes])
        words = cached_words(usage.cached_tokens, usage.reasoning_tokens)
        rows = [
            ["tokens", f"{usage.tokens:,}{words}" if words else usage.tokens],
            ["cost", money(usage.cost)],
            ["seconds", rounded(usage.seconds)],
        ]
        yield Section("facts", "Tokens, cost and time", {"rows": rows})
    elif spent := _spent(nodes):
        about = "Cumulative over the completions."
        yield Section("panels", "Tokens, cost and time", {"sections": spent}, about)
    if len(uses := model_uses(nodes)) > 1:
        yield Section("table", "Models", _models(uses), ABOUT_MODELS)
    if len({node.action for node in nodes}) > 1:
        yield Section("table", "Moves", _moves(nodes))


ABOUT_MODELS = (
    "New bests: how often a completion of the model, or its refinement, raised the best score so "
    "far. Gain: by how much in total."
)


def models_grid(uses: Sequence[ModelUse]) -> Grid:
    """Return a table with completions, tokens, cost and gains of each model of a search."""
    cells = [
        [
            use.model,
            f"{use.completions:,}",
            f"{use.tokens:,}",
            money(use.cost),
            f"{use.improved:,}",
            share(use.gain),
            share(use.mean_score),
        ]
        for use in uses
    ]
    heads = ["model", "completions", "tokens", "cost", "new bests", "gain", "mean score"]
    return Grid("", heads, cells)


def _models(uses: Sequence[ModelUse]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {
        "model": [use.model for use in uses],
        "completions": [use.completions for use in uses],
        "failing": [use.failing for use in uses],
        "mean score": [use.mean_score for use in uses],
        "best score": [use.best_score for use in uses],
        "new bests": [use.improved for use in uses],
        "gain": [use.gain for use in uses],
        "tokens": [use.tokens for use in uses],
        "cost": [money(use.cost) for use in uses],
        "seconds": [use.seconds for use in uses],
    }
    return table([*columns], [list(row) for row in zip(*columns.values(), strict=True)])


def score_curve(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the chart with the score of every node, and with the best score so far."""
    dots = defaultdict[str, list[tuple[int, Node]]](list)
    for asked, node in zip(_asked(nodes), nodes, strict=True):
        kind = FAILING if node.verdict.is_bug else ASKED if node.asked else MADE
        dots[kind].append((asked, node))
    tones: dict[str, int | str] = {ASKED: "quiet", MADE: 2, FAILING: "bad"}
    clouds = [
        ChartLine(
            kind,
            [asked for asked, _ in dots[kind]],
            [node.verdict.score for _, node in dots[kind]],
            loose=True,
            tone=tone,
            tips=[
                f"node {node.id}: {node.action}, {share(node.verdict.score)}"
                for _, node in dots[kind]
            ],
        )
        for kind, tone in tones.items()
        if dots[kind]
    ]
    best = BestSoFar.of(nodes)
    pairs = list(zip(best.scores, best.errors, strict=False))
    line = ChartLine(
        "best so far",
        best.completions,
        best.scores,
        [score - error for score, error in pairs] or None,
        [score + error for score, error in pairs] or None,
        tone=0,
    )
    floor = max(nodes, key=lambda node: node.verdict.score).verdict.floor
    return LineChart(
        COMPLETIONS,
        SCORE,
        [*clouds, line],
        staircase=True,
        y_range=(0.0, 1.0),
        rules={"baseline: nothing changes": floor or None},
    ).data()


def _spent(nodes: Sequence[Node]) -> list[list[Any]]:
    """Return charts of cumulative tokens, cost and seconds; charts with zeros only are left out."""
    asked = [node for node in nodes if node.asked]
    places = list(range(len(asked) + 1))
    found = list[list[Any]]()
    if any(node.usage.tokens for node in asked):
        token_counts = {"prompts": "prompt_tokens", "completions": "completion_tokens"}
        lines = [
            ChartLine(words, places, cumulative(getattr(node.usage, name) for node in asked))
            for words, name in token_counts.items()
        ]
        found.append(["Tokens", "chart", LineChart(COMPLETIONS, "tokens", lines).data()])
    models = dict.fromkeys(node.model for node in asked)
    costs = [node.usage.cost for node in asked]
    if any(costs):
        found.append(["Cost", "chart", _cost(costs)])
    if len(models) > 1 and all(cost is not None for cost in costs) and any(costs):
        lines = [
            ChartLine(
                model,
                places,
                cumulative((n.usage.cost or 0.0) * (n.model == model) for n in asked),
            )
            for model in models
        ]
        chart = LineChart(COMPLETIONS, "US dollars", lines, staircase=True)
        found.append(["Cost of each model", "chart", chart.data()])
    if len(models) > 1:
        lines = [
            ChartLine(model, [*gains], [*accumulate(gains.values())])
            for model, gains in model_gains(nodes).items()
        ]
        chart = LineChart(COMPLETIONS, "gain of the best score", lines, staircase=True)
        found.append(["Gains of each model", "chart", chart.data()])
    if any(node.usage.seconds for node in asked):
        line = ChartLine("", places, cumulative(node.usage.seconds for node in asked))
        found.append(
            ["Time of completions", "chart", LineChart(COMPLETIONS, "seconds", [line]).data()]
        )
    return found


def _cost(costs: Sequence[float | None]) -> dict[str, Any]:
    """Return the chart of the cost, up to the first completion with unknown cost."""
    unknown = sum(cost is None for cost in costs)
    known = next((n for n, cost in enumerate(costs) if cost is None), len(costs))
    sums: list[float | None] = [*cumulative(cost or 0.0 for cost in costs[:known])]
    sums += [None] * (len(costs) - known)
    note = ""
    if unknown:
        where = f"the total is known up to completion {known}" if known else "there is no total"
        note = f"The cost of {unknown:,} of {len(costs):,} completions is unknown: {where}."
    line = ChartLine("", list(range(len(costs) + 1)), sums)
    return LineChart(COMPLETIONS, "US dollars", [line], note=note).data()


def _moves(nodes: Sequence[Node]) -> dict[str, Any]:
    kinds = Counter(node.action for node in nodes)
    best, rows = 0.0, list[list[Any]]()
    gains = Counter[str]()
    for node in nodes:
        gains[node.action] += node.verdict.score > best
        best = max(best, node.verdict.score)
    for action, count in kinds.most_common():
        alike = [node for node in nodes if node.action == action]
        scores = [node.verdict.score for node in alike]
        failed = sum(node.verdict.is_bug for node in alike)
        mean = sum(scores) / count
        tokens = sum(node.usage.tokens for node in alike)
        rows.append([action, count, failed, mean, max(scores), gains[action], tokens])
    heads = ["move", "nodes", "failing", "mean score", "best score", "new bests", "tokens"]
    return table(heads, rows)


TIMES = "\N{MULTIPLICATION SIGN}"

LEGEND = (
    "The mark is the baseline: a prediction that nothing changes, with the most common reward "
    f"and no end. The accuracy is the sum over the parts of the share right {TIMES} the weight."
)


def score_parts(
    scores: Mapping[str, Score], floors: Mapping[str, Score] | None = None
) -> dict[str, Any]:
    """Return bars of the parts of scores, a column for each score, with baselines as marks.

    `floors` are the scores of the baseline prediction; without them only the accuracy has a
    mark. Each part shows its weighted share of right rows, times its weight.
    """
    known = floors or {}
    known_parts = [(known[title].weighed if title in known else None) or {} for title in scores]
    weighted_parts = {
        "observation": "observation",
        "reward": "reward",
        "terminated": "end of an episode",
        "valid_actions": "valid actions",
    }
    rows = [_bar("accuracy", scores, lambda score: score.accuracy, lambda score: score.floor)]
    if any(score.skill is not None for score in scores.values()):
        words = [share_with_error(score.skill, score.skill_stderr) for score in scores.values()]
        rows.insert(0, _bar("skill", scores, lambda score: score.skill) | {"words": words})
    if any(score.explained is not None for score in scores.values()):
        rows.insert(0, _bar("explained", scores, lambda score: score.explained))
    for row in rows:
        row["strong"] = True
    for part, name in weighted_parts.items():
        weighed = [(score.weighed or {}).get(part) for score in scores.values()]
        if any(weighed):
            marks = [parts[part].right if part in parts else None for parts in known_parts]
            words = [
                f"{share(each.right)} {TIMES} {share(each.weight)}" if each else ""
                for each in weighed
            ]
            values = [each.right if each else None for each in weighed]
            rows.append({"name": name, "values": values, "marks": marks, "words": words})
    marks = [known[title].exact if title in known else None for title in scores]
    rows.append(_bar("all parts", scores, lambda score: score.exact) | {"marks": marks})
    return {
        "heads": [f"{name}, {score.transitions:,} rows" for name, score in scores.items()],
        "rows": rows,
        "mark": "baseline",
        "legend": LEGEND,
    }


def _bar(
    name: str,
    scores: Mapping[str, Score],
    value: Callable[[Score], float | None],
    mark: Callable[[Score], float | None] = lambda score: None,
) -> dict[str, Any]:
    values = [value(score) for score in scores.values()]
    marks = [mark(score) for score in scores.values()]
    return {"name": name, "values": values, "marks": marks, "words": [share(v) for v in values]}


def _accuracy_terms(scores: Mapping[str, Score | None]) -> list[list[str]]:
    """Return the terms of the accuracy: share of right rows times weight, for each part."""
    weighed = [(score.weighed if score else None) or {} for score in scores.values()]
    names = dict.fromkeys(name for parts in weighed for name in parts)
    return [
        [
            f"{'+' if place else '='} {name.replace('_', ' ')} {TIMES} weight",
            *(
                f"{share(parts[name].right)} {TIMES} {share(parts[name].weight)}"
                if name in parts
                else UNKNOWN
                for parts in weighed
            ),
        ]
        for place, name in enumerate(names)
    ]


SKILLS = {
    "proper": "row score",
    "log_likelihood": "= log-likelihood",
    "energy": "- energy score",
    "proper_floor": "baseline row score",
    "proper_ceiling": "best row score",
    "log_evidence": "episode log-likelihood",
    "impossible": "rows of probability 0",
    "uncertain": "rows with chance",
    "uniformity": "spread test (p)",
}


def _skill_rows(scores: Mapping[str, Score | None]) -> list[list[str]]:
    """Return the skill and its terms; no rows if the metric computes no skill."""

    def written(score: Score | None, name: str) -> str:
        value = getattr(score, name, None)
        if value is None:
            return UNKNOWN
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"

    def skill(score: Score | None) -> str:
        if score is None or score.skill is None:
            return UNKNOWN
        return share_with_error(score.skill, score.skill_stderr)

    if not any(score and score.skill is not None for score in scores.values()):
        return []
    known = [
        name
        for name in SKILLS
        if any(getattr(score, name, None) is not None for score in scores.values())
    ]
    briers = dict.fromkeys(
        name for score in scores.values() for name in (score.brier if score else None) or ()
    )
    return [
        ["skill", *map(skill, scores.values())],
        *([SKILLS[name], *(written(score, name) for score in scores.values())] for name in known),
        *(
            [
                f"Brier of {name}",
                *(share(((s and s.brier) or {}).get(name)) for s in scores.values()),
            ]
            for name in briers
        ),
    ]


def score_grid(scores: Mapping[str, Score | None]) -> Grid:
    """Return a table with a row for each part and a column for each score.

    Unknown values are dashes.
    """
    names = {
        "accuracy": "accuracy",
        "observation": "observation",
        "reward": "reward",
        "terminated": "terminated",
        "exact": "all parts",
        "floor": "baseline accuracy",
        "normalised": "normalised accuracy",
    }
    others = {
        "valid_actions": "valid actions",
        "paper": "published score",
        "explained": "explained",
        "explained_ceiling": "explained at the noise level",
    }
    for name, words in others.items():
        if any(getattr(score, name, None) is not None for score in scores.values()):
            names[name] = words
    cells = [
        [words, *(share(getattr(score, name, None)) for score in scores.values())]
        for name, words in names.items()
    ]
    cells[1:1] = _accuracy_terms(scores)
    cells[:0] = _skill_rows(scores)
    counts = (UNKNOWN if score is None else f"{score.transitions:,}" for score in scores.values())
    return Grid("", ["", *scores], [*cells, ["transitions", *counts]])
