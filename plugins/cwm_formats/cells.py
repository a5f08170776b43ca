"""Types of the columns of a table, inferred from their cells: numbers, booleans and labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cwm_formats.tables import Cells

TypeOfCells = Literal["real", "whole", "boolean", "label", "text", "blank"]

TRUE_WORDS = frozenset({"true", "yes", "on", "1", "1.0", "t", "y"})
FALSE_WORDS = frozenset({"false", "no", "off", "0", "0.0", "f", "n"})

MISSING_WORDS = frozenset({"", "nan", "na", "n/a", "#n/a", "null", "?"})
"""Cells without a value in a column of texts; "none" and "-" may be labels."""

USUAL_SHARE = 0.8
"""A column has the type of at least this share of its cells; other cells are bad cells."""

MAX_LABEL_LENGTH = 60
"""Longer cells are no labels."""

_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.A | re.I)
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
_GROUP_MARK = re.compile(r"(?<=\d)['\u2019\u00a0\u202f ](?=\d{3}(?!\d))")
_WITH_UNIT = re.compile(
    r"(?P<sign>[+-]?)(?P<before>[$€£¥]?)\s*(?P<number>[+-]?[\d.,'\u2019\u00a0\u202f ]*\d\.?)"
    r"\s*(?P<after>(?:%|‰|°|[^\W\d_]|[$€£¥])[^\s\d]{0,11}\d?)?"
)
"""A number with a currency before it, or a unit after it."""


@dataclass(frozen=True)
class TypedColumn:
    """A column of a table as numbers.

    Attributes:
        name: Name of the column.
        kind: Type of most of its cells.
        values: A number per row, NaN for a missing or bad cell; all NaN for free text.
        labels: Texts of the numbers from 0, for booleans and labels.
        unit: The unit that the cells carry, such as "kW".
    """

    name: str
    kind: TypeOfCells
    values: np.ndarray
    labels: tuple[str, ...] = ()
    unit: str = ""

    @property
    def is_constant(self) -> bool:
        """Whether all cells that have a value have the same one."""
        known = self.values[~np.isnan(self.values)]
        return len(known) > 0 and bool((known == known[0]).all())

    @property
    def resolution(self) -> float:
        """The rounding unit of numbers, such as 0.001; 0 if they are not rounded."""
        return 0.0 if self.labels else rounding_unit(self.values)


def rounding_unit(values: np.ndarray) -> float:
    """Return the rounding unit of numbers, a power of ten of at most 1, or 0 for unrounded ones."""
    known = values[np.isfinite(values)]
    max_decimals = 9  # numbers with more decimals are read as unrounded
    for decimals in range(max_decimals + 1):
        # the spacing of floats limits how exactly a decimal fraction is stored
        tolerance = 1e-12 + 4 * np.spacing(np.abs(known))
        if (np.abs(known - np.round(known, decimals)) <= tolerance).all():
            return float(f"1e-{decimals}")
    return 0.0


def has_decimal_commas(columns: Mapping[str, Cells], *, semicolons: bool) -> bool:
    """Return whether the numbers of a table have a comma for the point.

    Args:
        columns: The cells.
        semicolons: Whether semicolons separate them, as in countries with decimal commas.
    """
    points, commas = 0, 0
    texts = [cells for cells in columns.values() if not isinstance(cells, np.ndarray)]
    if not any("," in cell for cells in texts for cell in cells):
        return False
    for cells in texts:
        for cell in cells:
            text = cell.strip()
            if len(text) > MAX_LABEL_LENGTH or "," not in text:
                points += len(text) <= MAX_LABEL_LENGTH and bool(re.fullmatch(r"-?\d+\.\d+", text))
            elif re.fullmatch(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+", text):
                # "0,123" and "1,25" are decimal fractions, "1,250" may be grouped
                commas += semicolons or not _GROUPED.fullmatch(text) or text.lstrip("+-")[0] == "0"
    return commas > points


def read_column(name: str, cells: Cells, *, comma: bool = False) -> TypedColumn:
    """Return a column as numbers, in the type of most of its cells.

    Args:
        name: Name of the column.
        cells: Texts, or an array with a type.
        comma: Whether numbers have a comma for the point.
    """
    if isinstance(cells, np.ndarray):
        return _read_array(name, cells)
    texts = [cell.strip() for cell in cells]
    present = [text for text in texts if text.lower() not in MISSING_WORDS]
    if not present:
        return TypedColumn(name, "blank", np.full(len(texts), np.nan))
    boolean = _booleans(name, texts, present)
    if boolean is not None:
        return boolean
    values, unit = _numbers(texts, comma=comma)
    if np.isfinite(values).sum() >= USUAL_SHARE * len(present):
        return TypedColumn(name, _number_kind(values), values, unit=unit)
    return _labels(name, texts, present)


def _read_array(name: str, cells: np.ndarray) -> TypedColumn:
    if cells.dtype.kind == "b":
        return TypedColumn(name, "boolean", cells.astype(np.float64), ("false", "true"))
    values = cells.astype(np.float64)
    values[~_are_usual(values)] = np.nan
    if np.isnan(values).all():
        return TypedColumn(name, "blank", values)
    return TypedColumn(name, _number_kind(values), values)


def _are_usual(values: np.ndarray) -> np.ndarray:
    """Return which numbers are finite and neither huge nor tiny, as in damaged cells."""
    with np.errstate(invalid="ignore"):
        size = np.abs(values)
        # larger numbers, and those closer to 0 than its inverse, are read as damaged cells
        max_number = 1e30
        usual: np.ndarray = (size <= max_number) & ((size >= 1 / max_number) | (size == 0))
    return usual


def _number_kind(values: np.ndarray) -> TypeOfCells:
    known = values[np.isfinite(values)]
    is_whole = (known == np.rint(known)).all() and (np.abs(known) < 2**53).all()
    return "whole" if is_whole else "real"


def _booleans(name: str, texts: Sequence[str], present: Sequence[str]) -> TypedColumn | None:
    """Return a column of words for true and false, None for other cells and for numbers only."""
    lower = [text.lower() for text in texts]
    words = Counter(word for word in lower if word in TRUE_WORDS or word in FALSE_WORDS)
    numeric = sum(words[word] for word in ("0", "1", "0.0", "1.0"))
    count = sum(words.values())
    if count < USUAL_SHARE * len(present) or numeric >= USUAL_SHARE * len(present) > count - 1:
        return None
    if numeric == count:
        return None
    values = np.array(
        [1.0 if word in TRUE_WORDS else 0.0 if word in FALSE_WORDS else np.nan for word in lower]
    )
    labels = ("false", "true")
    false, true = ([word for word in words if word in kind] for kind in (FALSE_WORDS, TRUE_WORDS))
    if len(false) == len(true) == 1:
        labels = (false[0], true[0])
    return TypedColumn(name, "boolean", values, labels)


def _numbers(texts: Sequence[str], *, comma: bool) -> tuple[np.ndarray, str]:
    """Return the numbers of cells and their usual unit; NaN for cells with another unit."""
    if "" not in texts and re.fullmatch(r"[0-9.eE+-]+", "".join(texts)):
        try:
            values = np.array(texts, np.float64)  # fifty times as fast as cell by cell
        except ValueError:
            pass
        else:
            values[~_are_usual(values)] = np.nan
            return values, ""
    values = np.full(len(texts), np.nan)
    units: list[str | None] = [None] * len(texts)
    for row, text in enumerate(texts):
        number, unit = _number(text, comma=comma)
        if number is not None:
            values[row], units[row] = number, unit
    usual_size = _are_usual(values)
    units = [unit if usual else None for unit, usual in zip(units, usual_size, strict=True)]
    values[~usual_size] = np.nan
    counts = Counter(unit for unit in units if unit is not None)
    if not counts:
        return values, ""
    usual = counts.most_common(1)[0][0]
    # a number without a unit among numbers with one has the same unit
    others = [unit is not None and unit not in (usual, "") for unit in units]
    values[others] = np.nan
    return values, usual


def _number(text: str, *, comma: bool) -> tuple[float | None, str]:
    """Return the number and the unit of a cell, None if it has no number."""
    if len(text) > MAX_LABEL_LENGTH:
        return None, ""
    if _PLAIN.fullmatch(text):
        return float(text), ""
    found = _WITH_UNIT.fullmatch(text)
    if found is None:
        number = text.replace(",", ".") if comma else text  # 1,5e-3
        return float(number) if _PLAIN.fullmatch(number) else None, ""
    number = _GROUP_MARK.sub("", found["number"])
    if comma:
        if re.fullmatch(r"[+-]?\d{1,3}(\.\d{3})*,\d*", number):
            number = number.replace(".", "")
        number = number.replace(",", ".")
    elif _GROUPED.fullmatch(number):
        number = number.replace(",", "")
    number = found["sign"] + number
    if not _PLAIN.fullmatch(number) or (found["before"] and found["after"]):
        return None, ""
    return float(number), found["before"] or found["after"] or ""


def _labels(name: str, texts: Sequence[str], present: Sequence[str]) -> TypedColumn:
    """Return a column of few texts as numbers by their order, or one of free text."""
    usual = [text for text in present if _is_label(text)]
    labels = tuple(sorted(set(usual)))
    max_labels = 30  # a column with more different texts is free text, such as remarks
    few = len(labels) <= min(max_labels, max(2, len(present) // 2))
    if not few or len(usual) < USUAL_SHARE * len(present):
        return TypedColumn(name, "text", np.full(len(texts), np.nan))
    numbers = {label: float(number) for number, label in enumerate(labels)}
    values = np.array([numbers.get(text, np.nan) for text in texts])
    return TypedColumn(name, "label", values, labels)


def _is_label(text: str) -> bool:
    return (
        len(text) <= MAX_LABEL_LENGTH
        and text.isprintable()
        and "\ufffd" not in text
        and text.lower() not in MISSING_WORDS
    )


def far_outside(values: np.ndarray) -> list[int]:
    """Return the rows with numbers far outside all others, the farthest first."""
    known = values[np.isfinite(values)]
    if len(known) < 20:
        return []
    low, middle, high = np.quantile(known, [0.01, 0.5, 0.99]).tolist()
    distance = np.where(np.isfinite(values), np.abs(values - middle), 0.0)
    # ten times the range of 98 % of the values: usual heavy tails do not reach this far
    far = np.flatnonzero(distance > 10 * (high - low)) if high > low else np.array([], np.int64)
    order: list[int] = far[np.argsort(-distance[far], kind="stable")].tolist()
    return order


def shown(cell: object) -> str:
    """Return a cell for a message, cut to 30 characters."""
    text = " ".join(str(cell).split())
    return repr(text if len(text) <= 30 else f"{text[:29]}…")
