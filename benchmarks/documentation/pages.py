"""Pages of the documentation and their code blocks."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

LANGUAGES = ("sh", "python", "text", "json", "toml", "csv")
"""Allowed languages of blocks. Others are errors, because their blocks would never run."""

ATTRIBUTES = {
    "sh": {"no-run", "exit"},
    "python": {"no-run", "file", "exit"},
    "text": {"file", "of", "head", "tail", "loose"},
    "json": {"file", "of", "head", "tail", "loose"},
    "toml": {"file"},
    "csv": {"file"},
}
"""Allowed attributes of the blocks of each language."""

FENCE = re.compile(r"^( *)(`{3,})([^`\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
WHEN = ("quick", "slow", "long")

Outcome = Literal["runs", "writes", "shows", "left"]


class PageError(Exception):
    """A page breaks the conventions of CONTRIBUTING.md."""


@dataclass(frozen=True)
class Block:
    """A fenced block; `shown` is the range of its text in the page, `line` counts from 1."""

    language: str
    attributes: dict[str, str]
    text: str
    line: int
    shown: tuple[int, int]
    indent: str = ""
    follows: bool = False
    """Whether only white space separates the block from the previous one."""

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, with continued lines joined and without comments."""
        joined = re.sub(r"\\\n\s*", " ", self.text)
        return [line for line in joined.splitlines() if line.strip() and line.lstrip()[0] != "#"]


class Step(NamedTuple):
    """A block that runs or writes a file, and the block that shows its output."""

    block: Block
    output: Block | None


@dataclass(frozen=True)
class Page:
    """A page of the documentation, or the README."""

    path: Path
    text: str = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "Page":
        """Read a page."""
        return cls(path, path.read_text(encoding="utf-8"))

    @property
    def name(self) -> str:
        """The path relative to the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def when(self) -> str:
        """The tests that run the page: the entry `run` of its front matter, or slow."""
        front = FRONT_MATTER.match(self.text)
        run = re.search(r"^run: *(\S+)$", front[1], re.MULTILINE) if front else None
        if run and run[1] not in WHEN:
            raise PageError(f"{self.name}: run is one of {', '.join(WHEN)}, not {run[1]}")
        return run[1] if run else "slow"

    def blocks(self) -> list[Block]:
        """Return the fenced blocks in order.

        Raises:
            PageError: A block has an unknown language or attribute.
        """
        found: list[Block] = []
        end = -1
        for match in FENCE.finditer(self.text):
            line = self.text.count("\n", 0, match.start()) + 1
            language, attributes = self._label(match[3].strip(), line)
            follows = bool(found) and not self.text[end : match.start()].strip()
            body, indent = match[4], match[1]
            text = re.sub(f"^{indent}", "", body, flags=re.MULTILINE) if indent else body
            if language == "text" and re.search(r"^\$ ", text, re.MULTILINE):
                raise PageError(f"{self.name}:{line}: a command in a text would never run: use sh")
            found.append(Block(language, attributes, text, line, match.span(4), indent, follows))
            end = match.end()
        return found

    def steps(self) -> list[Step]:
        """Return the blocks that run or write a file, each with the block of its output."""
        blocks = self.blocks()
        steps = []
        for i, block in enumerate(blocks):
            after = blocks[i + 1] if i + 1 < len(blocks) else None
            shows = after is not None and after.follows and is_output(after)
            if is_output(block):
                if "of" in block.attributes:
                    steps.append(Step(block, block))
            elif block.language in ("sh", "python") or "file" in block.attributes:
                steps.append(Step(block, after if shows and runs(block) else None))
        return steps

    def _label(self, label: str, line: int) -> tuple[str, dict[str, str]]:
        language, _, rest = label.partition(" ")
        if language not in LANGUAGES:
            raise PageError(
                f"{self.name}:{line}: a block of {language or 'nothing'!r} would never run: label "
                f"it as one of {', '.join(LANGUAGES)}"
            )
        attributes = {}
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            if name not in ATTRIBUTES[language]:
                known = ", ".join(sorted(ATTRIBUTES[language]))
                raise PageError(f"{self.name}:{line}: {name!r} is not one of {known}")
            attributes[name] = value
        if not attributes.get("no-run", "none"):
            raise PageError(f'{self.name}:{line}: name the reason, such as no-run="installs"')
        return language, attributes


def is_output(block: Block) -> bool:
    """Return whether a block may show the output of a command."""
    return block.language in ("text", "json") and "file" not in block.attributes


def runs(block: Block) -> bool:
    """Return whether a block is run."""
    return block.language in ("sh", "python") and not {"no-run", "file"} & block.attributes.keys()


def pages() -> list[Page]:
    """Return the README and the pages of the documentation, in the order of its navigation."""
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    return [Page.read(path) for path in [ROOT / "README.md", *(DOCS / name for name in listed)]]


def without_attributes(markdown: str) -> str:
    """Return a page for mkdocs: blocks with their language, and with file names as titles."""

    def label(match: re.Match[str]) -> str:
        words = shlex.split(match[3])
        named = [word.removeprefix("file=") for word in words if word.startswith("file=")]
        title = f' title="{named[0]}"' if named else ""
        return f"{match[1]}{match[2]}{words[0] if words else ''}{title}\n"

    return re.sub(r"^( *)(`{3,})([^`\n]+)\n", label, markdown, flags=re.MULTILINE)
