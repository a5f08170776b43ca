"""Names for the variables of a finished program, from what the environment's description says.

Names are given to a program that is written already, so that nothing that is
predicted can depend on them.
"""

import ast
import builtins
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

LONGEST = 32
_VARIABLE = re.compile(r"\bx(\d+)(?!\d)")
_READ = re.compile(r"^ +(\w+) = observation\[(\d+)\]$", re.MULTILINE)
_ANGLE = re.compile(r"\b(\w+) = np\.arctan2\(observation\[(\d+)\], observation\[(\d+)\]\)")
_PREPOSITIONS = "of|along|on|in|at|from|to|with|around|about|between|for|by|per"
_SMALL = {"the", "a", "an", "its", "is", "and"}
_WAVES = re.compile(r"\b(cosine|sine|cos|sin)\b( of\b)?", re.IGNORECASE)


def renamed(program: str, documented: Sequence[str]) -> str:
    """Give variables the names of their components; all of them or, when they clash, none."""
    named = {int(number) for number in _VARIABLE.findall(program)}
    names = {f"x{n}": identifier(documented[n]) for n in sorted(named) if n < len(documented)}
    for angle, sine, cosine in _ANGLE.findall(program):
        if max(int(sine), int(cosine)) < len(documented):
            both = [identifier(_WAVES.sub("", documented[int(n)])) for n in (sine, cosine)]
            names[angle] = both[0] if both[0] == both[1] else ""
    names = {old: new for old, new in names.items() if new}
    chosen = set(names.values())
    free = len(chosen) == len(names) and not chosen & _names_in(program)
    return _replaced(program, names) if free else program


def unnamed(program: str) -> str:
    """Undo `renamed`: give variables the names that they are found under."""
    names = {name: f"x{number}" for name, number in _READ.findall(program)}
    angles = [angle for angle, _, _ in _ANGLE.findall(program)]
    names |= {angle: f"angle{number}" for number, angle in enumerate(angles)}
    return _replaced(program, {old: new for old, new in names.items() if old != new})


def _names_in(program: str) -> set[str]:
    """Return the names that a program uses for anything."""
    nodes = list(ast.walk(ast.parse(program)))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return arguments | {node.id for node in nodes if isinstance(node, ast.Name)}


def _replaced(program: str, names: Mapping[str, str]) -> str:
    """Replace names of variables, of their next values and of the constants that belong to them."""
    if not names:
        return program
    constants = {old.upper(): new.upper() for old, new in names.items()}
    either = "|".join(sorted(names, key=len, reverse=True))
    variable = rf"(?<![\w\"'.])({either})(?=_next\b|_chosen\b|_case_|\b)"
    program = re.sub(variable, lambda m: names[m[1]], program)
    part = rf"(?:(?<=_)|\b)({either.upper()})(?=_|\b)"
    renamed_parts = partial(re.sub, part, lambda m: constants[m[1]])
    return re.sub(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*", lambda m: renamed_parts(m[0]), program)


def identifier(text: str) -> str:
    """Turn a description such as "velocity of the cart along x" into `cart_velocity`."""
    plain = re.sub(r"\(.*?\)|\[.*?\]|\*\*|`|\$", " ", text.replace("\\", " ")).lower()
    phrases = re.split(rf"\b(?:{_PREPOSITIONS})\b", plain)
    words = [list(_words(phrase)) for phrase in phrases]
    words = [phrase for phrase in words if phrase]
    if not words:
        return ""
    chosen = "_".join([*(words[1] if len(words) > 1 else []), *words[0]])
    usable = chosen.isidentifier() and len(chosen) <= LONGEST and chosen.isascii()
    reserved = keyword.iskeyword(chosen) or chosen in dir(builtins)
    return chosen if usable and not reserved else ""


def _words(phrase: str) -> Iterator[str]:
    """Yield the words that say something."""
    for word in re.findall(r"[a-z0-9]+", phrase):
        if word not in _SMALL:
            yield word
