"""Set environments to an observation, by learning how observations depend on the state.

The environment is taken to many states. The numbers in its attributes, or in its MuJoCo
simulation, are compared with the numbers of its observations. No environment is recognised by its
name.
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
"""Methods that return the current observation."""

COPY_TOLERANCE = 1e-6
"""Maximum relative difference of equal numbers; large enough for float32 observations."""


@dataclass(frozen=True)
class ObservationLayout:
    """A map from observations to states, both flat: `base + weights @ (seen - shown)`.

    Attributes:
        base: A state; it provides the numbers that observations do not determine.
        shown: The observation of `base` in the linear map.
        weights: Weights, (state, observation).
        turns: Angles: the place in the state, and the places of cosine and sine in the observation.
        read: Mask of the numbers of an observation that are used.
        told: Mask of the numbers of the state that an observation determines.
    """

    base: np.ndarray
    shown: np.ndarray
    weights: np.ndarray
    turns: tuple[tuple[int, int, int], ...]
    read: np.ndarray
    told: np.ndarray

    @classmethod
    def copied(cls, states: np.ndarray, seen: np.ndarray) -> Self:
        """Learn which numbers of the state are copied to the observation."""
        pairs = _equal_columns(states, seen)
        weights = np.zeros((states.shape[1], seen.shape[1]))
        told, read = pairs.max(axis=1), pairs.max(axis=0, initial=False)
        weights[told, pairs.argmax(axis=1)[told]] = 1.0
        base = np.where(told, 0.0, states[-1])
        return cls._with_angles(states, seen, cls(base, 0 * seen[0], weights, (), read, told))

    @classmethod
    def linear(cls, base: np.ndarray, states: np.ndarray, seen: np.ndarray) -> Self:
        """Learn which observed numbers are linear in the state, and invert this map."""
        design = np.hstack([states - base, np.ones((len(states), 1))])
        # decimals of fitted weights, so that numbers that are copied to observations are read
        # exactly
        digits = 11
        slopes = np.linalg.lstsq(design, seen)[0].round(digits)
        # relative error of a linear fit; small, because it needs observations of float64
        linear_tolerance = 1e-8
        right = np.abs(design @ slopes - seen).max(axis=0) < linear_tolerance * (
            1 + np.abs(seen).max(axis=0)
        )
        jacobian, shown = slopes[:-1].T, slopes[-1]
        read = right & (np.abs(jacobian).max(axis=1) > COPY_TOLERANCE)
        weights = np.zeros((len(base), seen.shape[1]))
        weights[:, read] = np.linalg.pinv(jacobian[read], rcond=COPY_TOLERANCE).round(digits)
        told = np.abs(np.diag(weights @ jacobian) - 1) < COPY_TOLERANCE
        return cls._with_angles(states, seen, cls(base, shown, weights, (), read, told))

    @classmethod
    def _with_angles(cls, states: np.ndarray, seen: np.ndarray, found: ObservationLayout) -> Self:
        """Add angles whose cosine and sine are observed."""
        cosines, sines = _equal_columns(np.cos(states), seen), _equal_columns(np.sin(states), seen)
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
        """Return the state for an observation."""
        state: np.ndarray = self.base + self.weights @ (seen - self.shown)
        for angle, cosine, sine in self.turns:
            state[angle] = np.arctan2(seen[sine], seen[cosine])
        return state

    def to_json(self) -> dict[str, Any]:
        """Return the layout as JSON-like data; zero weights are left out."""
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
    """Return the numbers of an observation as a vector; a text becomes NaN."""
    if isinstance(observation, Mapping):
        observation = [observation[key] for key in sorted(observation)]
    if isinstance(observation, list | tuple):
        parts = [flat(part) for part in observation]
        return np.concatenate(parts) if parts else np.empty(0)
    array = np.asarray(observation).ravel()
    return array.astype(np.float64) if array.dtype.kind in "biuf" else np.full(array.size, np.nan)


def reader(env: Any) -> Callable[[], Any] | None:
    """Return the method of an environment that returns its observation, or None."""
    methods = (getattr(env, name, None) for name in READERS)
    return next((method for method in methods if _needs_no_arguments(method)), None)


def _needs_no_arguments(method: Any) -> bool:
    if not inspect.ismethod(method):
        return False
    parameters = inspect.signature(method).parameters.values()
    return all(
        parameter.default is not parameter.empty or "VAR" in parameter.kind.name
        for parameter in parameters
    )


def _equal_columns(states: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return a mask (state, observation) of numbers that are equal in all samples.

    Observed numbers that never change are equal to none.
    """
    pairs = np.zeros((states.shape[1], seen.shape[1]), dtype=np.bool_)
    changing = np.ptp(seen, axis=0) > 0 if len(seen) else np.zeros(seen.shape[1], np.bool_)
    for number, column in enumerate(states.T):
        apart = np.abs(seen - column[:, None])
        pairs[number] = changing & (apart <= COPY_TOLERANCE * (1 + np.abs(seen))).all(axis=0)
    return pairs


