"""A model that steps a program in a process of its own, and records each reported step.

The planner that uses it runs outside the sandbox. States stay in the process of the program, where
`confined.SteppingHandler` steps it, and are identified by numbers (places).
"""

from __future__ import annotations

import secrets
import time
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise
from math import inf
from struct import error as StructError
from typing import Any, NamedTuple, Self

import numpy as np

from cwm_cli.errors import CwmError
from cwm_cli.planning.model import (
    LARGEST,
    Counter,
    EpisodeHistory,
    Here,
    Model,
    PossibleStep,
    Step,
    key,
)
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.job import MOST_OUTCOMES, abilities_of
from cwm_cli.worlds.messages import (
    NO_PLACE,
    NO_STATE,
    SIZE,
    STEPPED,
    STEPPING,
    Codec,
    PlanningJob,
    StartKind,
    SteppingJob,
    SteppingReply,
    SteppingRequest,
    decode_outcomes,
    is_deterministic,
    states_of,
)

AGREEMENT = 1e-5
"""Relative and absolute tolerance between a translated form and its program."""

NO_PLAN = Failure(
    kind="wrong_output",
    message="the program tampered with its process, which returned no plan",
)


class ProgramFailed(Exception):
    """The program failed, or ended its process, before it replied."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class OutOfTime(Exception):
    """The deadline of a model has passed."""


class TamperingError(CwmError):
    """A result of a program differs when it is repeated or checked.

    Args:
        reason: The difference; the message adds the consequence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: the results are discarded; do not use this program")

    @classmethod
    def of_reply(cls, fault: str) -> Self:
        """Return the error for a reply that no process of an honest program returns."""
        return cls(f"the program tampered with its process, which returned a reply {fault}")


class ReportedStep(NamedTuple):
    """A transition that the program reported.

    Args:
        observation: The observation before the step.
        action: The action.
        step: The result.
        start: The place before the step, for programs with memory.
        end: The place after the step, for programs with memory.
        probability: The probability of the result, if the program lists all possible results.
    """

    observation: Any
    action: Any
    step: Step
    start: int = NO_PLACE
    end: int = NO_PLACE
    probability: float | None = None


class _PlaceReference(int):
    """The number of a place, which is appended to `dropped` after the last use of this object."""

    dropped: list[int]

    def __del__(self) -> None:
        self.dropped.append(int(self))


class ReportedPath(NamedTuple):
    """The history of an episode, and the steps that a program with memory took from its end."""

    history: EpisodeHistory
    steps: list[ReportedStep]


class SteppingStart(NamedTuple):
    """A start state of the program.

    Args:
        kind: How the state is sent to the program.
        place: The number of the place, if it has one. The end of a history has no number yet.
        observation: The observation.
        history: The history that leads to the state, if `kind` is HISTORY.
    """

    kind: StartKind
    place: int
    observation: Any
    history: EpisodeHistory | None = None

    @classmethod
    def of(cls, state: Any) -> SteppingStart:
        """Return the start for a state of a planner, from a `Moment` or from `here`."""
        if isinstance(state, EpisodeHistory):
            return cls(StartKind.HISTORY, 0, state.observations[-1], state)
        if not isinstance(state, Here):
            return cls(StartKind.OBSERVED, 0, state)
        if state.state is None:
            return cls(StartKind.STATELESS, 0, state.observation)
        return cls(StartKind.PLACE, state.state, state.observation)


class PlayedActions(NamedTuple):
    """The actions of one request, and the return that the program reported for them.

    `before` are the actions between `start` and these actions.
    """

    start: SteppingStart
    before: list[Any]
    actions: list[Any]
    discount: float
    returned: float


class RandomGame(NamedTuple):
    """Random legal moves of one request, and the gain that the program reported for them.

    `before` are the actions between the observation and these moves.
    """

    observation: Any
    before: list[Any]
    seed: int
    limit: int
    gain: float


