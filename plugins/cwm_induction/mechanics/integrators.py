"""Integration rules of vector fields and mechanisms: their stages, and their loops as text."""

from typing import NamedTuple

STAGES = {
    "euler": ((0.0, 1.0),),
    "midpoint": ((0.0, 0.0), (0.5, 1.0)),
    "heun": ((0.0, 0.5), (1.0, 0.5)),
    "runge-kutta": ((0.0, 1 / 6), (0.5, 1 / 3), (0.5, 1 / 3), (1.0, 1 / 6)),
}
"""For each stage of a rule, its distance along the rates of the stage before, and its weight."""

_WORDS = {"runge-kutta": "Runge-Kutta", "heun": "Heun", "euler": "Euler"}


class Scheme(NamedTuple):
    """An integration rule, and the number of equal parts of a step.

    Rules are the keys of `STAGES`, and "semi-implicit" for mechanisms: velocities change first, and
    the new velocities move the coordinates.
    """

    rule: str
    parts: int

    @property
    def words(self) -> str:
        """The steps in words."""
        rule = _WORDS.get(self.rule, self.rule)
        return f"{self.parts} {rule} steps" if self.parts > 1 else f"one {rule} step"

    def repeated(self, body: str) -> str:
        """Write a loop over the parts around the statements of one part."""
        if self.parts == 1:
            return body
        lines = [f"    {line}" for line in body.splitlines()]
        return "\n".join([f"for _ in range({self.parts}):", *lines])
