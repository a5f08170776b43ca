"""Base classes and data types of a search.

A `Strategy` selects a `Move`, and the `Problem` writes it as messages. A `Backend` answers the
`Request` with a `Completion`. The problem reads a candidate from the completion and judges it with
a `Verdict`. The resulting `Node` updates the problem and the strategy. A `Refiner` improves a
candidate without a completion. Backends with log-probabilities also score texts (`ScoreRequest`).
Plugins subclass the base classes, so that a new method does not break existing plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from cwm_cli.errors import CwmError
from cwm_cli.presets import WithPresets
from cwm_cli.sandbox.failures import Failure

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.envs.text_view import TextView

ROOT = -1
"""The parent of nodes that were written from scratch."""

GENERATE, IMPROVE, FIX = "generate", "improve", "fix"
"""The published moves: write a program, improve one that runs, fix one that raised an error."""

SIMPLIFY = "simplify"
"""The move that writes a shorter program. The search makes it, not the strategy, and only for a
program that is solved."""

ASKED_BEFORE = (
    "This was asked before (times: {number}), and no answer is known to be right: do not settle "
    "for the first explanation that comes to mind."
)
"""Text that makes a repeated prompt different from the earlier ones."""

START = "start"
"""The action of the candidate that a search begins with, which cost no completion."""

EVIDENCE = "evidence"
"""The action of an unchanged candidate that is judged again because of new evidence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The score of a candidate in [0, 1], and its failure."""

    score: float
    """Score over all rows that the search may use."""
    validation: float = 0.0
    """Score over the validation rows, which nothing is fitted to. It breaks ties."""
    parts: dict[str, float] = Field(default_factory=dict)
    """Unweighted means of the parts of the score, for readers."""
    failure: Failure | None = None
    confirmed: bool = False
    """Whether the score was confirmed; the best candidate must be confirmed."""
    floor: float = 0.0
    """The score of predicting nothing."""
    error: float | None = None
    """Decimal logarithm of the error of wrong numbers, lower is better; None if unknown. It orders
    candidates with almost equal scores."""
    findings: str = ""
    """Findings about a candidate that cost no completion, for the next prompt."""
    dead_end: int | None = None
    """The episode that would show a mistake, if the episodes in prompts show none."""
    reached: bool | None = None
    """Whether the best possible score was reached, if chance may keep it below 1; None if
    unknown."""
    stderr: float | None = None
    """Standard error of the score."""
    log_likelihood: float | None = None
    """Natural logarithm of the likelihood of all evidence, if the search needs it."""
    log_prior: float = 0.0
    """Natural logarithm of the prior probability, up to a constant."""
    open_gap: str = ""
    """The reason why a candidate with a high score does not end the search."""
    saved_bits: int = 0
    """Description length that simplification saved, if the candidate is as good as before."""

    @property
    def rank(self) -> tuple[float, ...]:
        """The sort key of candidates: score, validation score, saved length, error."""
        error = -inf if self.error is None else -self.error
        return self.score, self.validation, self.saved_bits, error

    @property
    def normalised(self) -> float:
        """The score relative to its floor: 0 at or below the floor, 1 if everything is right."""
        room = 1.0 - self.floor
        return max(0.0, (self.score - self.floor) / room) if room > 0 else self.score

    @property
    def explained(self) -> float:
        """The fraction of rows that are right in every part.

        It is the normalised score if this fraction is unknown, or if the score has a standard
        error: then chance makes exact predictions impossible.
        """
        if self.stderr is not None:
            return self.normalised
        return self.parts.get("exact", self.normalised)

    @property
    def is_bug(self) -> bool:
        """Whether the program failed to run."""
        return self.failure is not None and self.failure.is_bug

    @property
    def solved(self) -> bool:
        """Whether the score is 1, or the best possible one."""
        return self.score >= 1.0 or bool(self.reached)


class Move(NamedTuple):
    """The choice of a strategy: apply `action`, one of the problem's `moves`, to a parent node.

    `program` and `verdict` belong to the parent. `prefix` has the lines that a generated
    program must begin with.
    """

    action: str
    parent: int = ROOT
    program: str = ""
    verdict: Verdict | None = None
    prefix: str = ""


class Message(BaseModel, frozen=True):
    """One message of a conversation.

    The first `stable` characters, and all messages before, are shared with other prompts of the
    search, so that a provider may cache them. The number is not written to disk.
    """

    role: Literal["system", "user", "assistant"]
    content: str
    stable: int = Field(default=0, exclude=True, repr=False)


def prompt_hash(messages: Sequence[Message]) -> str:
    """Return the SHA-256 hash of a prompt."""
    text = "\x1e".join(f"{message.role}\x1f{message.content}" for message in messages)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def unheard(words: str) -> None:
    """Ignore a progress message."""


class Request(NamedTuple):
    """A request for one completion.

    A language model reads `messages`. Other backends read `move` and `problem`, and check the
    type of the problem (`cwm_cli.problems`) before they use it.

    Args:
        messages: The prompt.
        seed: Seed of the completion.
        move: The move that the prompt describes.
        problem: The problem that wrote the messages.
        step: Number of the request in the search.
        occurrence: Number of earlier requests of the search with the same messages.
        tell: Reports progress in a few words, from any thread.
        shorter: Returns a prompt of about a given number of characters, if `messages` are too
            long for the backend.
        allowance: Limit in US dollars on the cost of the answer, retries included. None means no
            limit.
        weighed: Whether the log-probability of the answer is needed.
        model: The assigned model, if the backend has several.
        log: Writes a line to the log of the run, from any thread.
        known: Number of events that the search had learned at the time of the request.
    """

    messages: tuple[Message, ...]
    seed: int
    move: Move
    problem: object
    step: int = 0
    occurrence: int = 0
    tell: Callable[[str], None] = unheard
    shorter: Callable[[int], tuple[Message, ...]] | None = None
    allowance: float | None = None
    weighed: bool = False
    model: str = ""
    log: Callable[[str], None] = unheard
    known: int = 0

    @property
    def key(self) -> str:
        """The hash of the messages."""
        return prompt_hash(self.messages)


class ScoreRequest(NamedTuple):
    """A text to score as the answer to messages.

    A language model reads the messages. Other backends read the `question`: a `Request` if the
    text is an answer to it, or another object that the backend recognises by its type. The
    messages may be empty for a backend that does not read them.
    """

    messages: tuple[Message, ...]
    text: str
    question: object = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, cost and time of a completion."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    """Cost in US dollars; None if the price is unknown."""
    seconds: float = 0.0
    cached_tokens: int = 0
    """Prompt tokens from the cache of the provider, which cost less."""
    reasoning_tokens: int = 0
    """Completion tokens of hidden reasoning."""
    reused: int = 0
    """1 if the completion comes from the cache of paid completions."""

    @property
    def tokens(self) -> int:
        """The number of prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens


