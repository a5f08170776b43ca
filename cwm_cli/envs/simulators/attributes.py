"""Save and restore an environment by its attributes, whatever it is made of."""

from collections.abc import Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.envs.simulators.chance import Generator, restore, saved
from cwm_cli.envs.simulators.layout import Findings, Layout, beside, laid_out, owned
from cwm_cli.envs.simulators.values import COPIERS, content, survey

if TYPE_CHECKING:
    import gymnasium as gym

NOTHING = Findings()


class Piece(NamedTuple):
    """Attributes that were copied in one, with tokens for what `belonged` to the instance."""

    values: dict[str, Any]
    tokens: list[object]
    belonged: list[Any]


@dataclass(slots=True, eq=False)
class Saved:
    """A saved state, equal to another one that holds the same, however it is laid out."""

    layout: Layout
    values: dict[str, Any]
    piece: Piece | None
    luck: list[Any] | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Saved) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> Hashable:
        piece = self.piece or Piece({}, [], [])
        held = dict(sorted({**self.values, **piece.values}.items()))
        tokens = {id(token): (place, token) for place, token in enumerate(piece.tokens)}
        return *held, content((*held.values(), self.luck), tokens)


class Attributes:
    """Copies the attributes of an environment, each as fast as its type allows.

    An attribute that was replaced is always saved. One that was changed in
    place is, unless it is among those that are known to be constant.
    """

    def __init__(self, env: "gym.Env[Any, Any]", findings: Findings = NOTHING) -> None:
        self.how = "deepcopy" if findings.whole else "attributes"
        self._env = env.unwrapped
        self._env.np_random  # noqa: B018  # makes the generator where there is none yet
        self._attributes = vars(self._env)
        self._known = findings
        self._layout = laid_out(self._env, findings)
        self._arrange()

    def save(self, *, chance: bool = True) -> Saved:
        """Return all that decides how the environment goes on; later steps never change it."""
        attributes = self._attributes
        layout = self._layout if self._fits() else self._arrange()
        values = attributes.copy()
        for name in layout.left:
            del values[name]
        for name in layout.plain:
            copy = COPIERS.get(type(values[name]))
            if copy is None:
                self._arrange()
                return self.save(chance=chance)
            values[name] = copy(values[name])
        piece = self._detached(layout) if layout.together else None
        luck = [saved(generator) for generator in self.generators()] if chance else None
        return Saved(layout, values, piece, luck)

    def load(self, state: Saved, *, chance: bool = True) -> None:
        """Go on from a saved state; without `chance` the random generators stay as they are."""
        layout, values, piece, luck = state.layout, state.values, state.piece, state.luck
        attributes = self._attributes
        if piece is not None:
            attributes.update(self._attached(piece))
        attributes.update(values)
        for name in layout.plain:
            value = values[name]
            attributes[name] = COPIERS[type(value)](value)
        if len(attributes) != len(layout.names):
            for name in attributes.keys() - layout.names:
                del attributes[name]
        if chance and luck is not None:
            for generator, drawn in zip(self.generators(), luck, strict=False):
                restore(generator, drawn)

    def generators(self) -> list[Generator]:
        """Return the random generators that the environment draws from, each once."""
        attributes = self._attributes
        layout = self._layout if self._fits() else self._arrange()
        found = [attributes[name] for name in layout.generators]
        found += beside(self._env, self._known)
        if layout.together:
            outside = set(map(id, owned(self._env, self._known)))
            together = [attributes[name] for name in layout.together]
            found += survey(together, outside).generators
        return list({id(generator): generator for generator in found}.values())

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> None:
        """Know no faster way than to step."""

    def _fits(self) -> bool:
        """Whether the attributes are still of the kinds that they were when they were looked at."""
        attributes, layout = self._attributes, self._layout
        watched = map(attributes.get, layout.watched)
        return len(attributes) == len(layout.names) and all(map(is_, watched, layout.expected))

    def _arrange(self) -> Layout:
        """Look at the attributes anew; what was once seen to change is never forgotten."""
        attributes, known = self._attributes, self._known
        watched = zip(self._layout.watched, self._layout.expected, strict=True)
        replaced = {name for name, value in watched if attributes.get(name) is not value}
        known = replace(
            known,
            constant=known.constant - replaced,
            seen=known.seen | {name for name in attributes if attributes[name] is not None},
        )
        self._layout = layout = laid_out(self._env, known)
        self._known = replace(
            known,
            together=known.together.union(layout.together),
            plain=known.plain.union(layout.plain),
        )
        return layout

    def _belongings(self) -> list[Any]:
        return [*owned(self._env, self._known), *self.generators()]

    def _detached(self, layout: Layout) -> Piece:
        """Copy what hangs together, but not what belongs to the instance."""
        belonged = self._belongings()
        tokens = [object() for _ in belonged]
        known = {id(thing): token for thing, token in zip(belonged, tokens, strict=True)}
        together = {name: self._attributes[name] for name in layout.together}
        return Piece(deepcopy(together, known), tokens, belonged)

    def _attached(self, piece: Piece) -> dict[str, Any]:
        """Copy what was detached, with what belongs to this instance instead."""
        mine = self._belongings()
        mine += map(deepcopy, piece.belonged[len(mine) :])
        known = {id(token): thing for token, thing in zip(piece.tokens, mine, strict=False)}
        return deepcopy(piece.values, known)
