"""Finish the text of a program: rename variables, add a remark, and break long lines.

Names come from the environment's description. They replace the names of a finished program, so
predictions cannot depend on them. Long lines are broken before operators and after commas.
"""

import ast
import builtins
import keyword
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

MAX_NAME_LENGTH = 32
"""Maximum number of characters of a name; a variable with a longer one keeps its number."""

LINE_WIDTH = 96
"""Maximum number of characters of a line."""

DOCSTRING_WIDTH = 92
"""Maximum number of characters of a docstring line, without its indentation."""

BREAKS = ((", ",), (" or ",), (" and ",), (" + ", " - "))
"""An expression is broken after commas, or before operators of increasing precedence."""

_VARIABLE = re.compile(r"\bx(\d+)(?!\d)")
_READ = re.compile(r"^ +(\w+) = observation\[(\d+)\]$", re.MULTILINE)
_ANGLE = re.compile(r"\b(\w+) = np\.arctan2\(observation\[(\d+)\], observation\[(\d+)\]\)")
_PREPOSITIONS = "of|along|on|in|at|from|to|with|around|about|between|for|by|per"
_SMALL = {"the", "a", "an", "its", "is", "and"}
_WAVES = re.compile(r"\b(cosine|sine|cos|sin)\b( of\b)?", re.IGNORECASE)
_REMARK = re.compile(r'\n\n    It predicts .*?\n    """', re.DOTALL)


def renamed(program: str, documented: Sequence[str]) -> str:
    """Rename variables after their documented components; if names clash, rename none."""
    named = {int(number) for number in _VARIABLE.findall(program)}
    names = {f"x{n}": identifier(documented[n]) for n in sorted(named) if n < len(documented)}
    for angle, sine, cosine in _ANGLE.findall(program):
        if max(int(sine), int(cosine)) < len(documented):
            both = [identifier(_WAVES.sub("", documented[int(n)])) for n in (sine, cosine)]
            names[angle] = both[0] if both[0] == both[1] else ""
    names = {old: new for old, new in names.items() if new}
    nodes, chosen = list(ast.walk(ast.parse(program))), set(names.values())
    used = {node.arg for node in nodes if isinstance(node, ast.arg)}
    used |= {node.id for node in nodes if isinstance(node, ast.Name)}
    free = len(chosen) == len(names) and not chosen & used
    return _replaced(program, names) if free else program


def unnamed(program: str) -> str:
    """Undo `renamed`: restore the numbered names of variables and angles."""
    names = {name: f"x{number}" for name, number in _READ.findall(program)}
    angles = [angle for angle, _, _ in _ANGLE.findall(program)]
    names |= {angle: f"angle{number}" for number, angle in enumerate(angles)}
    return _replaced(program, {old: new for old, new in names.items() if old != new})


def _replaced(program: str, names: Mapping[str, str]) -> str:
    """Replace names of variables, of their next values, and of their constants."""
    if not names:
        return program
    constants = {old.upper(): new.upper() for old, new in names.items()}
    either = "|".join(sorted(names, key=len, reverse=True))
    whole = "next|chosen|by_case|chances|draw"
    suffix = rf"_(?:{whole})\b|_case_|_velocity|_to_|_leaving|_arriving|\b"
    variable = rf"(?:(?<![\w\"'.])|(?<=_to_)|(?<=self\.))({either})(?={suffix})"
    program = re.sub(variable, lambda m: names[m[1]], program)
    part = rf"(?:(?<=_)|\b)({either.upper()})(?=_|\b)"
    renamed_parts = partial(re.sub, part, lambda m: constants[m[1]])
    return re.sub(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*", lambda m: renamed_parts(m[0]), program)


def identifier(text: str) -> str:
    """Turn a description such as "velocity of the cart along x" into `cart_velocity`."""
    plain = re.sub(r"\(.*?\)|\[.*?\]|\*\*|`|\$", " ", text.replace("\\", " ")).lower()
    phrases = re.split(rf"\b(?:{_PREPOSITIONS})\b", plain)
    split = [re.findall(r"[a-z0-9]+", phrase) for phrase in phrases]
    words = [[word for word in phrase if word not in _SMALL] for phrase in split]
    words = [phrase for phrase in words if phrase]
    if not words:
        return ""
    chosen = "_".join([*(words[1] if len(words) > 1 else []), *words[0]])
    usable = chosen.isidentifier() and len(chosen) <= MAX_NAME_LENGTH and chosen.isascii()
    reserved = keyword.iskeyword(chosen) or chosen in dir(builtins)
    return chosen if usable and not reserved else ""


def remarked(program: str, remark: str) -> str:
    """Add a paragraph to the docstring of a program's first class, and rewrap long lines."""
    tree = ast.parse(program)
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    docstring = owner.body[0]
    if not (isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant)):
        return program
    lines = program.splitlines(keepends=True)
    start, end = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
    text = "".join(lines[start:end]).rstrip()
    body = text.removesuffix('"""').rstrip()
    paragraphs = [_refilled(paragraph) for paragraph in [*body.split("\n\n"), f"    {remark}"]]
    lines[start:end] = ["\n\n".join(paragraphs), '\n    """\n']
    return "".join(lines)


