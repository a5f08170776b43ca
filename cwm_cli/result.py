"""The base class of the results that public functions return."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from cwm_cli.text import clean

LABELS = {"gaps": "not covered by data", "test": "held-out", "stderr": "standard error"}
"""Labels of keys, if they differ from the key without its underscores."""

MAX_ITEMS = 10
"""A table shows the first items of a longer list, and how many there are."""


class Result:
    """A result that Jupyter shows as a table of its plain data.

    A subclass may name the keys of `as_json` that the table shows, in this order:
    `class PlanResult(Result, shown="mean returns")`. Without names the table shows all keys.
    """

    _shown: tuple[str, ...] = ()

    def __init_subclass__(cls, *, shown: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._shown = tuple(shown.split()) or cls._shown

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data, as `--json` prints it."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        facts = self.as_json()
        return html_tables({key: facts.get(key) for key in self._shown or facts})


def html_tables(facts: Mapping[str, Any]) -> str:
    """Return plain data as HTML tables; empty values and data nested deeper are left out.

    The first table has a row per value. Mappings with the same keys, such as the scores of the
    train and the held-out rows, are the columns of one table. A list of mappings is a table with
    a row per item.
    """
    rows: list[list[str]] = []
    groups: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    tables: list[str] = []
    for key, value in facts.items():
        match value:
            case Mapping():
                groups.setdefault(tuple(value), {})[key] = value
            case [Mapping(), *_]:
                tables.append(_items_table(key, value))
            case _ if cell := _cell(value):
                rows.append([_label(key), cell])
    for keys, group in groups.items():
        cells = ([_label(key), *(_cell(each[key]) for each in group.values())] for key in keys)
        filled = [row for row in cells if any(row[1:])]
        tables.append(_table(filled, heads=["", *map(_label, group)]) if filled else "")
    return (_table(rows) if rows else "") + "".join(tables)


def _items_table(key: str, items: Sequence[Mapping[str, Any]]) -> str:
    keys = [each for each in items[0] if any(_cell(item.get(each)) for item in items)]
    count = f"{_label(key)} ({len(items):,}, first {MAX_ITEMS})"
    return _table(
        [[_cell(item.get(each)) for each in keys] for item in items[:MAX_ITEMS]],
        heads=map(_label, keys),
        caption=count if len(items) > MAX_ITEMS else _label(key),
    )


def _table(rows: Iterable[Sequence[str]], heads: Iterable[str] = (), caption: str = "") -> str:
    """Return a table of escaped cells; the first cell of a row is its head."""
    parts = [f"<caption>{caption}</caption>"] if caption else []
    if heads := list(heads):
        parts.append(f"<thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead>")
    parts.append("<tbody>")
    for head, *cells in rows:
        row = "".join(f'<td style="text-align: left">{cell}</td>' for cell in cells)
        parts.append(f'<tr><th style="text-align: left">{head}</th>{row}</tr>')
    return f"<table>{''.join(parts)}</tbody></table>"


def _label(key: str) -> str:
    return escape(clean(LABELS.get(key, key.replace("_", " "))))


def _cell(value: Any) -> str:
    """Return a value as escaped text, empty for None, an empty text or nested data."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return _number(value)
        case list() | tuple():
            cells = [_cell(item) for item in value[:MAX_ITEMS]]
            more = [f"{len(value) - MAX_ITEMS:,} more"] if len(value) > MAX_ITEMS else []
            texts = any(isinstance(item, str) for item in value)
            return ("<br>" if texts else ", ").join([*filter(None, cells), *more])
        case None | Mapping():
            return ""
        case _:
            return escape(clean(str(value), newlines=True)).replace("\n", "<br>")


def _number(value: float) -> str:
    """Return a number in four digits, or in more if it would look like a whole number."""
    texts = (f"{value:.4g}", f"{value:.9g}", repr(value))
    return next(
        (text for text in texts if float(text).is_integer() == value.is_integer()), texts[-1]
    )
