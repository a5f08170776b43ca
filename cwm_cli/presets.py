"""Presets: named sets of option values, used for options that the user does not set.

A preset sets options of its owner and, with keys `OWNER.KEY`, options of other parts of the run.
For example, the preset of a published strategy also sets the prompts and the sampling parameters.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

FROM_PRESET: Any = None
"""Default of an option whose value comes from the preset."""

PUBLISHED_SAMPLING: Mapping[str, Any] = MappingProxyType(
    {"backend.temperature": 0.6, "backend.top_p": 0.8, "backend.max_tokens": 4096}
)
"""Sampling parameters of Dainese et al. (2024) for models of OpenAI."""

PUBLISHED_ALONE: Mapping[str, Any] = MappingProxyType(
    {
        "search.start": "none",
        "search.refine": "none",
        "search.simplify": 0,
        **PUBLISHED_SAMPLING,
    }
)
"""As published, all programs are sampled: no start program, refinement or simplification."""

PUBLISHED_ASKING: Mapping[str, Any] = MappingProxyType(
    {"problem.feedback": "paper", "problem.prefill": True, **PUBLISHED_ALONE}
)
"""As published, prompts contain one counterexample and the beginning of the completion."""


class WithPresets:
    """A base of dataclasses whose option `preset` selects an entry of `PRESETS`.

    An option whose value comes from the preset has the default `FROM_PRESET`::

        @dataclass
        class Greedy(Strategy):
            PRESETS = {
                "default": {"tries": 1},
                "paper": {"tries": 3, "problem.feedback": "paper", "backend.temperature": 0.6},
            }

            preset: Literal["default", "paper"] = "default"
            tries: int = FROM_PRESET
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Option values by name of the preset; `OWNER.KEY` is an option of another owner."""

    def __post_init__(self) -> None:
        for name, value in preset_values(type(self), getattr(self, "preset", "")).items():
            if getattr(self, name) is FROM_PRESET:
                object.__setattr__(self, name, value)


def preset_values(owner: Any, preset: str) -> dict[str, Any]:
    """Return the values that a preset sets for the options of its owner."""
    given = getattr(owner, "PRESETS", {}).get(preset, {})
    return {name: value for name, value in given.items() if "." not in name}


def values_for_others(owner: Any, preset: str) -> dict[tuple[str, str], Any]:
    """Return the values that a preset sets for options of other owners, by owner and name."""
    given = getattr(owner, "PRESETS", {}).get(preset, {})
    return {tuple(name.split(".", 1)): value for name, value in given.items() if "." in name}
