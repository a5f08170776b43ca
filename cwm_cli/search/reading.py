"""Extract the program from the text of a completion."""

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, starmap
from typing import NamedTuple

FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})(?P<label>[^`\n]*)")

NAMES = "think|thinking|thought|reasoning|seed:think"
OPENS = re.compile(rf"^[ \t]*(?:<(?P<tag>{NAMES})>|(?P<mark>\[THINK\]))", re.MULTILINE)
CLOSES = re.compile(rf"^[ \t]*(?:</(?:{NAMES})>|\[/THINK\])[ \t]*$", re.MULTILINE)


class VisibleText(NamedTuple):
    """The text of a completion without its reasoning, and whether the reasoning has ended."""

    text: str
    done: bool = True


def without_thinking(text: str) -> VisibleText:
    """Remove the reasoning of a model, between marks such as `<think>` and `</think>`.

    The first opening mark may be missing, as some chat templates add it to the prompt. Reasoning
    at the start of the text without a closing mark extends to the end of the text. An opening
    mark after other text without a closing mark is ordinary text.
    """
    before = ""
    for _ in range(64):  # far more blocks than any known model writes
        opening, closing = OPENS.search(text), CLOSES.search(text)
        if closing and not (opening and opening.start() < closing.start()):
            before, text = "", text[closing.end() :].lstrip("\n")
            continue
        if opening is None:
            break
        mark = "[/THINK]" if opening["mark"] else f"</{opening['tag']}>"
        prior, (_, ended, after) = text[: opening.start()], text[opening.end() :].partition(mark)
        if not ended:
            if (before + prior).strip():
                break
            return VisibleText("", done=False)
        before += prior if prior.strip() else ""
        text = after.lstrip("\n")
    return VisibleText(before + text)


def blocks(text: str) -> Iterator[str]:
    """Yield the contents of the fenced blocks; the last block may be unclosed."""
    lines = text.split("\n")
    start = 0
    for number, opening in _fences(lines):
        if number >= start:
            end = _closing(lines, number, opening)
            # A fence in a list item is indented, and so is each line of its block.
            indent = opening["indent"]
            yield "\n".join(line.removeprefix(indent) for line in lines[number + 1 : end])
            start = end + 1


def fenced(program: str) -> str:
    """Return a program as a fenced block; the fence is longer than all backticks in it."""
    fence = "`" * (max(map(len, re.findall("`{3,}", program)), default=2) + 1)
    return f"{fence}python\n{program.rstrip()}\n{fence}\n"


def unfenced(text: str) -> Iterator[str]:
    """Yield texts that may be an unfenced program: the whole text, and its part before a fence."""
    lines = text.split("\n")
    first = next(_fences(lines), None)
    if first is None:
        yield text
    elif "".join(lines[: first[0]]).strip():
        yield text
        yield "\n".join(lines[: first[0]])


def _fences(lines: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the number and the match of each line that opens or closes a block."""
    for number, line in enumerate(lines):
        if ("```" in line or "~~~" in line) and (fence := FENCE.fullmatch(line)):
            yield number, fence


def _closing(lines: list[str], start: int, opening: re.Match[str]) -> int:
    """Return the number of the line that closes a block: the first fence outside strings.

    If the first 16 fences all seem to be inside strings, the first one closes the block.
    """
    mark = opening["mark"]
    close = re.compile(rf"[ \t]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*")
    marked = (n for n in range(start + 1, len(lines)) if mark in lines[n])
    closing = (n for n in marked if close.fullmatch(lines[n]))
    ends = list(islice(closing, 16))
    for end in ends:
        content = "\n".join(lines[start + 1 : end])
        if all(content.count(quotes) % 2 == 0 for quotes in ('"""', "'''")):
            return end
    return ends[0] if ends else len(lines)


INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060"))
TOP_LEVEL = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)
HEADER = re.compile(r"[ \t]*(?:async[ \t]+def|def|class)[ \t]+\w")
WORLD_MODEL = re.compile(r"^class[ \t]+Environment\b", re.MULTILINE)
BLANK_START = re.compile(r"\A(?:[ \t]*\n)+")
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
INTERFACE = {"set_state", "step"}

PARSED = "<completion>"
warnings.filterwarnings("ignore", module=PARSED)  # such as "\d" in the program


class Candidate(NamedTuple):
    """A text that may be the program; `whole` is False if the prefix was added to it."""

    text: str
    whole: bool


def extract_program(text: str, prefix: str = "", *, begun: bool = False) -> str:
    """Return the program in a completion, or "" if there is none.

    Args:
        text: The completion: programs in fenced blocks, or one program without a fence. Reasoning
            is removed.
        prefix: Lines that the program must begin with. They are added to a program that only
            continues them. A program that repeats them, or starts over, is returned unchanged.
        begun: Whether the prompt already opened a fenced block, which the completion only closes.

    Returns:
        The program, which ends with a newline.
    """
    text = without_thinking(text).text
    if begun:
        # Without a fence, or with a first fence that closes a block, the text continues a block.
        fences = list(_fences(text.split("\n")))
        if not fences or (not fences[0][1]["label"].strip() and len(fences) % 2 == 1):
            text = f"```python\n{text}"
    prefix = _clean(prefix)
    prefix = prefix.removesuffix("\n") + "\n" if prefix.strip() else ""
    candidates = list(_candidates(_clean(text), prefix))
    return _trim(_dedented(_best(candidates).text)) if candidates else ""


def _candidates(text: str, prefix: str) -> Iterator[Candidate]:
    """Yield the candidates in the order of the text."""
    fenced = [block for block in blocks(text) if block.strip()]
    if len(fenced) > 1:
        # The blocks together may be one world model that was explained part by part.
        parts = _complete("\n".join(fenced), prefix)
        if len(WORLD_MODEL.findall(parts.text)) == 1 and _parse(parts.text).world_model:
            yield parts
    for bare in unfenced(text):
        candidate = _complete(bare, prefix)
        # An unfenced text is a candidate if it is a program that extends beyond the prefix.
        known = 0 if candidate.whole else prefix.count("\n")
        if _parse(candidate.text).parses and _code_until(candidate.text) > known:
            yield candidate
    for block in fenced:
        yield _complete(block, prefix)


def _clean(text: str) -> str:
    """Normalise line ends; remove invisible characters and surrogates that JSON cannot encode."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return re.sub(r"\r\n?", "\n", text).translate(INVISIBLE)


def _trim(text: str) -> str:
    """Remove leading blank lines, and end the text with one newline."""
    text = BLANK_START.sub("", text.rstrip() + "\n")
    return text if text.strip() else ""


def _complete(block: str, prefix: str) -> Candidate:
    """Add the prefix to a block that only continues it."""
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
    repeats = overlap and not _parse(plain).parses and _parse(shorter).parses
    joined = shorter if repeats else plain
    if names and not _parse(joined).parses and _parse(alone).defines:
        return Candidate(alone, whole=True)
    return Candidate(joined, whole=False)


def _dedented(block: str) -> str:
    """Remove the common indentation of a block, if the block parses only without it."""
    if not block[:1].isspace() or _parse(block).parses:
        return block
    dedented = textwrap.dedent(block)
    return dedented if _parse(dedented).parses else block


def _repeats(block: str, prefix: str) -> bool:
    """Whether a block begins with the lines of the prefix, up to blank lines."""
    lines = _solid(block)
    return all(line == next(lines, None) for line in _solid(prefix))


def _solid(text: str) -> Iterator[str]:
    """Yield the non-blank lines, without trailing spaces."""
    return (line.rstrip() for line in text.split("\n") if line.strip())


def _overlap(prefix: str, lines: list[str]) -> int:
    """Return the number of lines of a block that repeat the last lines of the prefix.

    Blank lines do not count. At most 20 lines are compared.
    """
    known = list(_solid(prefix))[-20:]
    solid = [(n, line.rstrip()) for n, line in enumerate(lines, 1) if line.strip()][:20]
    for count in range(min(len(known), len(solid)), 0, -1):
        if known[-count:] == [line for _, line in solid[:count]]:
            return solid[count - 1][0]
    return 0


def _best(candidates: list[Candidate]) -> Candidate:
    """Return the candidate of the highest rank."""
    ranks = starmap(_rank, enumerate(candidates))
    return candidates[0] if len(candidates) == 1 else max(zip(ranks, candidates, strict=True))[1]


def _rank(index: int, candidate: Candidate) -> tuple[int, int, int]:
    """Return the rank of a candidate, higher is better.

    A complete world model ranks highest; the last of several is the corrected one. The longest
    beginning of a world model follows, even if it was cut off. The longest text with definitions,
    with statements, and of any other kind follow in this order.
    """
    content = _parse(candidate.text)
    if content.world_model:
        return 4, candidate.whole, index
    tier = 3 if WORLD_MODEL.search(candidate.text) else 2 if content.defines else int(content.acts)
    return tier, len(_trim(candidate.text)), index


class Content(NamedTuple):
    """The content of a text as Python: whether it parses, and which statements it has."""

    parses: bool = False
    world_model: bool = False
    defines: bool = False
    acts: bool = False


@lru_cache(maxsize=32)
def _parse(text: str) -> Content:
    try:
        tree = ast.parse(text, PARSED)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Content()
    return Content(
        parses=True,
        world_model=any(map(_is_world_model, tree.body)),
        defines=any(isinstance(node, DEFINITIONS) for node in tree.body),
        acts=any(map(_acts, tree.body)),
    )


def _code_until(program: str) -> int:
    """Return the number of the last line that is certainly code, or 0."""
    nodes = ast.walk(ast.parse(program, PARSED))
    statements = (node for node in nodes if isinstance(node, ast.stmt))
    return max((node.lineno for node in statements if _is_surely_code(node)), default=0)


def _is_world_model(statement: ast.stmt) -> bool:
    """Whether a statement defines the class `Environment` with its required methods."""
    if not isinstance(statement, ast.ClassDef) or statement.name != "Environment":
        return False
    methods = [part for part in statement.body if isinstance(part, ast.FunctionDef)]
    return {method.name for method in methods if any(map(_acts, method.body))} >= INTERFACE


def _acts(statement: ast.stmt) -> bool:
    """Whether a statement is more than a name, a constant or `pass`."""
    if isinstance(statement, ast.Expr):
        return any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return not isinstance(statement, ast.Pass)


def _is_surely_code(statement: ast.stmt) -> bool:
    """Whether a statement cannot be prose; `Answer: yes` parses, too."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None
    if isinstance(statement, (*DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AugAssign)):
        return True
    return statement.col_offset > 0 and _acts(statement)
