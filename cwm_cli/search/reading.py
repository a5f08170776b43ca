"""Find the program in the text of a completion."""

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, starmap
from typing import NamedTuple

FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})(?P<label>[^`\n]*)")
STRING_MARKS = ('"""', "'''")
MAX_NESTED = 16
"""How many fences may be within a string before the first of them closes the block after all."""


NAMES = "think|thinking|thought|reasoning|seed:think"
OPENS = re.compile(rf"^[ \t]*(?:<(?P<tag>{NAMES})>|(?P<mark>\[THINK\]))", re.MULTILINE)
CLOSES = re.compile(rf"^[ \t]*(?:</(?:{NAMES})>|\[/THINK\])[ \t]*$", re.MULTILINE)


MOST_THOUGHTS = 64
"""How many times in an answer somebody thinks aloud: no model is known to do so more than a few."""


class Spoken(NamedTuple):
    """What a completion says when it is done with thinking, and whether it is."""

    text: str
    done: bool = True


def without_thinking(text: str) -> Spoken:
    """Leave out what a model thought aloud, between marks such as `<think>` and `</think>`.

    The first mark may be missing, as some chat templates open the thoughts themselves. Thoughts
    that nothing ends go to the end of the text; only at its start are they taken for that.
    """
    before = ""
    for _ in range(MOST_THOUGHTS):
        opening, closing = OPENS.search(text), CLOSES.search(text)
        if closing and not (opening and opening.start() < closing.start()):
            before, text = "", text[closing.end() :].lstrip("\n")
            continue
        if opening is None:
            break
        mark = "[/THINK]" if opening["mark"] else f"</{opening['tag']}>"
        said, (_, ended, after) = text[: opening.start()], text[opening.end() :].partition(mark)
        if not ended:
            if (before + said).strip():
                break
            return Spoken("", done=False)
        before += said if said.strip() else ""
        text = after.lstrip("\n")
    return Spoken(before + text)


def blocks(text: str) -> Iterator[str]:
    """Yield the contents of the fenced blocks, the last of which may be unclosed."""
    lines = text.split("\n")
    start = 0
    for number, opening in _fences(lines):
        if number >= start:
            end = _closing(lines, number, opening)
            yield _content(lines, number, end, opening)
            start = end + 1


def unfenced(text: str) -> Iterator[str]:
    """Yield the text outside blocks that may be a program: all of it, or what ends at a fence."""
    lines = text.split("\n")
    first = next(_fences(lines), None)
    if first is None:
        yield text
    elif "".join(lines[: first[0]]).strip():
        yield text
        yield "\n".join(lines[: first[0]])


def _fences(lines: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the numbers and parts of the lines that open or close a block."""
    for number, line in enumerate(lines):
        if ("```" in line or "~~~" in line) and (fence := FENCE.fullmatch(line)):
            yield number, fence


def _closing(lines: list[str], start: int, opening: re.Match[str]) -> int:
    """Return the line that closes a block: the first fence that is not within a string."""
    mark = opening["mark"]
    close = re.compile(rf"[ \t]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*")
    marked = (n for n in range(start + 1, len(lines)) if mark in lines[n])
    closing = (n for n in marked if close.fullmatch(lines[n]))
    ends = list(islice(closing, MAX_NESTED))
    for end in ends:
        content = "\n".join(lines[start + 1 : end])
        if all(content.count(quotes) % 2 == 0 for quotes in STRING_MARKS):
            return end
    return ends[0] if ends else len(lines)


def _content(lines: list[str], start: int, end: int, opening: re.Match[str]) -> str:
    """Return the lines of a block without the indentation of its fence."""
    return "\n".join(line.removeprefix(opening["indent"]) for line in lines[start + 1 : end])


INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060"))
TOP_LEVEL = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)
HEADER = re.compile(r"[ \t]*(?:async[ \t]+def|def|class)[ \t]+\w")
WORLD_MODEL = re.compile(r"^class[ \t]+Environment\b", re.MULTILINE)
BLANK_START = re.compile(r"\A(?:[ \t]*\n)+")
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
INTERFACE = {"set_state", "step"}
MAX_OVERLAP = 20
"""How many of the last lines of a prefix a block may repeat before it continues them."""

PARSED = "<completion>"
warnings.filterwarnings("ignore", module=PARSED)  # "\d" in a program is not this program's matter


class Candidate(NamedTuple):
    """A text that may be the program; `whole` unless the prefix had to be put in front."""

    text: str
    whole: bool


def extract_program(text: str, prefix: str = "", *, begun: bool = False) -> str:
    """Return the program that a completion gives, or "" when it gives none.

    Programs stand in fenced blocks, or are the whole text. One that only
    continues the lines of `prefix` gets them in front; one that repeats them,
    or begins anew, is taken as it is. Where the answer was `begun` for it, it may go
    on in a block that it only closes. What a model thought aloud is no part of it.
    """
    text = without_thinking(text).text
    if begun and _goes_on(text):
        text = f"```python\n{text}"
    prefix = _clean(prefix)
    prefix = prefix.removesuffix("\n") + "\n" if prefix.strip() else ""
    candidates = list(_candidates(_clean(text), prefix))
    return _trim(_dedented(_best(candidates).text)) if candidates else ""


def _goes_on(text: str) -> bool:
    """Whether a text has no first fence, or one that closes a block and opens none."""
    fences = list(_fences(text.split("\n")))
    return not fences or (not fences[0][1]["label"].strip() and len(fences) % 2 == 1)


def _candidates(text: str, prefix: str) -> Iterator[Candidate]:
    """Yield what may be the program, in the order of the text."""
    fenced = [block for block in blocks(text) if block.strip()]
    yield from _assembled(fenced, prefix)
    for bare in unfenced(text):
        candidate = _complete(bare, prefix)
        if _is_code(candidate, prefix):
            yield candidate
    for block in fenced:
        yield _complete(block, prefix)


def _assembled(fenced: list[str], prefix: str) -> Iterator[Candidate]:
    """Yield the world model that was explained piece by piece, if the blocks make one up."""
    if len(fenced) > 1:
        parts = _complete("\n".join(fenced), prefix)
        if len(WORLD_MODEL.findall(parts.text)) == 1 and _read(parts.text).world_model:
            yield parts


def _clean(text: str) -> str:
    """Normalise line ends; drop what no program needs and no JSON can hold."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return re.sub(r"\r\n?", "\n", text).translate(INVISIBLE)


def _trim(text: str) -> str:
    """End a text with one line end and begin it with a line that is not blank."""
    text = BLANK_START.sub("", text.rstrip() + "\n")
    return text if text.strip() else ""


def _complete(block: str, prefix: str) -> Candidate:
    """Put the prefix in front of a block that only continues it."""
    alone = _dedented(block)
    if not prefix or _repeats(block, prefix) or _repeats(alone, prefix):
        return Candidate(alone, whole=True)
    plain, lines = prefix + block, block.split("\n")
    overlap = _overlap(prefix, lines)
    shorter = prefix + "\n".join(lines[overlap:])
    if any(map(HEADER.match, lines[:overlap])):
        return Candidate(shorter, whole=False)
    names = set(TOP_LEVEL.findall(alone))
    if names & set(TOP_LEVEL.findall(prefix)):
        return Candidate(alone, whole=True)
    repeats = overlap and not _read(plain).parses and _read(shorter).parses
    joined = shorter if repeats else plain
    if names and not _read(joined).parses and _read(alone).defines:
        return Candidate(alone, whole=True)
    return Candidate(joined, whole=False)


def _dedented(block: str) -> str:
    """Return a block without common indentation, if only that makes a program of it."""
    if not block[:1].isspace() or _read(block).parses:
        return block
    dedented = textwrap.dedent(block)
    return dedented if _read(dedented).parses else block


def _repeats(block: str, prefix: str) -> bool:
    """Whether a block begins with the lines of the prefix, but for blanks."""
    lines = _solid(block)
    return all(line == next(lines, None) for line in _solid(prefix))


def _solid(text: str) -> Iterator[str]:
    """Yield the lines that are not blank, without trailing spaces."""
    return (line.rstrip() for line in text.split("\n") if line.strip())


def _overlap(prefix: str, lines: list[str]) -> int:
    """Return how many lines of a block repeat the last lines of the prefix, but for blanks."""
    known = list(_solid(prefix))[-MAX_OVERLAP:]
    solid = [(n, line.rstrip()) for n, line in enumerate(lines, 1) if line.strip()][:MAX_OVERLAP]
    for count in range(min(len(known), len(solid)), 0, -1):
        if known[-count:] == [line for _, line in solid[:count]]:
            return solid[count - 1][0]
    return 0


def _best(candidates: list[Candidate]) -> Candidate:
    """Return the candidate that is most of a program; one alone need not be parsed."""
    ranks = starmap(_rank, enumerate(candidates))
    return candidates[0] if len(candidates) == 1 else max(zip(ranks, candidates, strict=True))[1]


def _rank(index: int, candidate: Candidate) -> tuple[int, int, int]:
    """Order candidates by how much of a program they are.

    A complete world model comes first, the latest of several being the
    corrected one; then the longest of what begins one, even if it was cut;
    then the longest of what defines something, of what runs, and of the rest.
    """
    facts = _read(candidate.text)
    if facts.world_model:
        return 4, candidate.whole, index
    tier = 3 if WORLD_MODEL.search(candidate.text) else 2 if facts.defines else int(facts.acts)
    return tier, len(_trim(candidate.text)), index


def _is_code(candidate: Candidate, prefix: str) -> bool:
    """Whether text that no fence marks as a program is one, beyond the prefix."""
    known = 0 if candidate.whole else prefix.count("\n")
    return _read(candidate.text).parses and _code_until(candidate.text) > known


class Facts(NamedTuple):
    """What is known of a text read as Python."""

    parses: bool = False
    world_model: bool = False
    defines: bool = False
    acts: bool = False


@lru_cache(maxsize=32)
def _read(text: str) -> Facts:
    """Parse a text, and say what it is."""
    try:
        tree = ast.parse(text, PARSED)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Facts()
    return Facts(
        parses=True,
        world_model=any(map(_is_world_model, tree.body)),
        defines=any(isinstance(node, DEFINITIONS) for node in tree.body),
        acts=any(map(_acts, tree.body)),
    )


def _code_until(program: str) -> int:
    """Return the last line of a program that is surely code."""
    nodes = ast.walk(ast.parse(program, PARSED))
    statements = (node for node in nodes if isinstance(node, ast.stmt))
    return max((node.lineno for node in statements if _is_surely_code(node)), default=0)


def _is_world_model(statement: ast.stmt) -> bool:
    """Whether a statement defines a world model with the methods that it needs."""
    if not isinstance(statement, ast.ClassDef) or statement.name != "Environment":
        return False
    methods = [part for part in statement.body if isinstance(part, ast.FunctionDef)]
    return {method.name for method in methods if any(map(_acts, method.body))} >= INTERFACE


def _acts(statement: ast.stmt) -> bool:
    """Whether a statement is more than a name, a number or a placeholder."""
    if isinstance(statement, ast.Expr):
        return any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return not isinstance(statement, ast.Pass)


def _is_surely_code(statement: ast.stmt) -> bool:
    """Whether nobody would write a statement as prose: `Answer: yes` parses, too."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None
    if isinstance(statement, (*DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AugAssign)):
        return True
    return statement.col_offset > 0 and _acts(statement)