def _refilled(paragraph: str) -> str:
    """Rewrap a paragraph if it has a line that is too long."""
    if max(map(len, paragraph.splitlines()), default=0) <= DOCSTRING_WIDTH + 4:
        return paragraph
    return textwrap.indent(textwrap.fill(" ".join(paragraph.split()), DOCSTRING_WIDTH), "    ")


def unremarked(program: str) -> str:
    """Undo `remarked`, except for the position of the closing quotes of the docstring."""
    return _REMARK.sub('\n    """', program, count=1)


def broken(program: str) -> str:
    """Break long statements over several lines without changing the program's syntax tree."""
    text = "\n".join(part for line in program.splitlines() for part in _broken(line)) + "\n"
    return text if _same(text, program) else program


def _same(text: str, program: str) -> bool:
    """Return whether a text has the same syntax tree as the program."""
    try:
        return ast.dump(ast.parse(text)) == ast.dump(ast.parse(program))
    except (SyntaxError, ValueError):
        return False


def _broken(line: str) -> Iterator[str]:
    """Yield the parts of a line, or the line itself if it is short or cannot be broken."""
    indent = line[: len(line) - len(line.lstrip())]
    lead, expression, end = _statement(line.strip())
    if len(line) <= LINE_WIDTH or not expression or "#" in expression:
        yield line
        return
    text = f"({expression})" if _parts(expression) else expression
    first, *others = _unwrapped(text, indent, "")
    *between, last = [indent + lead + first.lstrip(), *others]
    yield from between
    yield last + end


def _statement(text: str) -> tuple[str, str, str]:
    """Split a statement into its prefix, its expression and its suffix; all empty if unknown."""
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


def _parts(text: str) -> list[str]:
    """Split an expression at its commas or its loosest operators; return [] if it has none."""
    splits = (list(split_outside(text, marks)) for marks in BREAKS)
    return next((parts for parts in splits if len(parts) > 1), [])


def _wrapped(text: str, indent: str, comma: str = "") -> Iterator[str]:
    """Yield the lines of an expression inside brackets, followed by `comma`."""
    parts = _parts(text)
    if len(indent) + len(text) < LINE_WIDTH:
        yield indent + text + comma
    elif not parts:
        yield from _unwrapped(text, indent, comma)
    elif " ".join(parts) != text:  # commas were removed
        for item in parts:
            yield from _wrapped(item, indent, ",")
    else:
        *lines, last = _filled(parts, LINE_WIDTH - len(indent) - 1)
        for line in lines:
            yield from _wrapped(line, indent)
        yield from _wrapped(last, indent, comma)


def _unwrapped(text: str, indent: str, comma: str) -> Iterator[str]:
    """Yield a call or a display, with the content of its last brackets on separate lines."""
    start = _opening(text)
    if start is None:
        yield indent + text + comma
        return
    yield indent + text[: start + 1]
    yield from _wrapped(text[start + 1 : -1], indent + "    ")
    yield indent + text[-1] + comma


def _opening(text: str) -> int | None:
    """Return the position of the bracket that the last character closes.

    Return None if the last character closes no bracket.
    """
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] in ")]}") - (text[place] in "([{")
        if depth == 0:
            return place if place < len(text) - 1 else None
    return None


def split_outside(text: str, marks: tuple[str, ...]) -> Iterator[str]:
    """Yield the parts between marks outside brackets; an operator begins the next part."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        mark = next((mark for mark in marks if text.startswith(mark, place)), None)
        if mark and depth == 0:
            yield text[start:place]
            start = place + (2 if mark == ", " else 1)
    yield text[start:]


def _filled(parts: list[str], width: int) -> Iterator[str]:
    """Join parts into lines that are as long as the width allows."""
    line = ""
    for part in parts:
        if line and len(line) + 1 + len(part) > width:
            yield line
            line = part
        else:
            line = f"{line} {part}" if line else part
    yield line
