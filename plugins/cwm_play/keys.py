"""Which key takes which action, by what the actions are called.

A key is named by its character, or is one of `NAMED`.
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
"""Keys that are no characters, and what a legend calls them."""

QUIT, PAUSE, RECORD, TRUTH, RESET = "q", ".", ",", "t", "enter"
"""Keys that mean the same in every world."""

RESERVED = {QUIT, PAUSE, RECORD, TRUTH}

DIRECTIONS: Mapping[str, Sequence[str]] = {
    "left": ("left", "west"),
    "right": ("right", "east"),
    "up": ("forward", "up", "north"),
    "down": ("backward", "back", "down", "south"),
}
"""Words in the name of an action that stand for an arrow, the most telling one first."""

ACTING = ("fire", "toggle", "activate", "use", "jump")
"""What the space bar does, where an action is called so."""

NOTHING = ("noop", "nop", "nothing", "stay", "wait", "stand", "idle")
"""What happens where no key is pressed and time goes on, if an action is called so."""

SHARES = 4
"""Key presses from the middle of a range of numbers to its end."""

WIDEST = 1.0
"""How far a component without bounds is moved by a key."""

DIALS = (("left", "right"), ("down", "up"), ("a", "d"), ("s", "w"), ("f", "h"), ("g", "y"))
"""Keys that make a component of an action smaller and larger; those beyond cannot be moved."""


class Keys:
    """Actions by key. `named` says what keys do, in the order of a legend.

    `press` returns the action that a key takes, None where it takes none; `idle` is what goes on
    where no key is pressed, and `words` says what an action is called.
    """

    named: dict[str, str]

    def press(self, key: str) -> Any | None:
        """Return the action of a key."""
        raise NotImplementedError

    @property
    def idle(self) -> Any | None:
        """What is done when time goes on without a key; None before there was one."""
        raise NotImplementedError

    def words(self, action: Any) -> str:
        """Say what an action is called."""
        return str(action)

    def open_to(self, valid: Sequence[int] | None) -> dict[str, str]:
        """Return what the keys of allowed actions do."""
        return self.named


def keys_of(space: Space, names: Sequence[str] = ()) -> Keys:
    """Return the keys for the actions of a space; `names` are those of discrete ones."""
    if space.kind == "discrete":
        return ActionKeys(int(space.low[0]), space.count, names)
    leaves = [leaf.space for leaf in space.leaves("")]
    if any(leaf.kind == "text" for leaf in leaves):
        raise CwmError("text actions have no keys: choose --mode agent or replay")
    return DialKeys(space, names)


class ActionKeys(Keys):
    """A key for each of some actions: arrows by direction, letters by name, digits by number."""

    def __init__(self, start: int, count: int, names: Sequence[str] = ()) -> None:
        called = names if len(names) == count else [f"action {start + n}" for n in range(count)]
        self._start, self._called = start, list(called)
        split = [re.findall(r"[a-z]+", name.lower()) for name in called] if names else []
        self._keys = self._chosen(split)
        self.named = {key: self._called[place] for key, place in self._keys.items()}
        digits = [str(n) for n in range(min(count, 10))]
        self._keys |= {digit: int(digit) for digit in digits}
        if unreached := [n for n in range(min(count, 10)) if n not in self._named_places]:
            self.named |= {str(n): self._called[n] for n in unreached}
        still = [
            place for place, words in enumerate(split) if {"".join(words), *words} & set(NOTHING)
        ]
        self._idle: int | None = still[0] if still else None
        self._has_idle = bool(still)

    @property
    def _named_places(self) -> set[int]:
        return {place for key, place in self._keys.items() if not key.isdecimal()}

    def press(self, key: str) -> int | None:
        """Return the action of a key."""
        if key not in self._keys:
            return None
        place = self._keys[key]
        if not self._has_idle:
            self._idle = place  # the last key holds
        return self._start + place

    @property
    def idle(self) -> int | None:
        """What does nothing, else the last action."""
        return None if self._idle is None else self._start + self._idle

    def words(self, action: Any) -> str:
        """Say what an action is called."""
        return self._called[int(action) - self._start]

    def open_to(self, valid: Sequence[int] | None) -> dict[str, str]:
        """Return what the keys of allowed actions do."""
        if valid is None:
            return self.named
        allowed = {action - self._start for action in valid}
        return {key: name for key, name in self.named.items() if self._keys[key] in allowed}

    def _chosen(self, split: Sequence[Sequence[str]]) -> dict[str, int]:
        """Choose keys by the words of names; each action has one at most, and each key one."""
        keys: dict[str, int] = {}
        for key, words in (*DIRECTIONS.items(), ("space", ACTING)):
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
    """Keys that move each component of an action; the space bar takes what they stand at."""

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
        reach = np.where(bounded, np.where(bounded, high - low, 0) / 2 / SHARES, WIDEST)
        self._step = np.where(whole, 1.0, reach)
        self._values = self._middle.copy()
        called = list(names) if len(names) == len(low) else [f"[{n}]" for n in range(len(low))]
        self.named = {}
        for name, (less, more) in zip(called, DIALS, strict=False):
            self.named |= {less: f"{name} less", more: f"{name} more"}
        self.named |= {"0": "the middle", "space": "act"}

    def press(self, key: str) -> Any | None:
        """Move a component, or return the action."""
        if key == "0":
            self._values = self._middle.copy()
        for place, (less, more) in enumerate(DIALS[: len(self._values)]):
            if key in (less, more):
                moved = self._values[place] + (1 if key == more else -1) * self._step[place]
                self._values[place] = np.clip(moved, self._low[place], self._high[place])
        return self.idle if key == "space" else None

    @property
    def idle(self) -> Any:
        """The action that the components make."""
        columns, start = {}, 0
        for name, leaf in self._leaves:
            part = self._values[start : start + leaf.size]
            columns[name] = part.reshape(1, *leaf.shape).astype(leaf.dtype)
            start += leaf.size
        return self._space.unpack("", columns, 0)

    def words(self, action: Any) -> str:
        """Write the numbers of an action."""
        columns = self._space.pack("", [action]).values()
        numbers = np.concatenate([np.asarray(column, float).reshape(-1) for column in columns])
        return ", ".join(f"{number:.3g}" for number in numbers)

    @property
    def standing(self) -> str:
        """What the components stand at."""
        return self.words(self.idle)


def legend(named: Mapping[str, str]) -> list[str]:
    """Say what each of some keys does."""
    found: dict[str, list[str]] = {}
    for key, does in named.items():
        found.setdefault(does, []).append(NAMED.get(key, key))
    return [f"{'/'.join(keys)} {does}" for does, keys in found.items()]
