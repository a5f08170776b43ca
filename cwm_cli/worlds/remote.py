"""A program in a process of its own that is asked from here for every step, and noted.

Who asks it is a planner on the trusted side. States are told as places, by number.
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
from typing import Any, NamedTuple

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
)
from cwm_cli.sandbox.abilities import abilities_of
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.job import MOST_OUTCOMES
from cwm_cli.worlds.messages import (
    NO_PLACE,
    NO_STATE,
    SIZE,
    STEPPED,
    STEPPING,
    Ask,
    Codec,
    PlanningJob,
    Stand,
    SteppingJob,
    SteppingReply,
    decode_outcomes,
    is_deterministic,
    states_of,
)

MOST_DROPPED = 500
"""Places that nobody needs any more before the program is told so."""

AGREEMENT = 1e-5
"""Relative and absolute: what a translation may differ by from its program."""


NO_PLAN = Failure(
    kind="wrong_output",
    message="the program tampered with its process, which returned no plan",
)


class Broke(Exception):
    """The program ended or failed while it was asked."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class OutOfTime(Exception):
    """The program did not answer before the deadline of the model."""


class Forged(CwmError):
    """What a program said is not what it says when that is checked."""


MEDDLED = "the program tampered with its process, which returned a reply"
INSTEAD = "the results are discarded; do not use this program"


class ToldStep(NamedTuple):
    """A transition that the program told of; what followed is a step.

    Of a program with memory it leads from a place, by number, to another one. One that tells
    all that can follow told of it with a probability.
    """

    observation: Any
    action: Any
    step: Step
    start: int = NO_PLACE
    end: int = NO_PLACE
    probability: float | None = None


class HeldPlace(int):
    """The number of a place, of which it is noted when nobody needs it any more."""

    dropped: list[int]

    def __del__(self) -> None:
        self.dropped.append(int(self))


class ToldPath(NamedTuple):
    """What happened in an episode, and steps that a program with memory told of from there."""

    history: EpisodeHistory
    steps: list[ToldStep]


class Footing(NamedTuple):
    """Where a program is to stand, in which way of `Stand`: a place by number, an observation.

    What a history leads to has no number yet.
    """

    way: Stand
    place: int
    observation: Any
    history: EpisodeHistory | None = None

    @classmethod
    def of(cls, state: Any) -> Footing:
        """Read a state that a planner has, from a question or from `here`."""
        if isinstance(state, EpisodeHistory):
            return cls(Stand.FOLLOWED, 0, state.observations[-1], state)
        if not isinstance(state, Here):
            return cls(Stand.OBSERVED, 0, state)
        if state.state is None:
            return cls(Stand.STATELESS, 0, state.observation)
        return cls(Stand.NAMED, state.state, state.observation)


class PlayedActions(NamedTuple):
    """Actions that were taken at once after others, from where, and what they return."""

    start: Footing
    before: list[Any]
    actions: list[Any]
    discount: float
    returned: float


