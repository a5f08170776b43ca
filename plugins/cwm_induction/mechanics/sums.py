"""Writing sums of products, and linear systems."""

from collections.abc import Iterable, Iterator, Sequence

from cwm_induction.writing.rounding import literal


def phase_text(factors: Iterable[float], names: Sequence[str]) -> str:
    """Write a combination of angles."""
    parts = [(float(f), [name]) for f, name in zip(factors, names, strict=True) if f]
    return sum_text(parts).replace(".0 *", " *")


Summand = tuple[float, list[str]]
"""A weight and the factors that it multiplies."""


def sum_text(summands: "Iterator[Summand] | Sequence[Summand]") -> str:
    """Write a sum of products."""
    text = ""
    for weight, factors in summands:
        size = [] if abs(weight) == 1 else [literal(abs(weight))]
        joined = " * ".join([*size, *factors])
        sign = "-" if weight < 0 else "+"
        text += f" {sign} {joined}" if text else ("-" if weight < 0 else "") + joined
    return text or "0.0"


def identifier(phase: str) -> str:
    """Turn a combination of angles into a part of a constant's name."""
    words = phase.replace(" - ", "_MINUS_").replace(" + ", "_PLUS_").replace(" * ", "_TIMES_")
    return words.replace("-", "MINUS_").upper()


def solution(joints: int) -> list[str]:
    """Write the solution of the linear system."""
    if joints == 1:
        return ["return np.array([force_0 / mass_00])"]
    if joints == 2:
        return [
            "determinant = mass_00 * mass_11 - mass_01**2",
            "acceleration_0 = (mass_11 * force_0 - mass_01 * force_1) / determinant",
            "acceleration_1 = (mass_00 * force_1 - mass_01 * force_0) / determinant",
            "return np.array([acceleration_0, acceleration_1])",
        ]
    return [f"return np.linalg.solve({matrix(joints)}, {forces(range(joints))})"]


def matrix(joints: int) -> str:
    """Write the mass matrix."""
    rows = [", ".join(f"mass_{min(i, j)}{max(i, j)}" for j in range(joints)) for i in range(joints)]
    return "np.array([" + ", ".join(f"[{row}]" for row in rows) + "])"


def forces(joints: Sequence[int]) -> str:
    """Write the vector of forces."""
    return "np.array([" + ", ".join(f"force_{i}" for i in joints) + "])"
