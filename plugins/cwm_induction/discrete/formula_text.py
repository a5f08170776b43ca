"""The text of rewards that are sums."""

from collections.abc import Callable

from cwm_induction.discrete.conditions import broken
from cwm_induction.discrete.formulas import Formula, Term
from cwm_induction.discrete.wording import part_of_action, picked

DENOMINATORS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 20, 25, 32, 40, 50, 64, 100, 1000, 10000)


def formula_lines(
    formula: Formula, start: str, now: Callable[[int], str], after: Callable[[int], str]
) -> list[str]:
    """Write an assignment to the reward; `now` and `after` name factors before and after a step."""
    groups: dict[tuple[int, float], str] = {}
    for term, weight in zip(formula.terms, formula.weights, strict=True):
        known = (term.action, -weight) in groups
        key = (term.action, -weight if known else weight)
        text = _term(term, now, after)
        if key in groups:
            groups[key] += f" {'-' if known else '+'} {text}"
        else:
            groups[key] = text
    total = start
    for (action, weight), text in groups.items():
        sign = "-" if weight < 0 else "+"
        part = _product(abs(weight), text)
        if action >= 0:
            part = f"(action == {action})" + (f" * {part}" if part != "1" else "")
        total = f"{total} {sign} {part}" if total else f"-{part}" if weight < 0 else part
    return broken("reward = ", total)


def number(value: float) -> str:
    """Write a number shortly, as a fraction where that is exact."""
    for denominator in DENOMINATORS:
        whole = round(value * denominator)
        if whole and abs(whole / denominator - value) < 1e-8:
            plain = repr(whole / denominator)
            return plain if len(plain) < 8 else f"{whole} / {denominator}"
    return repr(value)


def _product(weight: float, text: str) -> str:
    """Write a weight times a sum."""
    if text == "1":
        return number(weight)
    inner = f"({text})" if " + " in text or " - " in text else text
    return inner if weight == 1 else f"{number(weight)} * {inner}"


def _term(term: Term, now: Callable[[int], str], after: Callable[[int], str]) -> str:
    """Write what a term counts."""
    plain = {"one": "1", "moved": "(not unchanged)"}
    if term.kind == "part":
        return f"({part_of_action(term.flags, term.factor)})"
    if term.kind == "pick":
        return picked([now(cell) for cell in term.flags], now(term.factor))
    if term.kind in plain or term.flags:
        return plain.get(term.kind, term.kind)
    if term.kind == "far":
        return f"abs({after(term.factor)} - {now(term.factor)})"
    return (now if term.kind == "old" else after)(term.factor)