class RemoteModel(Model):
    """A program in a process of its own, which is asked from here for every step.

    It takes the same course as the model beside a planner in the process of the program, in the
    same form, and notes what it is told. `asked` counts steps also beyond the ends of episodes.
    `Broke` when the program fails, `Forged` when it answers what cannot be, `OutOfTime` when it
    is asked after `deadline` (as `time.monotonic` counts).
    """

    deadline: float = inf

    def __init__(self, sandbox: Sandbox, job: PlanningJob | SteppingJob) -> None:
        names = [each.name for each in fields(SteppingJob)]
        stepping = SteppingJob(**{name: getattr(job, name) for name in names})
        self.action_space = job.action_space
        self.deterministic = is_deterministic(job)
        self.remembers = self.hides = abilities_of(job.program).remembers
        self.tells = abilities_of(job.program).tells and not self.remembers
        self.counter: Counter = [0]
        self.asked = 0
        self.told: list[ToldStep] = []
        self.played: list[PlayedActions] = []
        self._observations = Codec(job.observation_space, "observations")
        self._actions = Codec(job.action_space, "actions")
        self._histories = states_of(job)
        self._choices = job.action_space.count if job.action_space.kind == "discrete" else 0
        self._start = Footing(Stand.THERE, 0, None)
        self._since: list[Any] = []
        self._is_there = True
        self._seen: Any = None
        self._stood: Any = None
        self._here: Any = None
        self._last: tuple[Any, list[Any]] = None, []
        self._ahead: deque[tuple[Any, SteppingReply]] = deque()
        self._is_loaded = self._is_anew = False
        self._at = NO_PLACE
        self._held, self._dropped = defaultdict[int, int](int), list[int]()
        self._led: dict[int, ToldStep] = {}
        self._roots: dict[int, EpisodeHistory] = {}
        self._process = sandbox.converse(stepping, side=1)

    @property
    def memoryless(self) -> Model:
        """The same model, whose program is stood at its last observation before every step now."""
        if not self._is_anew:
            self._ask(Ask.ANEW)
            self._is_anew = True
        return self

    def draw_from(self, key: Sequence[int]) -> None:
        """Have what chance decides follow from a key."""
        super().draw_from(key)
        numbers = (Stand.THERE, 0, 0, len(self.drawn_from), 0)
        self._ask(Ask.BEGIN, np.array(self.drawn_from, "<u8").tobytes(), numbers)

    def outcomes(self, action: Any) -> list[PossibleStep] | None:
        """Return all that the program says may follow an action, None where it does not say."""
        return self._possible(Ask.OUTCOMES, action, 0) if self.tells else None

    def sample_outcomes(self, action: Any, times: int) -> list[PossibleStep]:
        """Return what so many draws of an action lead to."""
        return self._possible(Ask.DRAWN, action, times)

    def forget(self) -> None:
        """Forget what was told, and where that was."""
        self.told, self.played, self._is_anew = [], [], False
        self._led, self._roots = {}, {}
        self._held, self._dropped = defaultdict(int), []
        self._ahead.clear()
        self._ask(Ask.FORGET)

    def stand(self, state: Any) -> None:
        """Stand at an observation, or where `here` said."""
        if state is not self._here:
            self._ahead.clear()
        self._start, self._since, self._is_there = Footing.of(state), [], False
        self._seen, self._here = self._start.observation, state if self._ahead else None
        self._stood, self._at = state, int(self._start.place)

    def here(self) -> Any:
        """Return what leads `stand` back to where the model stands."""
        if self._here is None:
            [reply] = self._stepped(Ask.HERE)
            self._note(reply)
            if self._start.history is not None:
                self._roots[int(reply.place)] = self._start.history
        return self._here

    def agree(self, one: Any, other: Any) -> bool:
        """Whether two places are the same, but for rounding; only of a memory there is a doubt."""
        if not self.remembers:
            return True
        places = self._footings([Footing.of(one), Footing.of(other)])
        [reply] = self._read(self._ask(Ask.AGREE, places, (Stand.NAMED, 0, 2, 0, 0)), 0, 0)
        return reply.reward == 1

    def step(self, action: Any) -> Step:
        """Take an action; those that were played from here before are taken along with it."""
        before = self._seen
        if self._since or not (self._ahead and self._ahead[0][0] == action):
            where, actions = self._last
            along = self.deterministic and not self._since and self._stood is where
            along = along and actions[0] == action
            actions = actions if along else [action]
            replies = self._stepped(Ask.WALK, actions, stands=along)
            self._ahead = deque(zip(actions, replies, strict=False))
        _, reply = self._ahead.popleft()
        self._is_there = not self._ahead and self._is_there
        self.counter[0] += 1
        start = self._at
        self._note(reply)
        self._since.append(action)
        step = Step(self._seen, reply.reward, reply.terminated, reply.valid)
        self.told.append(self._led_to(ToldStep(before, action, step, start, int(reply.place))))
        return step

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        taken = list(actions)
        if not taken:
            return 0.0
        [reply] = self._stepped(Ask.PLAY, taken, discount)
        self.counter[0] += reply.steps
        self._is_there = False
        self._last = self._here if self._since else self._stood, taken
        self.played.append(
            PlayedActions(self._start, self._since[:], taken, discount, reply.reward)
        )
        return reply.reward

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the sums of rewards, up to the end of the episode, of plans from each state."""
        starts = [Footing.of(state) for state in states]
        body = self._footings(starts) + plans.astype(self._actions.dtype).tobytes()
        several, count, length = plans.shape[:3]
        data = self._ask(Ask.RETURNS, body, (starts[0].way, 0, several, count, length), draws)
        [head] = self._read(data[: STEPPED.size], 0, several * count * length * max(draws, 1))
        returns = np.frombuffer(data[STEPPED.size :], "<f8")
        if len(returns) != several * count or not (np.abs(returns) < LARGEST).all():
            raise Forged(f"{MEDDLED} without returns: {INSTEAD}")
        self.counter[0] += head.steps
        found = returns.reshape(several, count)
        for start, tried, totals in zip(starts, plans, found, strict=True):
            for place in {int(totals.argmax()), secrets.randbelow(count)}:
                actions = list(tried[place].copy())
                self.played.append(PlayedActions(start, [], actions, 1.0, float(totals[place])))
        return found

    def _possible(self, ask: Ask, action: Any, times: int) -> list[PossibleStep]:
        """Ask what can follow an action from where the model stands, and note it."""
        before, size = self._seen, self._observations.size
        data = self._asked(ask, [action], times, most=times or MOST_OUTCOMES)
        [head] = self._read(data[: STEPPED.size], 0, times or 1)
        try:
            told = decode_outcomes(data[STEPPED.size :], size)
        except (ValueError, StructError) as error:
            raise Forged(f"{MEDDLED} with {error}: {INSTEAD}") from error
        found = []
        for share, reply in told:
            seen = self._observation(reply)
            step = Step(seen, reply.reward, reply.terminated, reply.valid)
            found.append(PossibleStep(share, step, self._place_of(reply, seen)))
        self.counter[0] += head.steps
        self._is_there = not times and self._is_there
        noted = found
        if times:  # one, drawn as it was there: the rare ones are not the likeliest to come again
            number = secrets.SystemRandom().random()
            sums = list(accumulate(share for share, _ in told))
            noted = found[min(bisect(sums, number * sums[-1]), len(found) - 1) :][:1]
        chances = [None if times else each.probability for each in noted]
        self.told += [
            ToldStep(before, action, each.step, probability=chance)
            for each, chance in zip(noted, chances, strict=True)
        ]
        return found

    def walk(self, tried: PlayedActions) -> list[ToldStep]:
        """Take actions once more, one by one; `Forged` when they return something else."""
        start, begin = tried.start, len(tried.before)
        self._start, self._since, self._is_there = start, [], False
        actions = [*tried.before, *tried.actions]
        replies = self._stepped(Ask.WALK, actions)
        self._is_there = False
        seen = [start.observation, *(self._observation(reply) for reply in replies)]
        weights = tried.discount ** np.arange(len(replies))
        rewards = np.array([reply.reward for reply in replies[begin:]])
        total = float(rewards @ weights[: len(rewards)])
        if abs(total - tried.returned) > AGREEMENT * (1 + np.abs(rewards).sum()):
            found = f"have the return {tried.returned:.6g}, but single steps give {total:.6g}"
            raise Forged(
                f"the program reported that {len(tried.actions)} actions {found}: {INSTEAD}"
            )
        places = [int(start.place), *(int(reply.place) for reply in replies)]
        return [
            self._led_to(
                ToldStep(
                    one, action, Step(other, reply.reward, reply.terminated, reply.valid), *way
                )
            )
            for one, other, action, reply, way in zip(
                seen, seen[1:], actions, replies, pairwise(places), strict=False
            )
        ][begin:]

    def trail(self, told: ToldStep) -> ToldPath:
        """Return how a step that a program with memory told of came about."""
        steps = [told]
        while steps[-1].start not in self._roots:
            steps.append(self._led[steps[-1].start])
        return ToldPath(self._roots[steps[-1].start], steps[::-1])

    def is_root(self, place: int) -> bool:
        """Whether an episode really stood at a place, by its number."""
        return place in self._roots

    def _led_to(self, told: ToldStep) -> ToldStep:
        if self.remembers:
            self._led.setdefault(told.end, told)  # a place that was there before led nowhere back
        return told

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _note(self, reply: SteppingReply) -> None:
        """Keep where the program says that it stands."""
        self._at = int(reply.place)
        self._seen = self._observation(reply)
        self._here = self._place_of(reply, self._seen)

    def _place_of(self, reply: SteppingReply, seen: Any) -> Any:
        """Return the state that a reply names."""
        if reply.place == NO_PLACE:
            return seen
        return Here(seen, None if reply.place == NO_STATE else reply.place)

    def _observation(self, reply: SteppingReply) -> Any:
        return self._observations.decode(reply.observation, 1)[0]

    def _stepped(
        self,
        ask: Ask,
        actions: Sequence[Any] = (),
        discount: float = 1.0,
        *,
        stands: bool = False,
    ) -> list[SteppingReply]:
        """Ask from where the model stands, for a reply to each action."""
        data = self._asked(ask, actions, stands, discount)
        size = 0 if ask == Ask.PLAY else self._observations.size
        return self._read(data, size, len(actions))

    def _asked(
        self,
        ask: Ask,
        actions: Sequence[Any],
        length: int,
        discount: float = 1.0,
        *,
        most: int = 1,
    ) -> bytes:
        """Ask from where the model stands, to where the program first goes if it is elsewhere."""
        since, self._since = self._since, []
        if since and not self._is_there:
            self._stepped(Ask.WALK, since)
        self._since = since
        is_there = self._is_there or bool(since)
        way = Stand.THERE if is_there else self._start.way
        body = b"" if is_there else self._footings([self._start])
        numbers = way, len(body), not is_there, len(actions), length
        body += self._actions.encode(actions)
        data = self._ask(ask, body, numbers, discount, most=most)
        self._is_there = True
        return data

    def _footings(self, starts: Sequence[Footing]) -> bytes:
        """Return the bytes of where the program is to stand; all in one way."""
        match starts[0].way:
            case Stand.NAMED:
                return np.array([start.place for start in starts], "<u8").tobytes()
            case Stand.FOLLOWED:
                histories = [start.history for start in starts]
                self.asked += sum(len(each.actions) for each in histories if each)
                return self._histories.encode([0] * len(starts), histories)
        return self._observations.encode([start.observation for start in starts])

    def _read(self, data: bytes, size: int, asked: int) -> list[SteppingReply]:
        """Read replies, with observations of a size, to so many actions."""
        try:
            replies = SteppingReply.decode(data, size)
        except (ValueError, StructError) as error:
            raise Forged(f"{MEDDLED} with {error}: {INSTEAD}") from error
        self.asked += asked
        counts = [reply.steps for reply in replies]
        if not (replies and min(1, asked) <= sum(counts) <= asked and min(counts) >= min(1, asked)):
            words = f"{MEDDLED} with {sum(counts):,} steps instead of {asked:,}"
            raise Forged(f"{words}: {INSTEAD}")
        if not all(-LARGEST < reply.reward < LARGEST for reply in replies):
            raise Forged(f"{MEDDLED} with rewards that are not finite: {INSTEAD}")
        return replies if not self.remembers else list(map(self._hold, replies))

    def _hold(self, reply: SteppingReply) -> SteppingReply:
        """Have a place kept for as long as somebody here has its number."""
        if reply.place < 0:
            return reply
        self._held[reply.place] += 1
        place = HeldPlace(reply.place)
        place.dropped = self._dropped
        return reply._replace(place=place)

    def _let_go(self) -> None:
        """Have places forgotten that nobody has the number of: each is a copy of the program."""
        numbers, self._dropped[:] = self._dropped[:], []
        for number in numbers:
            self._held[number] -= 1
        free = [number for number in set(numbers) if not self._held[number]]
        self._ask(Ask.FREE, np.array(free, "<u8").tobytes(), (Stand.THERE, 0, 0, len(free), 0))

    def _ask(
        self,
        ask: Ask,
        body: bytes = b"",
        numbers: tuple[int, int, int, int, int] = (Stand.THERE, 0, 0, 0, 0),
        discount: float = 1.0,
        *,
        most: int = 1,
    ) -> bytes:
        """Ask with the numbers of `STEPPING`, and return the bytes of the reply.

        That answers no more than so many steps for each action.
        """
        if time.monotonic() > self.deadline:
            raise OutOfTime
        if len(self._dropped) >= MOST_DROPPED:
            self._let_go()
        head = STEPPING.pack(ask, *numbers, discount)
        _, _, several, count, _ = numbers
        process = self._process
        try:
            process.send(SIZE.pack(len(head) + len(body)) + head + body, brief=self._is_loaded)
            [size] = SIZE.unpack(process.receive(SIZE.size))
            step = STEPPED.size + self._observations.size + 8 * self._choices
            if size > (step + 8) * max(1, count) * most + 8 * several * count + 2 * STEPPED.size:
                raise Forged(f"{MEDDLED} with {size:,} bytes: {INSTEAD}")
            reply = process.receive(size)
        except EOFError:
            raise Broke(process.failure()) from None
        process.rest()
        self._is_loaded = True
        return reply
