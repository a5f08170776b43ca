"""Options whose values a preset gives where nobody sets them.

A preset is a name for values of several options: of whoever has it, and, by `OWNER.KEY`, of what
stands beside it, as a published strategy asks for certain prompts and for a certain sampling.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

FROM_PRESET: Any = None
"""Default of an option whose value the preset gives."""

PUBLISHED_SAMPLING: Mapping[str, Any] = MappingProxyType(
    {"backend.temperature": 0.6, "backend.top_p": 0.8, "backend.max_tokens": 4096}
)
"""How Dainese et al. (2024) sampled from models of OpenAI."""

PUBLISHED_ALONE: Mapping[str, Any] = MappingProxyType(
    {"search.start": "none", "search.refine": "none", **PUBLISHED_SAMPLING}
)
"""How every program came to be: it was sampled, and nothing else had a part in it."""

PUBLISHED_ASKING: Mapping[str, Any] = MappingProxyType(
    {"problem.feedback": "paper", "problem.prefill": True, **PUBLISHED_ALONE}
)
"""How their searches asked: by one counterexample, and in an answer that is begun."""


class WithPresets:
    """A base of dataclasses whose option `preset` names a line of `PRESETS`.

    An option whose value a preset gives has the default `FROM_PRESET`::

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
    """Values by the option `preset`: of options of this owner, and of others by `OWNER.KEY`."""

    def __post_init__(self) -> None:
        for name, value in preset_values(type(self), getattr(self, "preset", "")).items():
            if getattr(self, name) is FROM_PRESET:
                object.__setattr__(self, name, value)


def preset_values(owner: Any, preset: str) -> dict[str, Any]:
    """Return what a preset of an owner says of its own options."""
    given = getattr(owner, "PRESETS", {}).get(preset, {})
    return {name: value for name, value in given.items() if "." not in name}


def asked_of_others(owner: Any, preset: str) -> dict[tuple[str, str], Any]:
    """Return what a preset asks of the options of others, by owner and name."""
    given = getattr(owner, "PRESETS", {}).get(preset, {})
    return {tuple(name.split(".", 1)): value for name, value in given.items() if "." in name}