class RemoteModel(Model):
    """A model that requests each step from a program in a process of its own.

    It behaves like the model of a planner inside the process of the program, uses the same form,
    and records reported steps in `reported` and returns in `played`. `requested` counts the
    requested steps, including those after the end of an episode.

    Methods raise `ProgramFailed` if the program fails, `TamperingError` if a reply is impossible,
    and `OutOfTime` after `deadline` (of `time.monotonic`).
    """

    deadline: float = inf

    def __init__(self, sandbox: Sandbox, job: PlanningJob | SteppingJob) -> None:
        names = [field.name for field in fields(SteppingJob)]
        stepping = SteppingJob(**{name: getattr(job, name) for name in names})
        self.action_space, self.turn = job.action_space, job.turn
        self.deterministic = is_deterministic(job)
        self.remembers = self.hides = abilities_of(job.program).remembers
        self.tells = abilities_of(job.program).tells and not self.remembers
        self.counter: Counter = [0]
        self.examples = job.examples
        self.requested = 0
        self.reported: list[ReportedStep] = []
        self.played: list[PlayedActions] = []
        self.random_games: list[RandomGame] = []
        self._observations = Codec(job.observation_space, "observations")
        self._actions = Codec(job.action_space, "actions")
        self._histories = states_of(job)
        self._choices = job.action_space.count if job.action_space.kind == "discrete" else 0
        # The current state of this model: `_since` are the actions after `_start`. The program is
        # in this state only if `_is_current`; otherwise it moves there before the next request.
        self._start = SteppingStart(StartKind.CURRENT, 0, None)
        self._since: list[Any] = []
        self._is_current = True
        self._observation: Any = None
        self._stood: Any = None
        self._here: Any = None
        self._place = NO_PLACE
        self._last_played: tuple[Any, list[Any]] = None, []
        self._ahead: deque[tuple[Any, SteppingReply]] = deque()
        self._is_loaded = self._is_anew = False
        self._held, self._dropped = defaultdict[int, int](int), list[int]()
        self._arrivals: dict[int, ReportedStep] = {}
        self._roots: dict[int, EpisodeHistory] = {}
        self._process = sandbox.converse(stepping, side=1)

    @property
    def memoryless(self) -> Model:
        """The same model, but set to its last observation before every step."""
        if not self._is_anew:
            self._request(SteppingRequest.ANEW)
            self._is_anew = True
        return self

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed the random numbers of the program with a key."""
        super().draw_from(key)
        numbers = (StartKind.CURRENT, 0, 0, len(self.drawn_from), 0)
        self._request(SteppingRequest.SEED, np.array(self.drawn_from, "<u8").tobytes(), numbers)

    def legal(self) -> tuple[int, ...] | None:
        """Return the legal actions in the current state, None if the program lists none."""
        [reply] = self._request_steps(SteppingRequest.LEGAL)
        return reply.valid

    def player(self) -> int:
        """Return the player to move in the last observation."""
        return int(self._observation[self.turn])

    def play_randomly(self, seed: int, limit: int) -> float:
        """Play random legal moves in the process of the program, in one request."""
        data = self._request_here(SteppingRequest.PLAY_RANDOMLY, (), limit, float(seed))
        [reply] = self._read(data, 0, limit)
        self.requested += reply.steps - limit
        self.counter[0] += reply.steps
        self._is_current = False
        game = RandomGame(self._start.observation, self._since[:], seed, limit, reply.reward)
        self.random_games.append(game)
        return reply.reward

    def repeat_random_game(self, game: RandomGame) -> None:
        """Play random moves again, one by one, so that their steps are among the reported ones.

        Raises:
            TamperingError: If the gain differs from the reported one.
        """
        self.stand(game.observation)
        for action in game.before:
            self.step(action)
        if (total := super().play_randomly(game.seed, game.limit)) != game.gain:
            words = f"gain {game.gain:.6g}, but single steps give {total:.6g}"
            raise TamperingError(f"the program reported that random moves {words}")

    def outcomes(self, action: Any) -> list[PossibleStep] | None:
        """Return all possible results of an action, or None if the program does not list them."""
        return self._possible(SteppingRequest.OUTCOMES, action, 0) if self.tells else None

    def sample_outcomes(self, action: Any, times: int) -> list[PossibleStep]:
        """Return the results of `times` random draws of an action."""
        return self._possible(SteppingRequest.DRAW, action, times)

    def forget(self) -> None:
        """Delete all records, and all places in the process of the program."""
        self.reported, self.played, self.random_games, self._is_anew = [], [], [], False
        self._arrivals, self._roots = {}, {}
        self._held, self._dropped = defaultdict(int), []
        self._ahead.clear()
        self._request(SteppingRequest.FORGET)

    def stand(self, state: Any) -> None:
        """Set the state: an observation, a history, or a result of `here`."""
        # Replies that arrived ahead are valid only from the state where the model is now.
        if state is not self._here:
            self._ahead.clear()
        self._start, self._since, self._is_current = SteppingStart.of(state), [], False
        self._observation, self._here = self._start.observation, state if self._ahead else None
        self._stood, self._place = state, int(self._start.place)

    def here(self) -> Any:
        """Return the current state, for `stand`."""
        if self._here is None:
            [reply] = self._request_steps(SteppingRequest.HERE)
            self._move_to(reply)
            if self._start.history is not None:
                self._roots[int(reply.place)] = self._start.history
        return self._here

    def agree(self, one: Any, other: Any) -> bool:
        """Return whether two states are the same except for rounding; True without memory."""
        if not self.remembers:
            return True
        starts = self._encode_starts([SteppingStart.of(one), SteppingStart.of(other)])
        data = self._request(SteppingRequest.AGREE, starts, (StartKind.PLACE, 0, 2, 0, 0))
        [reply] = self._read(data, 0, 0)
        return reply.reward == 1

    def step(self, action: Any) -> Step:
        """Take an action."""
        before = self._observation
        if self._since or not (self._ahead and key(self._ahead[0][0]) == key(action)):
            # A planner often takes single actions that it has just played from here. Request these
            # actions together, and keep the replies to the later actions in `_ahead`.
            where, actions = self._last_played
            continues = self.deterministic and not self._since and self._stood is where
            continues = continues and key(actions[0]) == key(action)
            actions = actions if continues else [action]
            replies = self._request_steps(SteppingRequest.WALK, actions, restores=continues)
            self._ahead = deque(zip(actions, replies, strict=False))
        _, reply = self._ahead.popleft()
        self._is_current = not self._ahead and self._is_current
        self.counter[0] += 1
        start = self._place
        self._move_to(reply)
        self._since.append(action)
        step = Step(self._observation, reply.reward, reply.terminated, reply.valid)
        reported = ReportedStep(before, action, step, start, int(reply.place))
        self._record_arrival(reported)
        self.reported.append(reported)
        return step

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until the episode ends; return the discounted sum of rewards."""
        taken = list(actions)
        if not taken:
            return 0.0
        [reply] = self._request_steps(SteppingRequest.PLAY, taken, discount)
        self.counter[0] += reply.steps
        self._is_current = False
        self._last_played = self._here if self._since else self._stood, taken
        self.played.append(
            PlayedActions(self._start, self._since[:], taken, discount, reply.reward)
        )
        return reply.reward

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the sums of rewards (states, plans) of plans from each state."""
        starts = [SteppingStart.of(state) for state in states]
        body = self._encode_starts(starts) + plans.astype(self._actions.dtype).tobytes()
        several, count, length = plans.shape[:3]
        numbers = (starts[0].kind, 0, several, count, length)
        data = self._request(SteppingRequest.RETURNS, body, numbers, draws)
        [head] = self._read(data[: STEPPED.size], 0, several * count * length * max(draws, 1))
        returns = np.frombuffer(data[STEPPED.size :], "<f8")
        if len(returns) != several * count or not (np.abs(returns) < LARGEST).all():
            raise TamperingError.of_reply("without returns")
        self.counter[0] += head.steps
        table = returns.reshape(several, count)
        # The best plan and a random one can be checked later.
        for start, own_plans, totals in zip(starts, plans, table, strict=True):
            for index in {int(totals.argmax()), secrets.randbelow(count)}:
                actions = self.action_space.unflatten(own_plans[index])
                self.played.append(PlayedActions(start, [], actions, 1.0, float(totals[index])))
        return table

    def step_all(
        self, observations: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take an action in each state; a few random ones of these steps can be checked later."""
        size, count = observations.shape
        states = observations.T.astype("<f8").tobytes()
        numbers = (StartKind.OBSERVED, len(states), count, len(actions), 0)
        encoded = actions.astype(self._actions.dtype).tobytes()
        body, taken = states + encoded, self.action_space.unflatten(actions)
        data = self._request(SteppingRequest.STEP_ALL, body, numbers, max_steps=count)
        [head] = self._read(data[: STEPPED.size], 0, count)
        if len(data) != STEPPED.size + count * (8 * size + 9):
            raise TamperingError.of_reply("without all states")
        found: np.ndarray = np.frombuffer(data, "<f8", count * size, STEPPED.size)
        rewards: np.ndarray = np.frombuffer(data[STEPPED.size + found.nbytes :], "<f8", count)
        ends: np.ndarray = np.frombuffer(data[-count:], np.bool_)
        found = found.reshape(count, size)
        self.counter[0] += head.steps
        self._is_current = False
        for lane in {secrets.randbelow(count) for _ in range(20)}:
            step = Step(found[lane].copy(), float(rewards[lane]), bool(ends[lane]))
            action = taken[lane % len(taken)]
            self.reported.append(ReportedStep(observations[:, lane].copy(), action, step))
        return found.T, rewards, ends

    def _possible(self, request: SteppingRequest, action: Any, draws: int) -> list[PossibleStep]:
        """Request the results of an action from the current state, and record them."""
        before, size = self._observation, self._observations.size
        data = self._request_here(request, [action], draws, max_steps=draws or MOST_OUTCOMES)
        [head] = self._read(data[: STEPPED.size], 0, draws or 1)
        try:
            replies = decode_outcomes(data[STEPPED.size :], size)
        except (ValueError, StructError) as error:
            raise TamperingError.of_reply(f"with {error}") from error
        results = []
        for share, reply in replies:
            observation = self._decode_observation(reply)
            step = Step(observation, reply.reward, reply.terminated, reply.valid)
            results.append(PossibleStep(share, step, self._state_of(reply, observation)))
        self.counter[0] += head.steps
        self._is_current = not draws and self._is_current
        recorded = results
        if draws:
            # Record one result, with the probability of a draw: if all were recorded, rare results
            # would be checked too often, though they are unlikely to be drawn again.
            number = secrets.SystemRandom().random()
            sums = list(accumulate(share for share, _ in replies))
            recorded = results[min(bisect(sums, number * sums[-1]), len(results) - 1) :][:1]
        self.reported += [
            ReportedStep(
                before, action, result.step, probability=None if draws else result.probability
            )
            for result in recorded
        ]
        return results

    def replay(self, played: PlayedActions) -> list[ReportedStep]:
        """Take played actions again, one by one, and return their steps.

        Raises:
            TamperingError: If their return differs from the reported one.
        """
        start, begin = played.start, len(played.before)
        self._start, self._since, self._is_current = start, [], False
        actions = [*played.before, *played.actions]
        replies = self._request_steps(SteppingRequest.WALK, actions)
        self._is_current = False
        # The return counts the rewards after `before`; the episode may have ended early.
        weights = played.discount ** np.arange(len(replies))
        rewards = np.array([reply.reward for reply in replies[begin:]])
        total = float(rewards @ weights[: len(rewards)])
        if abs(total - played.returned) > AGREEMENT * (1 + np.abs(rewards).sum()):
            words = f"have the return {played.returned:.6g}, but single steps give {total:.6g}"
            raise TamperingError(f"the program reported that {len(played.actions)} actions {words}")
        observations = [start.observation, *map(self._decode_observation, replies)]
        places = [int(start.place), *(int(reply.place) for reply in replies)]
        steps = []
        for (before, after), action, reply, ends in zip(
            pairwise(observations), actions, replies, pairwise(places), strict=False
        ):
            step = Step(after, reply.reward, reply.terminated, reply.valid)
            steps.append(ReportedStep(before, action, step, *ends))
            self._record_arrival(steps[-1])
        return steps[begin:]

    def path_to(self, reported: ReportedStep) -> ReportedPath:
        """Return the path from the end of an episode's history through a reported step."""
        steps = [reported]
        while steps[-1].start not in self._roots:
            steps.append(self._arrivals[steps[-1].start])
        return ReportedPath(self._roots[steps[-1].start], steps[::-1])

    def is_root(self, place: int) -> bool:
        """Return whether a place is the end of an episode's history."""
        return place in self._roots

    def _record_arrival(self, reported: ReportedStep) -> None:
        if self.remembers:
            # Only the first arrival at a place: later ones could make `path_to` a circle.
            self._arrivals.setdefault(reported.end, reported)

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _move_to(self, reply: SteppingReply) -> None:
        """Set the state of this model to the state in a reply."""
        self._place = int(reply.place)
        self._observation = self._decode_observation(reply)
        self._here = self._state_of(reply, self._observation)

    def _state_of(self, reply: SteppingReply, observation: Any) -> Any:
        if reply.place == NO_PLACE:
            return observation
        return Here(observation, None if reply.place == NO_STATE else reply.place)

    def _decode_observation(self, reply: SteppingReply) -> Any:
        return self._observations.decode(reply.observation, 1)[0]

    def _request_steps(
        self,
        request: SteppingRequest,
        actions: Sequence[Any] = (),
        discount: float = 1.0,
        *,
        restores: bool = False,
    ) -> list[SteppingReply]:
        """Send a request for the current state; return one reply for each action."""
        data = self._request_here(request, actions, restores, discount)
        size = 0 if request == SteppingRequest.PLAY else self._observations.size
        return self._read(data, size, len(actions))

    def _request_here(
        self,
        request: SteppingRequest,
        actions: Sequence[Any],
        length: int,
        discount: float = 1.0,
        *,
        max_steps: int = 1,
    ) -> bytes:
        """Send a request for the current state, after the program has moved there."""
        # The nested request must not repeat these actions, so they are taken out first.
        since, self._since = self._since, []
        if since and not self._is_current:
            self._request_steps(SteppingRequest.WALK, since)
        self._since = since
        is_current = self._is_current or bool(since)
        kind = StartKind.CURRENT if is_current else self._start.kind
        body = b"" if is_current else self._encode_starts([self._start])
        numbers = kind, len(body), not is_current, len(actions), length
        body += self._actions.encode(actions)
        data = self._request(request, body, numbers, discount, max_steps=max_steps)
        self._is_current = True
        return data

    def _encode_starts(self, starts: Sequence[SteppingStart]) -> bytes:
        """Return the bytes of starts of the same kind."""
        match starts[0].kind:
            case StartKind.PLACE:
                return np.array([start.place for start in starts], "<u8").tobytes()
            case StartKind.HISTORY:
                histories = [start.history for start in starts]
                self.requested += sum(len(history.actions) for history in histories if history)
                return self._histories.encode([0] * len(starts), histories)
        return self._observations.encode([start.observation for start in starts])

    def _read(self, data: bytes, size: int, requested: int) -> list[SteppingReply]:
        """Return the replies to a request for a number of steps; observations have `size` bytes."""
        try:
            replies = SteppingReply.decode(data, size)
        except (ValueError, StructError) as error:
            raise TamperingError.of_reply(f"with {error}") from error
        self.requested += requested
        # A program cannot invent steps or leave out steps without being noticed here.
        counts, least = [reply.steps for reply in replies], min(1, requested)
        if not (replies and least <= sum(counts) <= requested and min(counts) >= least):
            raise TamperingError.of_reply(f"with {sum(counts):,} steps instead of {requested:,}")
        if not all(-LARGEST < reply.reward < LARGEST for reply in replies):
            raise TamperingError.of_reply("with rewards that are not finite")
        if not self.remembers:
            return replies
        # Keep each place in the process for as long as its number is in use here.
        for index, reply in enumerate(replies):
            if reply.place >= 0:
                self._held[reply.place] += 1
                place = _PlaceReference(reply.place)
                place.dropped = self._dropped
                replies[index] = reply._replace(place=place)
        return replies

    def _request(
        self,
        request: SteppingRequest,
        body: bytes = b"",
        numbers: tuple[int, int, int, int, int] = (StartKind.CURRENT, 0, 0, 0, 0),
        discount: float = 1.0,
        *,
        max_steps: int = 1,
    ) -> bytes:
        """Send a request, and return the bytes of the reply.

        Args:
            request: The request.
            body: The encoded states and actions.
            numbers: The kind of start and the four numbers of `STEPPING`.
            discount: The last number of `STEPPING`.
            max_steps: The maximum number of steps per action in the reply.
        """
        if time.monotonic() > self.deadline:
            raise OutOfTime
        # Delete unused places, as each is a copy of the program's memory; in batches, as each
        # request takes a round trip.
        if len(self._dropped) >= 500:
            numbers_dropped, self._dropped[:] = self._dropped[:], []
            for number in numbers_dropped:
                self._held[number] -= 1
            free = [number for number in set(numbers_dropped) if not self._held[number]]
            places = np.array(free, "<u8").tobytes()
            self._request(SteppingRequest.FREE, places, (StartKind.CURRENT, 0, 0, len(free), 0))
        head = STEPPING.pack(request, *numbers, discount)
        _, _, several, count, _ = numbers
        process = self._process
        try:
            process.send(SIZE.pack(len(head) + len(body)) + head + body, brief=self._is_loaded)
            [size] = SIZE.unpack(process.receive(SIZE.size))
            # The longest honest reply bounds the memory that a program can make this process use.
            step = STEPPED.size + self._observations.size + 8 * self._choices
            limit = (step + 8) * max(1, count) * max_steps
            if size > limit + 8 * several * count + 2 * STEPPED.size:
                raise TamperingError.of_reply(f"with {size:,} bytes")
            reply = process.receive(size)
        except EOFError:
            raise ProgramFailed(process.failure()) from None
        process.rest()
        self._is_loaded = True
        return reply
