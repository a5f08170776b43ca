"""Assign keys to the actions of a space, by the names of the actions.

The name of a key is its character, or one of `NAMED`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError

NAMED = {
    "left": "\N{LEFTWARDS ARROW}",
    "right": "\N{RIGHTWARDS ARROW}",
    "up": "\N{UPWARDS ARROW}",
    "down": "\N{DOWNWARDS ARROW}",
    "enter": "enter",
    "space": "space",
    "home": "home",
    "end": "end",
    "pageup": "page up",
    "pagedown": "page down",
}
"""Names of special keys, and their labels in a legend."""

QUIT, PAUSE, RECORD, TRUTH, HEADER, RESET = "q", ".", ",", "t", "/", "enter"
"""Keys with the same meaning in every environment."""

RESERVED = {QUIT, PAUSE, RECORD, TRUTH}

DIRECTIONS: Mapping[str, Sequence[str]] = {
    "left": ("left", "west"),
    "right": ("right", "east"),
    "up": ("forward", "up", "north"),
    "down": ("backward", "back", "down", "south"),
}
"""Words in the name of an action that assign an arrow key, in order of preference."""

DIALS = (("left", "right"), ("down", "up"), ("a", "d"), ("s", "w"), ("f", "h"), ("g", "y"))
"""Keys that decrease and increase each component of an action; further ones have no keys."""


class Keys:
    """Base class of key assignments.

    Attributes:
        named: Labels by key, in the order of the legend.
    """

    named: dict[str, str]

    def press(self, key: str) -> Any | None:
        """Return the action that a key takes, or None if it takes no action."""
        raise NotImplementedError

    @property
    def idle(self) -> Any | None:
        """The action when time passes without a key; None before the first key."""
        raise NotImplementedError

    @property
    def current_values(self) -> str:
        """The values that keys have set, as text; empty if keys set no values."""
        return ""

    def action_name(self, action: Any) -> str:
        """Return the name of an action."""
        return str(action)

    def allowed(self, valid: Sequence[int] | None) -> dict[str, str]:
        """Return labels by key for the valid actions; None means that all are valid."""
        return self.named


def keys_of(space: Space, names: Sequence[str] = ()) -> Keys:
    """Return the key assignment for an action space.

    Args:
        space: The action space.
        names: Names of the actions of a discrete space, or of the components of another one.

    Raises:
        CwmError: The space contains text.
    """
    if space.kind == "discrete":
        return ActionKeys(int(space.low[0]), space.count, names)
    leaves = [leaf.space for leaf in space.leaves("")]
    if any(leaf.kind == "text" for leaf in leaves):
        raise CwmError("text actions have no keys: choose --mode agent or replay")
    return DialKeys(space, names)


class ActionKeys(Keys):
    """A key per discrete action: arrows by direction, letters by name, digits by number.

    Args:
        start: The smallest action.
        count: Number of actions.
        names: Names of the actions, or none.
    """

    def __init__(self, start: int, count: int, names: Sequence[str] = ()) -> None:
        self._start, self._names = start, list(names)
        if len(names) != count:
            self._names = [f"action {start + n}" for n in range(count)]
        split = [re.findall(r"[a-z]+", name.lower()) for name in self._names] if names else []
        self._keys = self._assign_keys(split)
        self.named = {key: self._names[place] for key, place in self._keys.items()}
        digits = range(min(count, 10))
        without_key = set(digits) - set(self._keys.values())
        self._keys |= {str(n): n for n in digits}
        self.named |= {str(n): self._names[n] for n in sorted(without_key)}
        # words in the name of the action to take when time passes without a key
        idle_words = ("noop", "nop", "nothing", "stay", "wait", "stand", "idle")
        idle = [
            place for place, words in enumerate(split) if {"".join(words), *words} & set(idle_words)
        ]
        self._idle: int | None = idle[0] if idle else None
        self._has_idle = bool(idle)

    def press(self, key: str) -> int | None:
        """Return the action of a key, or None if the key has no action."""
        if key not in self._keys:
            return None
        place = self._keys[key]
        if not self._has_idle:
            self._idle = place  # the last action is repeated
        return self._start + place

    @property
    def idle(self) -> int | None:
        """The no-op action, else the last action; None before the first key."""
        return None if self._idle is None else self._start + self._idle

    def action_name(self, action: Any) -> str:
        """Return the name of an action."""
        return self._names[int(action) - self._start]

    def allowed(self, valid: Sequence[int] | None) -> dict[str, str]:
        """Return labels by key for the valid actions; None means that all are valid."""
        if valid is None:
            return self.named
        places = {action - self._start for action in valid}
        return {key: name for key, name in self.named.items() if self._keys[key] in places}

    def _assign_keys(self, split: Sequence[Sequence[str]]) -> dict[str, int]:
        """Assign at most one key to each action, by the words of its name."""
        keys: dict[str, int] = {}
        # words in the name of an action that assign the space bar
        space_bar_words = ("fire", "toggle", "activate", "use", "jump")
        for key, words in (*DIRECTIONS.items(), ("space", space_bar_words)):
            named = [
                (rank, len(name), place)
                for rank, word in enumerate(words)
                for place, name in enumerate(split)
                if word in name and place not in keys.values()
                if word not in ("up", "down") or ("pick" not in name and "put" not in name)
            ]
            if named:
                keys[key] = min(named)[2]
        for place, name in enumerate(split):
            letters = [letter for word in name for letter in (word[0], *word[1:])]
            firsts = [word[0] for word in name]
            every = (*firsts, *letters, *ascii_letters)
            free = (each for each in every if each not in {*RESERVED, *keys})
            if place not in keys.values() and (letter := next(free, "")):
                keys[letter] = place
        return keys


class DialKeys(Keys):
    """Keys that change each component of an action; the space bar takes the action.

    Args:
        space: An action space that is not discrete.
        names: Names of its components, or none.
    """

    def __init__(self, space: Space, names: Sequence[str] = ()) -> None:
        self._space, self._leaves = space, [leaf for leaf in space.leaves("")]
        low, high = (
            np.concatenate(
                [np.array(getattr(leaf.space, bound), float).reshape(-1) for leaf in self._leaves]
            )
            for bound in ("low", "high")
        )
        whole = np.concatenate(
            [np.full(leaf.space.size, not leaf.space.is_float) for leaf in self._leaves]
        )
        self._low, self._high, self._whole = low, high, whole
        bounded = np.isfinite(low) & np.isfinite(high)
        middle = np.where(bounded, (np.where(bounded, low + high, 0)) / 2, 0.0)
        self._middle = np.where(whole, np.floor(middle), middle)
        width = np.where(bounded, high - low, 0)
        presses_to_bound = 4  # key presses from the middle of a bounded range of floats to its end
        unbounded_step = 1.0  # the change of an unbounded component per key press
        step = np.where(bounded, width / 2 / presses_to_bound, unbounded_step)
        self._step = np.where(whole, 1.0, step)
        self._values = self._middle.copy()
        labels = names if len(names) == len(low) else [f"[{n}]" for n in range(len(low))]
        self.named = {}
        for name, (less, more) in zip(labels, DIALS, strict=False):
            self.named |= {less: f"{name} less", more: f"{name} more"}
        self.named |= {"0": "the middle", "space": "act"}

    def press(self, key: str) -> Any | None:
        """Change a component, or return the action if the key is the space bar."""
        if key == "0":
            self._values = self._middle.copy()
        for place, (less, more) in enumerate(DIALS[: len(self._values)]):
            if key in (less, more):
                moved = self._values[place] + (1 if key == more else -1) * self._step[place]
                self._values[place] = np.clip(moved, self._low[place], self._high[place])
        return self.idle if key == "space" else None

    @property
    def idle(self) -> Any:
        """The action with the current values of the components."""
        columns, start = {}, 0
        for name, leaf in self._leaves:
            part = self._values[start : start + leaf.size]
            columns[name] = part.reshape(1, *leaf.shape).astype(leaf.dtype)
            start += leaf.size
        return self._space.unpack("", columns, 0)

    def action_name(self, action: Any) -> str:
        """Return the numbers of an action as text."""
        columns = self._space.pack("", [action]).values()
        numbers = np.concatenate([np.asarray(column, float).reshape(-1) for column in columns])
        return ", ".join(f"{number:.3g}" for number in numbers)

    @property
    def current_values(self) -> str:
        """The values of the components as text."""
        return self.action_name(self.idle)


def legend(named: Mapping[str, str]) -> list[str]:
    """Return an entry such as "q quit" for each label; keys with the same label share one."""
    keys_by_label: dict[str, list[str]] = {}
    for key, label in named.items():
        keys_by_label.setdefault(label, []).append(NAMED.get(key, key))
    return [f"{'/'.join(keys)} {label}" for label, keys in keys_by_label.items()]