def total(usages: Sequence[Usage]) -> Usage:
    """Return the sum of usages; the cost is None if one of the costs is."""
    costs = [usage.cost for usage in usages if usage.cost is not None]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cost=sum(costs) if len(costs) == len(usages) else None,
        seconds=sum(usage.seconds for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        reused=sum(usage.reused for usage in usages),
    )


class AnswerLength(NamedTuple):
    """The usual and the maximum number of tokens of an answer, with reasoning tokens.

    `thinks` is True for a reasoning model.
    """

    usual: int = 0
    most: int = 0
    thinks: bool = False


class Completion(NamedTuple):
    """The answer to a request.

    Args:
        text: The text of the answer.
        usage: Tokens, cost and time.
        final: Whether further requests would not improve the result.
        lacking: One line that says why the answer is missing or incomplete.
        note: One line for the user.
        log_probability: Natural logarithm of the probability of the answer, if known.
    """

    text: str
    usage: Usage = Usage()
    final: bool = False
    lacking: str = ""
    note: str = ""
    log_probability: float | None = None


@dataclass(frozen=True, slots=True, config=ConfigDict(ser_json_inf_nan="constants"))
class Node:
    """A candidate in the search tree, with its verdict and origin."""

    id: int
    """Number of the node, in the order of learning."""
    step: int
    """Number of the completion, in the order of requests. A refinement has the step of the
    completion that it improves."""
    parent: int
    action: str
    program: str
    verdict: Verdict
    prompt: str
    """Hash of the messages."""
    usage: Usage
    final: bool = False
    """Whether the backend gave up."""
    known: int | None = None
    """Number of events that the search had learned at the time of the request."""
    asked: bool = True
    """Whether the candidate cost a completion: False for a start and for refinements."""
    disclosed: int | None = None
    """A held-out episode that prompts may show from this node on."""
    seed: int | None = None
    """Seed of the request. A strategy draws later random numbers for the node from
    `np.random.default_rng([seed, 1])`."""
    forward: float | None = None
    """Log-probability of the candidate as the answer to its request, if the strategy needs it."""
    backward: float | None = None
    """Log-probability of the parent as an answer, if the candidate were the parent."""
    model: str = ""
    """The model that answered, if the backend has several."""
    requested: str = ""
    """The contract that the answer asks for."""


