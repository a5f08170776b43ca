"""Stand environments at an observation, by what their state and their observations have in common.

How the one is read from the other is learned from the environment itself: it is taken to many
states, and the numbers that it keeps, or that its MuJoCo simulation has, are compared with the
numbers that it shows. No environment is known by its name.
"""

from __future__ import annotations

import inspect
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import WeakKeyDictionary

import numpy as np

from cwm_cli.envs.tasks import step_limit

with suppress(ImportError):  # only environments that simulate with it need it
    import mujoco

if TYPE_CHECKING:
    import gymnasium as gym

READERS = ("_get_obs", "_get_ob")
"""Methods that return what an environment shows where it stands."""

SAME = 1e-6
"""Numbers that differ by less in all samples are the same; observations may be of float32."""

LINEAR = 1e-8
"""Likewise for a sum of numbers of the state, which needs samples of float64."""

DIGITS = 11
"""Decimals of what is solved for: what is shown as it is shall be read to the last bit."""


@dataclass(frozen=True)
class ObservationLayout:
    """How a state is read from an observation, both flat: `base + weights @ (seen - shown)`.

    `turns` are angles: the number of the state, and where its cosine and its
    sine are seen. `read` marks what is read of an observation, `told` what
    that tells of the state; the rest of the state is that of `base`.
    """

    base: np.ndarray
    shown: np.ndarray
    weights: np.ndarray
    turns: tuple[tuple[int, int, int], ...]
    read: np.ndarray
    told: np.ndarray

    @classmethod
    def copied(cls, states: np.ndarray, seen: np.ndarray) -> Self:
        """Learn which numbers of the state are shown as they are."""
        pairs = _same(states, seen)
        weights = np.zeros((states.shape[1], seen.shape[1]))
        told, read = pairs.max(axis=1), pairs.max(axis=0, initial=False)
        weights[told, pairs.argmax(axis=1)[told]] = 1.0
        base = np.where(told, 0.0, states[-1])
        return cls._turned(states, seen, cls(base, 0 * seen[0], weights, (), read, told))

    @classmethod
    def linear(cls, base: np.ndarray, states: np.ndarray, seen: np.ndarray) -> Self:
        """Learn which sums of numbers of the state are shown, and what they tell of it."""
        design = np.hstack([states - base, np.ones((len(states), 1))])
        slopes = np.linalg.lstsq(design, seen)[0].round(DIGITS)
        right = np.abs(design @ slopes - seen).max(axis=0) < LINEAR * (1 + np.abs(seen).max(axis=0))
        jacobian, shown = slopes[:-1].T, slopes[-1]
        read = right & (np.abs(jacobian).max(axis=1) > SAME)
        weights = np.zeros((len(base), seen.shape[1]))
        weights[:, read] = np.linalg.pinv(jacobian[read], rcond=SAME).round(DIGITS)
        told = np.abs(np.diag(weights @ jacobian) - 1) < SAME
        return cls._turned(states, seen, cls(base, shown, weights, (), read, told))

    @classmethod
    def _turned(cls, states: np.ndarray, seen: np.ndarray, found: ObservationLayout) -> Self:
        """Add the angles whose cosine and sine are shown."""
        cosines, sines = _same(np.cos(states), seen), _same(np.sin(states), seen)
        angles = np.flatnonzero(cosines.any(axis=1) & sines.any(axis=1) & ~found.told)
        turns = tuple(
            (int(angle), int(cosines[angle].argmax()), int(sines[angle].argmax()))
            for angle in angles
        )
        read, told = found.read.copy(), found.told.copy()
        told[angles] = True
        read[[place for _, *places in turns for place in places]] = True
        return cls(found.base, found.shown, found.weights, turns, read, told)

    def state(self, seen: np.ndarray) -> np.ndarray:
        """Return the state that an observation tells."""
        state: np.ndarray = self.base + self.weights @ (seen - self.shown)
        for angle, cosine, sine in self.turns:
            state[angle] = np.arctan2(seen[sine], seen[cosine])
        return state

    def to_json(self) -> dict[str, Any]:
        """Return what `state` needs as plain data; weights of 0 are left out."""
        rows, columns = np.nonzero(self.weights)
        weights = [rows, columns, self.weights[rows, columns]]
        return {
            "base": self.base.tolist(),
            "shown": self.shown.tolist(),
            "weights": [part.tolist() for part in weights],
            "turns": [list(turn) for turn in self.turns],
            "told": self.told.tolist(),
        }


