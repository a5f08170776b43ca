"""Breaks the long lines of a program where a person would: before operators, after commas."""

import ast
from collections.abc import Iterator

WIDTH = 96
OPERATORS = ((" or ",), (" and ",), (" + ", " - "))
"""Between what an expression may be broken, the weakest bond first."""


def broken(program: str) -> str:
    """Break statements that are longer than a line; the program stays the same."""
    text = "\n".join(part for line in program.splitlines() for part in _broken(line)) + "\n"
    return text if ast.dump(ast.parse(text)) == ast.dump(ast.parse(program)) else program


def _broken(line: str) -> Iterator[str]:
    """Yield the parts of a line, or the line itself if it is short or of another form."""
    indent = line[: len(line) - len(line.lstrip())]
    lead, expression, end = _statement(line.strip())
    if len(line) <= WIDTH or not expression or "#" in expression:
        yield line
        return
    first, *others = _laid(expression, indent, inside=False)
    *between, last = [indent + lead + first.lstrip(), *others]
    yield from between
    yield last + end


def _statement(text: str) -> tuple[str, str, str]:
    """Split a statement into what comes before an expression, the expression, and its end."""
    for word in ("if ", "elif "):
        if text.startswith(word) and text.endswith(":"):
            return word, text[len(word) : -1], ":"
    if text.startswith("return "):
        return "return ", text.removeprefix("return "), ""
    if text.startswith("super()."):
        return "", text, ""
    target, sign, expression = text.partition(" = ")
    plain = bool(sign) and all(part.isidentifier() for part in target.split("."))
    return (f"{target} = ", expression, "") if plain else ("", "", "")


def _laid(text: str, indent: str, *, inside: bool, comma: str = "") -> Iterator[str]:
    """Yield the lines of an expression, `inside` brackets or not, with a comma behind it."""
    if inside and len(indent) + len(text) < WIDTH:
        yield indent + text + comma
        return
    items = list(_split(text, (", ",)))
    splits = (list(_split(text, marks)) for marks in OPERATORS)
    parts = next((split for split in splits if len(split) > 1), [])
    if not inside and (len(items) > 1 or parts):
        yield f"{indent}("
        yield from _laid(text, indent + "    ", inside=True)
        yield f"{indent})"
    elif len(items) > 1:
        for item in items:
            yield from _laid(item, indent, inside=True, comma=",")
    elif parts:
        *lines, last = _filled(parts, WIDTH - len(indent) - 1)
        for line in lines:
            yield from _fitted(line, indent, "")
        yield from _fitted(last, indent, comma)
    else:
        yield from _unwrapped(text, indent, comma)


def _fitted(text: str, indent: str, comma: str) -> Iterator[str]:
    """Yield a line, unwrapped if it is long by itself."""
    if len(indent) + len(text) < WIDTH:
        yield indent + text + comma
    else:
        yield from _unwrapped(text, indent, comma)


def _unwrapped(text: str, indent: str, comma: str) -> Iterator[str]:
    """Yield a call or a display with what is in its last brackets on lines of its own."""
    start = _opening(text)
    if start is None:
        yield indent + text + comma
        return
    yield indent + text[: start + 1]
    yield from _laid(text[start + 1 : -1], indent + "    ", inside=True)
    yield indent + text[-1] + comma


def _opening(text: str) -> int | None:
    """Return where the bracket opens that the last character closes."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] in ")]}") - (text[place] in "([{")
        if depth == 0:
            return place if place < len(text) - 1 else None
    return None


def _split(text: str, marks: tuple[str, ...]) -> Iterator[str]:
    """Yield what stands between marks outside brackets; an operator begins the next part."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        mark = next((mark for mark in marks if text.startswith(mark, place)), None)
        if mark and depth == 0:
            yield text[start:place]
            start = place + (2 if mark == ", " else 1)
    yield text[start:]


def _filled(parts: list[str], width: int) -> Iterator[str]:
    """Put as many parts on each line as there is room for."""
    line = ""
    for part in parts:
        if line and len(line) + 1 + len(part) > width:
            yield line
            line = part
        else:
            line = f"{line} {part}" if line else part
    yield line
