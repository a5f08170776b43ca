"""A correct program, what can be got wrong in it, and what was got wrong in a given text."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from cwm_simulated.edits import Edit, edits

Errors = frozenset[Edit]
"""Errors in different places, all of which a program has at once."""


class Original:
    """A correct program that writes programs with errors, and reads the errors of a program.

    Every error stays within a line, so that the lines of both correspond.
    """

    def __init__(self, program: str) -> None:
        self.edits = edits(program)
        self.lines = program.split("\n")
        self._of_line: dict[int, list[Edit]] = defaultdict(list)
        for edit in self.edits:
            self._of_line[edit.line].append(edit)

    def write(self, errors: Iterable[Edit]) -> str:
        """Return the program with these errors."""
        lines = list(self.lines)
        for edit in sorted(errors, reverse=True):
            line = lines[edit.line]
            lines[edit.line] = line[: edit.start] + edit.text + line[edit.end :]
        return "\n".join(lines)

    def read(self, lines: Sequence[str]) -> Errors | None:
        """Return the fewest errors that these first lines have; None for another program."""
        found: set[Edit] = set()
        for number, text in enumerate(lines):
            errors = self._read_line(number, text)
            if errors is None:
                return None
            found.update(errors)
        return frozenset(found)

    def read_all(self, program: str) -> Errors | None:
        """Return the errors of a whole program; None if it is of another one."""
        lines = program.split("\n")
        return self.read(lines) if len(lines) == len(self.lines) else None

    def _read_line(self, number: int, text: str) -> tuple[Edit, ...] | None:
        """Go through a line and what became of it, side by side, with one error more each round."""
        if number >= len(self.lines):
            return None
        line = self.lines[number]
        reached: dict[tuple[int, int], tuple[Edit, ...]] = {(0, 0): ()}
        seen = set(reached)
        while reached:
            following: dict[tuple[int, int], tuple[Edit, ...]] = {}
            for (here, there), errors in reached.items():
                if line[here:] == text[there:]:
                    return errors
                alike = _alike(line[here:], text[there:])
                for edit in self._of_line[number]:
                    skipped = edit.start - here
                    if 0 <= skipped <= alike and text.startswith(edit.text, there + skipped):
                        place = edit.end, there + skipped + len(edit.text)
                        following.setdefault(place, (*errors, edit))
            reached = {place: errors for place, errors in following.items() if place not in seen}
            seen |= reached.keys()
        return None


def _alike(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