def flat(observation: Any) -> np.ndarray:
    """Return the numbers of an observation, one after the other; a text is not a number."""
    if isinstance(observation, Mapping):
        observation = [observation[key] for key in sorted(observation)]
    if isinstance(observation, list | tuple):
        parts = [flat(part) for part in observation]
        return np.concatenate(parts) if parts else np.empty(0)
    array = np.asarray(observation).ravel()
    return array.astype(np.float64) if array.dtype.kind in "biuf" else np.full(array.size, np.nan)


def reader(env: Any) -> Callable[[], Any] | None:
    """Return the method by which an environment looks at itself, if it has one."""
    found = (getattr(env, name, None) for name in READERS)
    return next((method for method in found if _takes_nothing(method)), None)


def _takes_nothing(method: Any) -> bool:
    """Whether something can be called without arguments."""
    if not inspect.ismethod(method):
        return False
    parameters = inspect.signature(method).parameters.values()
    return all(
        parameter.default is not parameter.empty or "VAR" in parameter.kind.name
        for parameter in parameters
    )


def _same(states: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return which numbers of the states (rows) are which that are seen, in all samples.

    Those that are never seen to change tell nothing.
    """
    pairs = np.zeros((states.shape[1], seen.shape[1]), dtype=np.bool_)
    changing = np.ptp(seen, axis=0) > 0 if len(seen) else np.zeros(seen.shape[1], np.bool_)
    for number, column in enumerate(states.T):
        apart = np.abs(seen - column[:, None])
        pairs[number] = changing & (apart <= SAME * (1 + np.abs(seen))).all(axis=0)
    return pairs


SPREAD = 0.1
"""How far positions, velocities and controls are moved to see where an observation shows them."""

SAMPLES = 3
"""States that are compared, per number of a state."""

ROUNDS = 150
"""After so many rounds the step before has been found, or is not going to be."""

PATIENCE = 30
"""After every so many rounds the steps of the search are halved: contacts make them overshoot."""

EXACT = 1e-9
"""How near a state the step from the one before has to lead."""


class Simulation:
    """Sets what an observation tells of positions, velocities and controls.

    Some environments compare with what MuJoCo computes within a step and
    leaves behind, such as where a body was at the last stage of the integrator.
    It follows from the step before, so where an observation tells the controls
    of that step it is found and taken again. The solver begins with what it
    found here, nearly what it had found in the step before.
    """

    def __init__(self, env: Any) -> None:
        self._model, self._data = env.model, env.data
        self._layout = self._learned(env, np.random.default_rng(0))
        positions, controls = np.split(self._layout.told, [self._model.nq, -self._model.nu])[::2]
        self._tells = bool(positions.any())
        self._controlled = bool(controls.all() and controls.size)

    def __call__(self, env: Any, observation: Any) -> bool:
        """Stand there; False where the observation does not tell the state."""
        layout, seen = self._layout, flat(observation)
        if not self._tells or seen.shape != layout.shown.shape:
            return False
        state = layout.state(seen)
        self._set(state)
        own = _seen(env)
        if not np.allclose(own[layout.read], seen[layout.read], rtol=1e-5, atol=1e-5):
            return False
        rest = ~layout.read
        if rest.any() and np.allclose(own[rest], seen[rest], rtol=EXACT, atol=EXACT):
            return True  # nothing was left behind by a step: this is how an episode starts
        self._data.qacc_warmstart[:] = self._data.qacc
        if self._controlled:
            self._retrace(state)
        return True

    def layout_data(self) -> dict[str, Any] | None:
        """Say how a state is read, None where an observation does not tell it."""
        return {"attributes": None, **self._layout.to_json()} if self._tells else None

    def _learned(self, env: Any, rng: np.random.Generator) -> ObservationLayout:
        """Compare random states with what the environment shows of them."""
        mujoco.mj_resetData(self._model, self._data)
        base = self._state()
        states, seen = [], []
        for _ in range(SAMPLES * (len(base) + 1)):
            self._set(base + rng.uniform(-SPREAD, SPREAD, len(base)))
            states.append(self._state())
            seen.append(_seen(env))
        return ObservationLayout.linear(base, np.array(states), np.array(seen))

    def _state(self) -> np.ndarray:
        """Return positions, velocities and controls."""
        return np.concatenate([self._data.qpos, self._data.qvel, self._data.ctrl])

    def _set(self, state: np.ndarray) -> None:
        """Set positions, velocities and controls, and what follows from them; forget the rest."""
        model, data = self._model, self._data
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = np.split(state, [model.nq, model.nq + model.nv])
        mujoco.mj_forward(model, data)

    def _retrace(self, state: np.ndarray) -> None:
        """Take the last step again, from where it leads here; without one all stays as set."""
        model, data = self._model, self._data
        qpos, qvel, _ = np.split(state, [model.nq, model.nq + model.nv])
        start, speed, apart = qpos.copy(), qvel.copy(), np.zeros(model.nv)
        warm = data.qacc_warmstart.copy()
        mujoco.mj_integratePos(model, start, -speed, model.opt.timestep)
        for number in range(ROUNDS):
            data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = start, speed, warm
            mujoco.mj_step(model, data)
            mujoco.mj_differentiatePos(model, apart, 1.0, data.qpos, qpos)
            faster = qvel - data.qvel
            if max(np.abs(apart).max(), model.opt.timestep * np.abs(faster).max()) < EXACT:
                data.qpos[:], data.qvel[:] = qpos, qvel
                return
            share = 0.5 ** (number // PATIENCE)
            mujoco.mj_integratePos(model, start, apart, share)
            speed = speed + share * faster
        self._set(state)
        data.qacc_warmstart[:] = warm


def _seen(env: Any) -> np.ndarray:
    """Return what an environment shows where it stands; nothing where it cannot look at itself."""
    read = reader(env)
    return flat(read()) if read else np.empty(0)


EPISODES = 8
STEPS = 12
"""What is played to compare attributes with observations."""

SEED = "_np_random_seed"
"""The attribute in which Gymnasium keeps the seed of the generator; nothing follows from it."""

MOST_NUMBERS = 2_000
"""Attributes of more numbers than this are no part of a state."""

HANDS = ("player", "dealer")
"""Attributes of a game of cards: lists of their values, the dealer's first one face up."""

Hand = tuple[int, ...]

BLACKJACK, HIT = 21, 0.5
"""What no hand exceeds in which a card may be drawn, and how often random play draws one."""

MANY = 50_000
"""Steps that are played to see what an observation of whole numbers leaves open: a state that is
met once in a thousand steps then is met often enough for a share."""

TOLERANCE = 1e-5


class RestoringWay(Protocol):
    """Takes an environment to where an observation was made."""

    def __call__(self, env: Any, observation: Any) -> bool:
        """Stand there; False where the observation does not tell the state."""


_WAYS: WeakKeyDictionary[Any, RestoringWay] = WeakKeyDictionary()


def restore(env: gym.Env[Any, Any], observation: Any) -> bool:
    """Stand a made environment at an observation; False where that does not tell the state.

    What the observation does not show stays as it was or begins at nothing,
    and a clipped speed is what it was clipped to. Of observations of whole
    numbers it is drawn anew, as it was where random play saw the same. The
    first call for an environment plays it, and resets it.
    """
    inner = env.unwrapped
    if inner not in _WAYS:
        _WAYS[inner] = _way(env)
        env.reset(seed=0)
    return _WAYS[inner](inner, observation)


def layout_data(env: gym.Env[Any, Any]) -> dict[str, Any] | None:
    """Say in plain data how the state is read from an observation, None where it is not.

    `attributes` are the names and sizes of those that make up the state, None where these are
    positions, velocities and controls of MuJoCo. The environment is played, and reset.
    """
    way = _way(env)
    env.reset(seed=0)
    return None if isinstance(way, Hands) else way.layout_data()


def _way(env: gym.Env[Any, Any]) -> Simulation | Hands | StateAttributes:
    """Choose how an environment is restored."""
    inner = env.unwrapped
    read = reader(inner)
    kinds = [type(getattr(inner, name, None)).__name__ for name in ("model", "data")]
    if read and kinds == ["MjModel", "MjData"]:
        return Simulation(inner)
    if read and all(isinstance(getattr(inner, name, None), list) for name in HANDS):
        return Hands(inner, read)
    return StateAttributes(env)


class Hands:
    """Deals a hand that looks as observed, each as often as random play does, and a hidden card.

    The dealer's hidden card is one of the deck, whatever is seen: nobody looks at it before the
    player is done.
    """

    def __init__(self, env: Any, read: Callable[[], Any]) -> None:
        from gymnasium.envs.toy_text.blackjack import deck

        self._deck = deck
        self._dealt: dict[tuple[float, ...], tuple[list[Hand], list[float]]] = {}
        cards = [(card, deck.count(card) / len(deck)) for card in sorted(set(deck))]
        hands: dict[Hand, float] = {(): 1.0}
        for count in range(1, BLACKJACK + 1):
            share = 1.0 if count <= 2 else HIT
            drawn: dict[Hand, float] = defaultdict(float)
            for hand, chance in hands.items():
                for card, part in cards:
                    if sum(hand) + card <= BLACKJACK:
                        drawn[tuple(sorted((*hand, card)))] += chance * part * share
            hands = drawn
            for hand, chance in hands.items() if count > 1 else ():
                env.player = list(hand)
                same, sums = self._dealt.setdefault(self._looks(flat(read())), ([], []))
                same.append(hand)
                sums.append(chance + (sums[-1] if sums else 0.0))

    def __call__(self, env: Any, observation: Any) -> bool:
        """Stand there; False where no hand looks so."""
        seen = flat(observation)
        if seen.shape != (3,) or self._looks(seen) not in self._dealt:
            return False
        hands, sums = self._dealt[self._looks(seen)]
        rng = env.np_random
        env.player = list(hands[bisect(sums, rng.random() * sums[-1], hi=len(sums) - 1)])
        env.dealer = [int(seen[1]), self._deck[rng.integers(len(self._deck))]]
        return True

    @staticmethod
    def _looks(seen: np.ndarray) -> tuple[float, ...]:
        """Return what is seen of the player's hand."""
        return float(seen[0]), float(seen[2])


class StateAttributes:
    """Sets the attributes whose numbers are observed, or whose cosine and sine are."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        records, seen = zip(*_played(env), strict=True)
        self._names = [name for name, first in records[0].items() if _lasts(name, first, records)]
        self._sizes = [[name, int(records[0][name].size)] for name in self._names]
        states = np.array([self._joined(record) for record in records])
        self._seen = np.array(seen) if len({len(row) for row in seen}) == 1 else np.empty((0, 0))
        self._layout = ObservationLayout.copied(states, self._seen) if self._seen.size else None
        self._open = self._left_open(env)

    def __call__(self, env: Any, observation: Any) -> bool:
        """Stand there; False where the observation does not tell the state."""
        layout, seen = self._layout, flat(observation)
        if layout is None or not layout.told.any() or seen.shape != layout.shown.shape:
            return False
        if not np.isfinite(seen).all():
            return False
        self._set(env, layout.state(seen), layout.told)
        if states := self._open.get(seen.tobytes()):
            self._set(env, states[env.np_random.integers(len(states))], ~layout.told)
        read, others = reader(env), ~layout.read
        if read is None:
            return bool((self._seen[:, others] == seen[others]).all())
        own = flat(read())
        return own.shape == seen.shape and np.allclose(own, seen, TOLERANCE, TOLERANCE)

    def layout_data(self) -> dict[str, Any] | None:
        """Say how a state is read, None where an observation does not tell any of it."""
        if self._layout is None or not self._layout.told.any():
            return None
        return {"attributes": self._sizes, **self._layout.to_json()}

    def _set(self, env: Any, state: np.ndarray, told: np.ndarray) -> None:
        """Set the numbers that are told, and leave the others alone."""
        start = 0
        for name in self._names:
            old = getattr(env, name)
            place = slice(start, start + np.size(old))
            if told[place].any():
                numbers = np.where(told[place], state[place], np.ravel(old))
                setattr(env, name, _like(old, numbers))
            start = place.stop

    def _left_open(self, env: gym.Env[Any, Any]) -> dict[bytes, list[np.ndarray]]:
        """Play at random, and return the states in which each observation of whole numbers was.

        There are none where an observation tells all of the state.
        """
        layout, inner = self._layout, env.unwrapped
        if layout is None or not layout.told.any() or layout.told.all():
            return {}
        if not (self._seen == self._seen.round()).all():
            return {}
        found: dict[bytes, list[np.ndarray]] = defaultdict(list)
        space, limit = deepcopy(env.action_space), step_limit(env)
        space.seed(0)
        left = limit
        observation, _ = env.reset(seed=0)
        for _ in range(MANY):
            state = self._joined({name: np.ravel(getattr(inner, name)) for name in self._names})
            found[flat(observation).tobytes()].append(state)
            observation, _, terminated, truncated, _ = env.step(space.sample())
            left -= 1
            if terminated or truncated or not left:
                observation, left = env.reset()[0], limit
        return found

    def _joined(self, record: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the numbers of all attributes in a row."""
        return np.concatenate([np.empty(0), *(record[name] for name in self._names)])


def _played(env: gym.Env[Any, Any]) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Play at random, and yield the attributes that are numbers with what is seen."""
    space = deepcopy(env.action_space)
    space.seed(0)
    for episode in range(EPISODES):
        observation, over = env.reset(seed=episode)[0], False
        for _ in range(STEPS):
            yield _numbers_of(env.unwrapped), flat(observation)
            if over:
                break
            observation, _, terminated, truncated, _ = env.step(space.sample())
            over = bool(terminated or truncated)


def _numbers_of(env: Any) -> dict[str, np.ndarray]:
    """Return the attributes that are numbers, arrays or rows of numbers."""
    found = {name: _numbers(value) for name, value in vars(env).items() if name != SEED}
    return {name: numbers for name, numbers in found.items() if numbers is not None}


def _numbers(value: Any) -> np.ndarray | None:
    """Return a value as a row of numbers, if it is made of these."""
    if type(value) in (list, tuple) and not all(isinstance(part, Real) for part in value):
        return None
    if not isinstance(value, Real | np.ndarray | np.generic | list | tuple):
        return None
    array = np.asarray(value).ravel()
    if array.dtype.kind not in "biuf" or not 0 < array.size <= MOST_NUMBERS:
        return None
    return array.astype(np.float64)


def _lasts(name: str, first: np.ndarray, records: Sequence[Mapping[str, np.ndarray]]) -> bool:
    """Whether an attribute is always there, of the same size, and not always the same."""
    rows = [record.get(name) for record in records]
    sizes = {None if row is None else row.size for row in rows}
    return sizes == {first.size} and any((row != first).any() for row in rows if row is not None)


def _like(old: Any, numbers: np.ndarray) -> Any:
    """Return numbers in the form of a value that they replace."""
    if isinstance(old, np.ndarray):
        return numbers.reshape(old.shape).astype(old.dtype)
    if isinstance(old, list | tuple):
        return type(old)(_like(*pair) for pair in zip(old, numbers, strict=True))
    return type(old)(numbers.item())