class Remark(BaseModel, frozen=True):
    """The findings of a refiner that did not improve a node, for the next prompt.

    The journal has remarks, so that a resumed search repeats no refinement and writes the same
    prompts. The node is `ROOT` if the search has no start. `note` is for the user.
    """

    kind: Literal["remark"] = "remark"
    node: int
    by: str
    findings: str = ""
    note: str = Field(default="", exclude=True)


class Switch(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """A change of the contract of the programs, in the journal of a search.

    `verdicts` maps the id of each earlier node to its verdict under the new contract, so that all
    scores of the search are comparable.
    """

    kind: Literal["switch"] = "switch"
    contract: str
    reason: str
    verdicts: dict[int, Verdict]

    def judged(self, node: Node) -> Node:
        """Return an earlier node with its verdict under the new contract."""
        return replace(node, verdict=self.verdicts.get(node.id, node.verdict), final=False)


class NextContract(NamedTuple):
    """A contract to switch to, and the reason in a few words."""

    contract: str
    reason: str


class Record(NamedTuple):
    """A node, with the text of its completion, a note for the user, and the prompt."""

    node: Node
    text: str
    note: str = ""
    messages: tuple[Message, ...] = ()


class UnansweredError(CwmError):
    """A request without an answer, which may have cost money.

    `cost` is the maximum cost in US dollars, or None if it is unknown.
    """

    def __init__(self, words: str, cost: float | None = None) -> None:
        super().__init__(words)
        self.cost = cost


class Turn(NamedTuple):
    """The position of a node in a recorded search.

    `step` is the number of the request, and `known` the number of events learned before it.
    `given` has the event itself if it cost no completion: a start, or the result of a refiner.
    """

    step: int
    known: int
    given: Node | Remark | Switch | None = None


class Strategy(WithPresets):
    """Base class of search strategies, which select moves and learn from the scored nodes.

    A strategy is a dataclass. Its fields are its options (`-o strategy.KEY=VALUE`), with a
    docstring below each. A preset may also set options of the problem and the backend. A
    subclass must define `select`.

    Attributes:
        moves: The kinds of move that it selects. A search refuses a problem without a prompt for
            each kind.
        accepted: The number of accepted proposals, for a strategy that accepts or rejects.

    Example::

        @dataclass
        class Greedy(Strategy):
            moves = (GENERATE, IMPROVE)
            best: Node | None = field(default=None, init=False)

            def select(self, rng, pending):
                if self.best is None:
                    return Move(GENERATE)
                return Move(IMPROVE, self.best.id, self.best.program, self.best.verdict)

            def update(self, node):
                if self.best is None or node.verdict.score > self.best.verdict.score:
                    self.best = node
    """

    moves: ClassVar[tuple[str, ...]] = (GENERATE, IMPROVE, FIX)
    accepted: int | None = None

    @property
    def repeats(self) -> bool:
        """Whether it may repeat a prompt; otherwise the problem varies the prompt."""
        return False

    @property
    def weighs_proposals(self) -> bool:
        """Whether it needs the log-probability of each answer (`Node.forward`)."""
        return self.corrects

    @property
    def corrects(self) -> bool:
        """Whether it also needs the log-probability of the reverse proposal (`Node.backward`).

        A search refuses a backend without log-probabilities then.
        """
        return False

    @property
    def forgets(self) -> bool:
        """Whether new evidence drops the previous best node instead of judging it again."""
        return False

    def held(self) -> Sequence[int]:
        """Return the ids of the nodes that it builds on.

        After new evidence these nodes are judged again, each as a new node with the action
        `EVIDENCE` and the old node as parent.
        """
        return ()

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Select the next move.

        Args:
            rng: The only source of random numbers, so that a search can be resumed and repeated.
            pending: Moves of the completions in flight.
        """
        raise NotImplementedError

    def update(self, node: Node) -> None:
        """Learn from a judged node. Called once per node, in the order of the ids.

        A strategy learns in no other way: a search resumes by calling this for every node of the
        journal. Some nodes cost no completion (`Node.asked`).
        """

    def state(self, node: int) -> str:
        """Return the status of a node in a word or two for the live view, or ""."""
        return ""


class Problem:
    """Base class of problems: prompts, candidates and their scores.

    A subclass must define `messages` and `judge`.

    Attributes:
        moves: The kinds of move that it has prompts for.
        file: The name of the file with the best candidate.
        answer_tokens: Maximum number of tokens per answer of a local language model, if the user
            sets none. The default is four times the length of the programs in this project's
            tests, so that a model can add a few sentences.

    Example::

        class Reverse(Problem):
            moves = (GENERATE,)

            def messages(self, move):
                return (Message(role="user", content="Write `hello` backwards, in a code block."),)

            def judge(self, candidate):
                return Verdict(score=float(candidate.strip() == "olleh"))
    """

    moves: ClassVar[tuple[str, ...]] = (GENERATE, IMPROVE, FIX)
    file: ClassVar[str] = "best.py"
    answer_tokens: ClassVar[int] = 4096

    def update(self, node: Node) -> None:
        """Learn from a judged node. Called in the order of the ids, before the strategy."""

    def discloses(self, node: Node) -> int | None:
        """Return an episode that prompts may show from this node on, or None.

        Called before `update`. The journal records the episode with the node.
        """
        return None

    def requested(self, text: str) -> str:
        """Return the contract that a completion asks for, or ""."""
        return ""

    @property
    def next_contract(self) -> NextContract | None:
        """The contract for the rest of the search, or None to keep the present one.

        The search records the switch and judges all earlier candidates again.
        """
        return None

    def under(self, contract: str) -> Problem:
        """Return the same problem under another contract, without any learned node."""
        raise NotImplementedError

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Return the prompt of a move."""
        raise NotImplementedError

    def varied(self, move: Move, number: int) -> tuple[Message, ...]:
        """Return a prompt that differs from the `number` earlier prompts of the same move.

        By default a sentence is added which says that the prompt is repeated.
        """
        asked, added = self.messages(move), ASKED_BEFORE.format(number=number)
        place = max((i for i, each in enumerate(asked) if each.role == "user"), default=0)
        again = asked[place].model_copy(update={"content": f"{asked[place].content}\n\n{added}"})
        return (*asked[:place], again, *asked[place + 1 :])

    def shorter(self, move: Move, room: int) -> tuple[Message, ...]:
        """Return a prompt of about `room` characters, without the least important parts.

        By default the prompt is not shortened.
        """
        return self.messages(move)

    def read(self, text: str, move: Move) -> str:
        """Return the candidate in a completion, by default its fenced program, or ""."""
        from cwm_cli.search.reading import extract_program

        return extract_program(text, prefix=move.prefix)

    def judge(self, candidate: str) -> Verdict:
        """Score a candidate. Called from several threads at the same time.

        Mistakes of the candidate are in the verdict; they never raise an exception.
        """
        raise NotImplementedError

    def confirm(self, candidate: str, verdict: Verdict) -> Verdict:
        """Return the confirmed verdict of a new best candidate, or one with a failure.

        This may take longer than `judge`. By default the verdict is confirmed without a check,
        which is enough if a candidate cannot read the true results while it is judged.
        """
        return replace(verdict, confirmed=True)

    @property
    def settled(self) -> bool:
        """Whether no better candidate is expected, although the best possible score is unknown."""
        return False

    def keep(self, folder: Path, best: Node) -> None:
        """Write the best candidate so far into the run folder, atomically."""
        partial = folder / f".{self.file}.part"
        partial.unlink(missing_ok=True)  # if it were a pipe, writing would block
        partial.write_text(best.program, encoding="utf-8", errors="replace")
        partial.replace(folder / self.file)


class RefinementTask(NamedTuple):
    """A judged candidate to improve.

    Args:
        problem: The problem of the candidate. A refiner checks its type before it uses it.
        node: The candidate.
        others: The best other candidates, best first.
        seed: Seed of the search.
        tell: Reports progress in a few words, from any thread.
    """

    problem: object
    node: Node
    others: Sequence[Node] = ()
    seed: int = 0
    tell: Callable[[str], None] = unheard


class Refinement(NamedTuple):
    """A refined candidate, or "", with findings for the next prompt."""

    candidate: str = ""
    findings: str = ""


class Refiner:
    """Base class of refiners, which improve a candidate without a completion.

    A refiner is a dataclass. Its fields are its options (`-o NAME.KEY=VALUE`, with its name in
    the hook). Its result follows from the task alone: it counts its work, and a time limit is only
    a last resort. It never sees the test data: of a `WorldModelProblem` it uses only the rows that
    are `fitted`.

    Attributes:
        of_solved: Whether it simplifies a solved candidate, instead of improving others. Its result
            must be shorter (`search.simplification.measure`) and as good.

    Example::

        @dataclass(frozen=True)
        class Tidy(Refiner):
            def refine(self, task):
                return Refinement(task.node.program.strip())
    """

    of_solved: ClassVar[bool] = False

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Refine a candidate that runs. Called from several threads.

        Returns:
            A candidate to judge, or findings only, or None if there is nothing to do.
        """
        raise NotImplementedError


class TokenScoring:
    """Optional part of `Backend`: log-probabilities of texts. By default there are none.

    `cwm theorize` and WorldLLM score predictions with it.

    Attributes:
        can_score: Whether it has log-probabilities. An instance may find that it has none.
        normalises: Whether each log-probability is a single number, the logarithm of a
            probability among all candidates.
        reads_messages: Whether it scores by the messages, not by the question.
    """

    can_score: ClassVar[bool] = False
    normalises: ClassVar[bool] = False
    reads_messages: ClassVar[bool] = True

    def prepare(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any],
        tell: Callable[[str], None] = unheard,
    ) -> None:
        """Prepare to score predictions of an environment.

        This may take minutes; `tell` reports progress.
        """

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Return, for each request, the log-probability of each token of its text."""
        raise CwmError(
            f"{type(self).__name__} provides no log-probabilities: choose another backend"
        )

    def of_candidates(self, questions: Sequence[Any]) -> Sequence[np.ndarray] | None:
        """Return, for each question of a prediction, the log-probability of each candidate.

        None, the default, means that each candidate is scored as a text by `score`.
        """
        return None

    @property
    def weighed(self) -> Usage:
        """The usage of all scoring so far."""
        return Usage()

    def wording(self, view: TextView) -> str:
        """Return instructions for writing rules that it can read; "" if any text is fine."""
        return ""

    def unread(self, view: TextView, rules: str) -> Sequence[str]:
        """Return the parts of rules that it cannot read, one line each."""
        return ()


class SearchSteering:
    """Optional part of `Backend`: an effect on the search itself. By default there is none.

    Attributes:
        from_data: Whether it uses only recorded transitions, so that the problem must have some.
            Its option `learning`, if any, is set if an agent requests completions again and
            again with more and more rows.
        gives_up_after: Number of completions in a row without a better candidate after which the
            search ends; None for no limit.
        takes_help: Whether its searches begin with a program from data alone, and refiners
            improve its answers.
        starts_from: Name of its option for the file of a starting program, if it has one.
    """

    from_data: ClassVar[bool] = False
    gives_up_after: ClassVar[int | None] = None
    takes_help: ClassVar[bool] = False
    starts_from: ClassVar[str] = ""

    def assign(self, rng: np.random.Generator, pending: Sequence[str]) -> str:
        """Return the model of the next request, if there are several, or "".

        Args:
            rng: The only source of random numbers, so that a search can be resumed and repeated.
            pending: Models of the completions in flight.
        """
        return ""

    def update(self, node: Node) -> None:
        """Learn from a judged node. Called in the order of the ids.

        Only these nodes may affect the choice of models.
        """

    def recorded(self) -> Sequence[Turn]:
        """Return the turns of a recorded search to repeat, in the order of learning, or ()."""
        return ()


class Backend(TokenScoring, SearchSteering):
    """Base class of backends, which answer requests: a language model, a recording, an inducer.

    A backend is a dataclass with the field `model`, which is the value of `--model` or "". The
    other fields are its options (`-o backend.KEY=VALUE`). A field with the metadata
    `{"identity": False}` may change when a run continues. A subclass must define `complete`. All
    other methods are optional; `TokenScoring` and `SearchSteering` have the rarely needed ones.

    Attributes:
        needs_model: Whether it needs `--model`.
        is_language_model: Whether answers cost tokens, money or time. Then they may be cached
            (`--cache`), and a benchmark estimates their cost before it begins.
        caveat: A limitation that benchmarks report to users.
        remedy: Advice for users if no program runs, as the end of a sentence.

    Example::

        @dataclass(frozen=True)
        class Echo(Backend):
            model: str = ""

            def complete(self, request):
                return Completion(request.messages[-1].content)
    """

    needs_model: ClassVar[bool] = False
    is_language_model: ClassVar[bool] = False
    caveat: ClassVar[str] = ""
    remedy: ClassVar[str] = "use another --model"

    def complete(self, request: Request) -> Completion:
        """Answer a request. Called from several threads at the same time.

        Raises:
            CwmError: If the user can fix the problem, such as a refused key. Under a cost limit
                such a request counts with its worst cost.
            UnansweredError: The same, with the cost.
        """
        raise NotImplementedError

    def ready(self, max_cost: float | None = None) -> None:
        """Raise an error for a missing key, an unknown model or an unknown price.

        Called before any data are recorded. It sends no request.
        """

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return the price of tokens in US dollars, or None if it is unknown."""
        return 0.0

    def answer_length(self) -> AnswerLength:
        """Return the expected number of tokens of an answer, for the estimate of a benchmark."""
        return AnswerLength()

    def worst_cost(self, request: Request) -> float | None:
        """Return the maximum cost of an answer in US dollars, or None if the price is unknown.

        Called before each completion under `--max-cost`.
        """
        return 0.0
