"""What the loop of learning asks of a kind of world: to act on its program, and what is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from cwm_cli.data.objects import OBJECTS
from cwm_cli.sandbox.failures import printable

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition
    from cwm_cli.data.objects import ObjectSchema
    from cwm_cli.data.spaces import Space
    from cwm_cli.planning.model import Step
    from cwm_learn.imagination import SearchImagination

Aim = Literal["exploit", "explore", "probe", "verify"]
"""What a step is for: the return, the unknown, an open question, or trust in the program."""

PLAY: frozenset[Aim] = frozenset({"exploit", "verify"})
"""What steps are for that are taken for the return."""

COMMON = 0.1
"""Share of the rows that a reward has to be paid in to be one that can be had again and again."""


class OpenQuestion(NamedTuple):
    """Something that the rows leave open, and how an answer would come about.

    `region` names where to go ("position above 1.08"), `action` what to try there (None:
    being there is enough), `answers` what the outcomes would mean. `weight` is how much of
    the return plans could gain or lose by the answer.
    """

    text: str
    region: str = ""
    action: Any = None
    answers: str = ""
    weight: float = 0.0


class Pursued(NamedTuple):
    """An open question, and the box (2, components) in which its answer lies."""

    question: OpenQuestion
    box: np.ndarray

    def holds(self, values: np.ndarray) -> Any:
        """Whether components (..., components) lie in the box."""
        return ((values >= self.box[0]) & (values <= self.box[1])).all(-1)

    def is_answered(self, row: Transition) -> bool:
        """Whether a step tried the action there; without one it is enough to have been there."""
        before, after = np.ravel(row.observation), np.ravel(row.next_observation)
        if self.question.action is None:
            return bool(self.holds(before) or self.holds(after))
        return bool(self.holds(before)) and np.array_equal(self.question.action, row.action)


class Intent(NamedTuple):
    """The next action, what it is for and why, in a few words, and the return that is promised.

    The promise is that of the rest of the episode under the present program, None where
    the aim is not the return.
    """

    action: Any
    aim: Aim
    reason: str
    promise: float | None = None


@dataclass
class Knowledge:
    """What is known of an environment: all rows so far, and a program of them.

    `rows` and `starts` grow while the agent acts, and nothing is ever dropped. `limit` is how
    many steps an episode can last. `program` is the text that is acted on, empty before there is
    one, and `imagination` what imagines with it. `names` are those of the components, where the
    environment tells them. `valid` are the actions allowed
    after each row in `rows`, where the environment names them. Rows whose numbers are in
    `chance` came out otherwise when the same was done again. `disputed` are observations and
    actions of which other programs that replay every row say otherwise: to be probed first.
    `pursued` are questions that a language model named, which are probed where they lie.
    """

    observation_space: Space
    action_space: Space
    limit: int
    seed: int = 0
    schema: ObjectSchema | None = None
    names: Sequence[str] = ()
    rows: list[Transition] = field(default_factory=list)
    starts: list[Any] = field(default_factory=list)
    chance: set[int] = field(default_factory=set)
    disputed: list[tuple[Any, Any]] = field(default_factory=list)
    pursued: list[Pursued] = field(default_factory=list)
    program: str = ""
    imagination: SearchImagination | None = None

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("an episode must have at least one step")

    @property
    def usual(self) -> float | None:
        """The best reward that is common and ends nothing: what can be had again and again."""
        counts = Counter(row.reward for row in self.rows if not row.terminated)
        least = max(2.0, COMMON * len(self.rows))
        return max((reward for reward, count in counts.items() if count >= least), default=None)

    def component(self, place: int) -> str:
        """Return what a component of the observation is called."""
        return self.names[place] if self.names else f"observation[{place}]"

    def told(self, observation: Any) -> str:
        """Return an observation in a few words: of objects, where the agent is and what it has."""
        if self.schema is not None:
            table, column = observation[OBJECTS], self.schema.column
            x, y = table[0, [column("x"), column("y")]].tolist()
            kinds = (
                table[table[:, column("held")] == 1, 0].tolist()
                if "held" in self.schema.names
                else []
            )
            held = [
                self.schema.classes[kind] for kind in kinds if 0 < kind < len(self.schema.classes)
            ]
            return f"agent at {x}, {y}" + (f" with {', '.join(held)}" if held else "")
        if self.names:
            parts = zip(self.names, np.ravel(observation).tolist(), strict=True)
            return printable(", ".join(f"{name} {value:.4g}" for name, value in parts), 80)
        return printable(" ".join(str(observation).split()), 80)


class Actor:
    """Acts on a program of an environment: plays what returns most, and goes for the unknown.

    In the order of its life: `serves` says from the spaces whether it can act there, and it is
    made with what is `known`, which the loop goes on filling. `learn` is called whenever there
    is another program, `remember` after each step. `predict` says what the program says
    of a step, and `agrees` whether that came about. `promise` is what its play is worth from
    somewhere, and `choose` says what to do there. `settled` is whether nothing is left to learn
    that the return could gain from. A kind of world derives from it:

        class Guessing(Actor):
            WARM = 1

            @classmethod
            def serves(cls, observation_space, action_space):
                return action_space.kind == "discrete"

            def choose(self, observation, left, aim=None):
                return Intent(int(self.known.action_space.low[0]), "explore", "the first action")
    """

    WARM: ClassVar[int] = 10
    """Random steps before there is anything to write a program from."""

    LOOKS_UP: ClassVar[bool] = True
    """Whether it imagines with recorded steps that a program looks up: where numbers are real none
    comes again, and looking takes the program its forms for many observations at once."""

    REPLAYS: ClassVar[bool] = False
    """Whether what it remembers overrides the program, so that between two programs it acts as if
    every row were replayed."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known

    @classmethod
    def serves(cls, observation_space: Space, action_space: Space) -> bool:
        """Whether it can act in such an environment."""
        raise NotImplementedError

    @classmethod
    def under_chance(cls) -> type[Actor] | None:
        """Return who acts instead where chance decides what follows; None where nobody can."""
        return None

    def learn(self) -> None:
        """Make anew what follows from the program: tables, values, policies."""

    def remember(self, row: Transition) -> None:
        """Take note of a step that was taken; the program may say otherwise, and is wrong then."""

    def predict(self, observation: Any, action: Any) -> Step | None:
        """Return what follows an action, None where nothing is known."""
        return None

    def agrees(self, predicted: Step, row: Transition) -> bool:
        """Whether what was predicted came about."""
        raise NotImplementedError

    def promise(self, observation: Any, left: int) -> float | None:
        """Return what its play is worth in the program for so many steps left.

        None where it knows of nothing to go for.
        """
        return None

    def choose(self, observation: Any, left: int, aim: Aim | None = None) -> Intent | None:
        """Return what to do now; without an aim that which promises most (to exploit or explore).

        None where nothing can be done for the aim from here: the episode may as well begin anew.
        """
        raise NotImplementedError

    def questions(self) -> list[OpenQuestion]:
        """Return what is open, what matters most first."""
        return []

    @property
    def settled(self) -> bool:
        """Whether no situation that was never visited could better the return, if it paid well."""
        return False