EXACT = 1e-9
"""Maximum error of the state after the previous step."""


class Simulation:
    """Sets positions, velocities and controls of MuJoCo to the values in an observation.

    Some rewards use values that MuJoCo leaves behind after a step, such as the position of a body
    at the last stage of the integrator. They depend on the previous step. If an observation
    contains the controls of that step, the step is found and taken again. The solver starts from
    its solution for the current state, which is close to its solution in the previous step.
    """

    def __init__(self, env: Any) -> None:
        self._model, self._data = env.model, env.data
        self._layout = self._learn_layout(env, np.random.default_rng(0))
        positions, controls = np.split(self._layout.told, [self._model.nq, -self._model.nu])[::2]
        self._has_positions = bool(positions.any())
        self._has_controls = bool(controls.all() and controls.size)

    def __call__(self, env: Any, observation: Any) -> bool:
        """Set the environment to an observation; return False if it does not contain the state."""
        layout, seen = self._layout, flat(observation)
        if not self._has_positions or seen.shape != layout.shown.shape:
            return False
        state = layout.state(seen)
        self._set(state)
        own = _observe(env)
        if not np.allclose(own[layout.read], seen[layout.read], rtol=1e-5, atol=1e-5):
            return False
        rest = ~layout.read
        if rest.any() and np.allclose(own[rest], seen[rest], rtol=EXACT, atol=EXACT):
            return True  # this is the start of an episode, without a previous step
        self._data.qacc_warmstart[:] = self._data.qacc
        if self._has_controls:
            self._repeat_previous_step(state)
        return True

    def layout_data(self) -> dict[str, Any] | None:
        """Return the layout as data, or None if an observation does not contain positions."""
        return {"attributes": None, **self._layout.to_json()} if self._has_positions else None

    def _learn_layout(self, env: Any, rng: np.random.Generator) -> ObservationLayout:
        """Compare random states with their observations."""
        mujoco.mj_resetData(self._model, self._data)
        base = self._state()
        states, seen = [], []
        spread = 0.1  # maximum random change of positions, velocities and controls in samples
        samples_per_number = 3  # samples per number of a state
        for _ in range(samples_per_number * (len(base) + 1)):
            self._set(base + rng.uniform(-spread, spread, len(base)))
            states.append(self._state())
            seen.append(_observe(env))
        return ObservationLayout.linear(base, np.array(states), np.array(seen))

    def _state(self) -> np.ndarray:
        """Return positions, velocities and controls as a vector."""
        return np.concatenate([self._data.qpos, self._data.qvel, self._data.ctrl])

    def _set(self, state: np.ndarray) -> None:
        """Set positions, velocities and controls, compute derived values, and reset the rest."""
        model, data = self._model, self._data
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = np.split(state, [model.nq, model.nq + model.nv])
        mujoco.mj_forward(model, data)

    def _repeat_previous_step(self, state: np.ndarray) -> None:
        """Find the state before `state`, and step from it; if there is none, only set `state`."""
        model, data = self._model, self._data
        qpos, qvel, _ = np.split(state, [model.nq, model.nq + model.nv])
        start, speed, apart = qpos.copy(), qvel.copy(), np.zeros(model.nv)
        warm = data.qacc_warmstart.copy()
        mujoco.mj_integratePos(model, start, -speed, model.opt.timestep)
        # rounds of the search for the previous step; longer searches do not succeed
        max_rounds = 150
        # the search halves its corrections after this number of rounds, because contacts overshoot
        rounds_before_halving = 30
        for number in range(max_rounds):
            data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = start, speed, warm
            mujoco.mj_step(model, data)
            mujoco.mj_differentiatePos(model, apart, 1.0, data.qpos, qpos)
            faster = qvel - data.qvel
            if max(np.abs(apart).max(), model.opt.timestep * np.abs(faster).max()) < EXACT:
                data.qpos[:], data.qvel[:] = qpos, qvel
                return
            share = 0.5 ** (number // rounds_before_halving)
            mujoco.mj_integratePos(model, start, apart, share)
            speed = speed + share * faster
        self._set(state)
        data.qacc_warmstart[:] = warm


def _observe(env: Any) -> np.ndarray:
    """Return the observation as a vector; empty if no method returns it."""
    read = reader(env)
    return flat(read()) if read else np.empty(0)


SEED = "_np_random_seed"
"""The attribute of Gymnasium with the seed of the generator, which is no part of the state."""

Hand = tuple[int, ...]

BLACKJACK, HIT = 21, 0.5
"""Maximum sum of a hand that may draw a card, and the probability of a draw in random play."""

TOLERANCE = 1e-5


class Restorer(Protocol):
    """A function that sets an environment to an observation."""

    def __call__(self, env: Any, observation: Any) -> bool:
        """Set the environment to an observation; return False if it does not contain the state."""


_RESTORERS: WeakKeyDictionary[Any, Restorer] = WeakKeyDictionary()


def restore(env: gym.Env[Any, Any], observation: Any) -> bool:
    """Set an environment to an observation.

    Parts of the state that the observation does not contain stay unchanged or become zero; a
    clipped speed is set to its clipped value. For observations of integers, these parts are drawn
    from the states that had the same observation in random play. The first call for an environment
    plays and resets it.

    Returns:
        False if the observation does not contain the state.
    """
    inner = env.unwrapped
    if inner not in _RESTORERS:
        _RESTORERS[inner] = _make_restorer(env)
        env.reset(seed=0)
    return _RESTORERS[inner](inner, observation)


def layout_data(env: gym.Env[Any, Any]) -> dict[str, Any] | None:
    """Return the layout of an environment as JSON-like data; this plays and resets it.

    Its key `attributes` has the names and sizes of the attributes of the state. It is None if the
    state consists of positions, velocities and controls of MuJoCo.

    Returns:
        None if observations do not contain the state.
    """
    restorer = _make_restorer(env)
    env.reset(seed=0)
    return None if isinstance(restorer, Hands) else restorer.layout_data()


def _make_restorer(env: gym.Env[Any, Any]) -> Simulation | Hands | StateAttributes:
    inner = env.unwrapped
    read = reader(inner)
    kinds = [type(getattr(inner, name, None)).__name__ for name in ("model", "data")]
    if read and kinds == ["MjModel", "MjData"]:
        return Simulation(inner)
    # attributes of a card game: lists of card values; the dealer's first card is visible
    hands = ("player", "dealer")
    if read and all(isinstance(getattr(inner, name, None), list) for name in hands):
        return Hands(inner, read)
    return StateAttributes(env)


class Hands:
    """Deals cards that match an observation, with the probabilities of random play.

    The hidden card of the dealer is drawn from the whole deck: it has no effect before the player
    is done.
    """

    def __init__(self, env: Any, read: Callable[[], Any]) -> None:
        from gymnasium.envs.toy_text.blackjack import deck

        self._deck = deck
        self._dealt: dict[tuple[float, ...], tuple[list[Hand], list[float]]] = {}
        cards = [(card, deck.count(card) / len(deck)) for card in sorted(set(deck))]
        hands: dict[Hand, float] = {(): 1.0}
        for count in range(1, BLACKJACK + 1):
            draw_probability = 1.0 if count <= 2 else HIT
            larger: dict[Hand, float] = defaultdict(float)
            for hand, chance in hands.items():
                for card, share in cards:
                    if sum(hand) + card <= BLACKJACK:
                        larger[tuple(sorted((*hand, card)))] += chance * share * draw_probability
            hands = larger
            for hand, chance in hands.items() if count > 1 else ():
                env.player = list(hand)
                same, sums = self._dealt.setdefault(self._player_view(flat(read())), ([], []))
                same.append(hand)
                sums.append(chance + (sums[-1] if sums else 0.0))

    def __call__(self, env: Any, observation: Any) -> bool:
        """Deal cards that match the observation; return False if no hand does."""
        seen = flat(observation)
        if seen.shape != (3,) or self._player_view(seen) not in self._dealt:
            return False
        hands, sums = self._dealt[self._player_view(seen)]
        rng = env.np_random
        env.player = list(hands[bisect(sums, rng.random() * sums[-1], hi=len(sums) - 1)])
        env.dealer = [int(seen[1]), self._deck[rng.integers(len(self._deck))]]
        return True

    @staticmethod
    def _player_view(seen: np.ndarray) -> tuple[float, ...]:
        """Return the part of an observation about the player's hand: sum and usable ace."""
        return float(seen[0]), float(seen[2])


class StateAttributes:
    """Sets the attributes whose numbers, or their cosine and sine, are in observations."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        records, seen = zip(*_play_randomly(env), strict=True)
        self._names = [
            name for name, first in records[0].items() if _is_state(name, first, records)
        ]
        self._sizes = [[name, int(records[0][name].size)] for name in self._names]
        states = np.array([self._to_vector(record) for record in records])
        self._seen = np.array(seen) if len({len(row) for row in seen}) == 1 else np.empty((0, 0))
        self._layout = ObservationLayout.copied(states, self._seen) if self._seen.size else None
        self._states_by_observation = self._find_ambiguous_states(env)

    def __call__(self, env: Any, observation: Any) -> bool:
        """Set the environment to an observation; return False if it does not contain the state."""
        layout, seen = self._layout, flat(observation)
        if layout is None or not layout.told.any() or seen.shape != layout.shown.shape:
            return False
        if not np.isfinite(seen).all():
            return False
        self._set(env, layout.state(seen), layout.told)
        if states := self._states_by_observation.get(seen.tobytes()):
            self._set(env, states[env.np_random.integers(len(states))], ~layout.told)
        read, others = reader(env), ~layout.read
        if read is None:
            return bool((self._seen[:, others] == seen[others]).all())
        own = flat(read())
        return own.shape == seen.shape and np.allclose(own, seen, TOLERANCE, TOLERANCE)

    def layout_data(self) -> dict[str, Any] | None:
        """Return the layout as data, or None if observations contain no part of the state."""
        if self._layout is None or not self._layout.told.any():
            return None
        return {"attributes": self._sizes, **self._layout.to_json()}

    def _set(self, env: Any, state: np.ndarray, told: np.ndarray) -> None:
        """Set the numbers of the state in the mask `told`; do not change other numbers."""
        start = 0
        for name in self._names:
            old = getattr(env, name)
            place = slice(start, start + np.size(old))
            if told[place].any():
                numbers = np.where(told[place], state[place], np.ravel(old))
                setattr(env, name, _like(old, numbers))
            start = place.stop

    def _find_ambiguous_states(self, env: gym.Env[Any, Any]) -> dict[bytes, list[np.ndarray]]:
        """Play randomly, and return the states that occurred with each observation of integers.

        The result is empty if an observation contains the full state.
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
        # random steps to find states with equal observations: a state that occurs once in 1,000
        # steps then occurs often enough to estimate its frequency
        random_steps = 50_000
        for _ in range(random_steps):
            state = self._to_vector({name: np.ravel(getattr(inner, name)) for name in self._names})
            found[flat(observation).tobytes()].append(state)
            observation, _, terminated, truncated, _ = env.step(space.sample())
            left -= 1
            if terminated or truncated or not left:
                observation, left = env.reset()[0], limit
        return found

    def _to_vector(self, record: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the numbers of all attributes as a vector."""
        return np.concatenate([np.empty(0), *(record[name] for name in self._names)])


def _play_randomly(env: gym.Env[Any, Any]) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Play randomly, and yield the numeric attributes and the observation of each step."""
    space = deepcopy(env.action_space)
    space.seed(0)
    episodes, steps = 8, 12  # random episodes, and steps of each
    for episode in range(episodes):
        observation, over = env.reset(seed=episode)[0], False
        for _ in range(steps):
            yield _numeric_attributes(env.unwrapped), flat(observation)
            if over:
                break
            observation, _, terminated, truncated, _ = env.step(space.sample())
            over = bool(terminated or truncated)


def _numeric_attributes(env: Any) -> dict[str, np.ndarray]:
    """Return the attributes that are numbers, arrays or sequences of numbers, as vectors."""
    found = {name: _numbers(value) for name, value in vars(env).items() if name != SEED}
    return {name: numbers for name, numbers in found.items() if numbers is not None}


def _numbers(value: Any) -> np.ndarray | None:
    """Return a numeric value as a vector; None for other values."""
    if type(value) in (list, tuple) and not all(isinstance(part, Real) for part in value):
        return None
    if not isinstance(value, Real | np.ndarray | np.generic | list | tuple):
        return None
    array = np.asarray(value).ravel()
    max_numbers = 2_000  # attributes with more numbers than this are no part of the state
    if array.dtype.kind not in "biuf" or not 0 < array.size <= max_numbers:
        return None
    return array.astype(np.float64)


def _is_state(name: str, first: np.ndarray, records: Sequence[Mapping[str, np.ndarray]]) -> bool:
    """Return whether an attribute always exists, has a constant size, and changes."""
    rows = [record.get(name) for record in records]
    sizes = {None if row is None else row.size for row in rows}
    return sizes == {first.size} and any((row != first).any() for row in rows if row is not None)


def _like(old: Any, numbers: np.ndarray) -> Any:
    """Return numbers in the type and shape of the value that they replace."""
    if isinstance(old, np.ndarray):
        return numbers.reshape(old.shape).astype(old.dtype)
    if isinstance(old, list | tuple):
        return type(old)(_like(*pair) for pair in zip(old, numbers, strict=True))
    return type(old)(numbers.item())
