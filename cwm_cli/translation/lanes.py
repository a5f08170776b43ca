"""A translated program as a batch: every operation is one of numpy, on all lanes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Unbatched
from cwm_cli.translation.emission import lanes
from cwm_cli.translation.expressions import TraceNode
from cwm_cli.translation.states import Trace

_UNKNOWN = "a lane does what only the program can"


class Lanes:
    """Steps many states at once, and refuses where the program has to answer."""

    def __init__(self, trace: Trace, observation_space: Space) -> None:
        self._components = tuple(observation_space.shape)
        self._dtype = np.float64 if observation_space.is_float else np.int64
        self._discrete = trace.discrete
        self._count = 0
        self._state: tuple[Any, ...] = ()
        entry = [] if trace.odd_entry is None else [trace.odd_entry]
        odd = [] if trace.odd is None else [trace.odd]
        outputs = [trace.reward, trace.terminated, *odd]
        inputs: Sequence[TraceNode] = [*trace.slots, *trace.action]
        self._odd = 2 if odd else None
        self._enter = lanes(trace, trace.observation, trace.entered, entry)
        self._quick = lanes(trace, inputs, trace.following, outputs)
        self._whole = lanes(trace, inputs, trace.following, [*outputs, *trace.observed])

    def stand(self, observations: np.ndarray) -> None:
        """Stand at observations: (components, lanes), or (lanes,) where they are one integer."""
        self._count = observations.shape[-1]
        given = observations.reshape(-1, self._count).astype(self._dtype)
        odd = self._done(self._enter, given)
        if odd and np.any(odd[0]):
            raise Unbatched(_UNKNOWN)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions; return observations, rewards (lanes,) and terminated (lanes,)."""
        reward, end, *rest = self._taken(self._whole, actions)
        observed = [self._wide(each) for each in (rest if self._odd is None else rest[1:])]
        if self._components:
            seen = np.stack(observed).astype(self._dtype, copy=False)
            seen = seen.reshape(*self._components, self._count)
        else:
            seen = observed[0]
        return seen, self._wide(reward).astype(float), self._wide(end).astype(bool)

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions; return rewards and terminated, either one value for all lanes or more."""
        reward, end, *_ = self._taken(self._quick, actions)
        return np.asarray(reward, float), np.asarray(end, bool)

    def keep(self, lanes: np.ndarray) -> None:
        """Go on with some lanes only, given by number or by a mask."""
        kept = np.flatnonzero(lanes) if lanes.dtype == bool else lanes
        self._count = len(kept)
        self._state = tuple(each.take(kept) if np.ndim(each) else each for each in self._state)

    def _taken(self, function: Callable[..., Any], actions: np.ndarray) -> tuple[Any, ...]:
        """Take actions; return what a function does beyond the state."""
        taken = [actions] if self._discrete else list(actions.reshape(-1, self._count))
        out = self._done(function, [*self._state, *taken])
        if self._odd is not None and np.any(out[self._odd]):
            raise Unbatched(_UNKNOWN)
        return out

    def _done(self, function: Callable[..., Any], inputs: Any) -> tuple[Any, ...]:
        """Run a function, which leaves another state behind."""
        try:
            with np.errstate(all="ignore"):
                state, out = function(*inputs)
        except Exception as error:  # noqa: BLE001  # numpy raises what it likes
            raise Unbatched(f"arrays cannot be computed with: {error}") from None
        self._state = tuple(
            each if isinstance(each, np.ndarray) else np.asarray(each)[()] for each in state
        )
        return tuple(out)

    def _wide(self, value: Any) -> np.ndarray:
        return value if np.ndim(value) else np.full(self._count, value)
