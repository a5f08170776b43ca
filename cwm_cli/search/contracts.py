"""The contracts of a search: what it asks of a strategy, a problem and a backend.

A `Strategy` chooses a `Move`; the `Problem` words it as messages; a `Backend` answers the
`Request` with a `Completion`; the problem reads a candidate out of it and gives a `Verdict`; the
`Node` that this makes goes back to the problem and the strategy. A `Refiner` betters a candidate
without a completion. Backends that know log-probabilities weigh texts, each a `ScoreRequest`.
Plugins subclass the base classes, so that a method that is added later breaks none of them.
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
"""The moves of the publications: write a program, better one that runs, mend one that raised."""

ASKED_BEFORE = (
    "This was asked before (times: {number}), and no answer is known to be right: do not settle "
    "for the first explanation that comes to mind."
)
"""What makes a question another one that a search has asked already."""

START = "start"
"""The action of a candidate that a search begins with: nobody was asked for it."""

EVIDENCE = "evidence"
"""The action of a candidate that is judged again, unchanged, because the problem knows more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How good a candidate is: its score in [0, 1] and what is wrong with it.

    `score` is over all that a search may see and `validation` over the part of
    it that nothing may be fitted to; the latter breaks ties. `parts` are
    unweighted means, for the reader. Only a score that is `confirmed` may be that of the
    best candidate.

    `floor` is the score of predicting nothing at all, and `error` how far wrong numbers are off,
    None where that cannot be told: a decimal logarithm, lower is better. It tells candidates apart
    whose scores are all but equal. `findings` are what is known of a candidate that was not asked
    for, in words for the next prompt. Where nothing is wrong in what prompts may show, `dead_end`
    is the episode that would show something. Where less than 1 may be all that can be had, as by
    chance, `reached` says whether it was (None where nobody can tell), and `stderr` how
    uncertain the score is. `log_likelihood` is that of all the evidence under the candidate,
    where candidates are weighed by it, and `log_prior` says how likely it is held before any of
    that, but for a constant (natural logarithms). `open_gap` is the reason why a candidate with a
    high score does not end the search.
    """

    score: float
    validation: float = 0.0
    parts: dict[str, float] = Field(default_factory=dict)
    failure: Failure | None = None
    confirmed: bool = False
    floor: float = 0.0
    error: float | None = None
    findings: str = ""
    dead_end: int | None = None
    reached: bool | None = None
    stderr: float | None = None
    log_likelihood: float | None = None
    log_prior: float = 0.0
    open_gap: str = ""

    @property
    def rank(self) -> tuple[float, float, float]:
        """What orders candidates: the score, the part that nothing was fitted to, the error."""
        return self.score, self.validation, -inf if self.error is None else -self.error

    @property
    def normalised(self) -> float:
        """The score relative to its floor: 0 for one that is no better, 1 for a right candidate."""
        room = 1.0 - self.floor
        return max(0.0, (self.score - self.floor) / room) if room > 0 else self.score

    @property
    def explained(self) -> float:
        """Share of the rows that are right in every part.

        It is the normalised score instead if that share is unknown, or if the score has a standard
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
        """Whether nothing is left to improve."""
        return self.score >= 1.0 or bool(self.reached)


class Move(NamedTuple):
    """A strategy's choice: apply `action` to node `parent`, whose program and verdict these are.

    `action` is one of the problem's `moves`. `prefix` holds the lines that a
    generated program has to begin with.
    """

    action: str
    parent: int = ROOT
    program: str = ""
    verdict: Verdict | None = None
    prefix: str = ""


class Message(BaseModel):
    """One turn of a conversation.

    So many characters at its start are `stable`: other prompts of the search begin with them as
    well, with all messages before, so that a provider may keep what it read. That is not written
    down.
    """

    model_config = ConfigDict(frozen=True)

    role: Literal["system", "user", "assistant"]
    content: str
    stable: int = Field(default=0, exclude=True, repr=False)


def prompt_hash(messages: Sequence[Message]) -> str:
    """Return the hash of a prompt: equal ones have equal hashes."""
    text = "\x1e".join(f"{message.role}\x1f{message.content}" for message in messages)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def unheard(words: str) -> None:
    """Tell nobody."""


class Request(NamedTuple):
    """One question: a language model reads the messages, other backends the move and the problem.

    `problem` is the object that wrote the messages; a backend that works from
    data checks its type (`cwm_cli.problems`) before it uses it. `step` is
    the number of the question in the search, and `occurrence` counts how
    often the search asked the same messages before. A backend may `tell` in a
    few words what it is doing, from any thread. Where the messages are too
    long for it, `shorter` says the same in about so many characters. All that
    is done to answer may cost `allowance` US dollars, None being no limit. It is `weighed` where
    the log-probability of the answer is wanted as well. Where a backend has several models,
    `model` is the one that it assigned the question to. What is done to answer may be written in
    the `log` of the run, a line at a time, from any thread. `known` is the number of events that
    the search had learned when it made the request.
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
        """Hash of the messages: equal questions have equal keys."""
        return prompt_hash(self.messages)


class ScoreRequest(NamedTuple):
    """A text to weigh as the answer to messages.

    A language model reads the messages, other backends the `question` that they word: a
    `Request` where the text is an answer to that, or whatever else a backend knows by its type.
    There need be no messages for a backend that does not read them.
    """

    messages: tuple[Message, ...]
    text: str
    question: object = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a completion took; `cost` in US dollars is None when the price is unknown.

    Of the tokens of the prompt so many were `cached_tokens`, which the provider had read before
    and sells for less; of those of the answer so many were `reasoning_tokens`, which nobody sees.
    `reused` is 1 where the answer is one that was paid for before.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    reused: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of the answer."""
        return self.prompt_tokens + self.completion_tokens


def total(usages: Sequence[Usage]) -> Usage:
    """Add up what completions took; the cost is None when one of them is."""
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
    """Tokens that a `usual` answer has, and at `most`; of a model that `thinks`, with those."""

    usual: int = 0
    most: int = 0
    thinks: bool = False


class Completion(NamedTuple):
    """An answer and what it took; `final` if further questions would bring nothing better.

    `lacking` says why there is no answer, or not a whole one, and `note` what
    the user should know: one line each. `log_probability` is that of the answer among all that
    could have been said, a natural logarithm, where it is known.
    """

    text: str
    usage: Usage = Usage()
    final: bool = False
    lacking: str = ""
    note: str = ""
    log_probability: float | None = None


@dataclass(frozen=True, slots=True, config=ConfigDict(ser_json_inf_nan="constants"))
class Node:
    """A candidate in the search tree, and how it came to be.

    `id` counts the nodes in the order in which they were learned, `step` the
    completions in the order in which they were asked for. `prompt` is the hash
    of the messages, `final` says that the backend gave up, and `known` how many
    nodes and remarks there were when it was asked. A candidate that was not `asked` for cost
    no completion: the one that a search began with, and what a refiner made of
    another, in the step of the completion that led to it. From a node on prompts may show the
    episode `disclosed`, which had been held back.

    `seed` is that of its question: what a strategy leaves to chance once it knows the answer is
    drawn from `np.random.default_rng([seed, 1])`. `forward` is the log-probability of the
    candidate as an answer to its question, and `backward` that of its parent's, had the candidate
    been the parent; both where a strategy asks for them. `model` is the one that answered, where
    the backend has several. `requested` is the contract that the answer asked for, if it did.
    """

    id: int
    step: int
    parent: int
    action: str
    program: str
    verdict: Verdict
    prompt: str
    usage: Usage
    final: bool = False
    known: int | None = None
    asked: bool = True
    disclosed: int | None = None
    seed: int | None = None
    forward: float | None = None
    backward: float | None = None
    model: str = ""
    requested: str = ""


class Remark(BaseModel):
    """What a refiner found of a node that it did not better, in words for the next prompt.

    It is written down with the nodes, so that a search that goes on tries nothing twice and says
    the same. Of a start that came to nothing the node is `ROOT`; `note` is for the user.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["remark"] = "remark"
    node: int
    by: str
    findings: str = ""
    note: str = Field(default="", exclude=True)


class Switch(BaseModel):
    """A change of the contract that programs have to keep, in the journal of a search.

    `verdicts` maps the id of each earlier node to its verdict under the new contract, so that all
    scores of the search are comparable.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

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
    """A node and the text of the completion that it was read from; `note` is for the user.

    `messages` are those that were asked, whose hash the node has.
    """

    node: Node
    text: str
    note: str = ""
    messages: tuple[Message, ...] = ()


class UnansweredError(CwmError):
    """A question that has no answer, though asking it may have cost something.

    That is at most `cost` US dollars; None where nobody knows.
    """

    def __init__(self, words: str, cost: float | None = None) -> None:
        super().__init__(words)
        self.cost = cost


class Turn(NamedTuple):
    """When a node was asked for: the number of its question, and how much was known.

    What was `given` was not asked for: a start, or what came of a refiner.
    """

    step: int
    known: int
    given: Node | Remark | Switch | None = None


class Strategy(WithPresets):
    """Chooses the next candidate to ask for and learns from how it fared.

    A dataclass whose fields are its options (`-o strategy.KEY=VALUE`), with
    their meaning in the docstring under each; with a preset it may ask for
    options of the problem and the backend, too. In the order of a search:

    - `moves` are the kinds of move that it makes; a problem that has no words
      for one of them is refused before anything is asked.
    - `select` chooses a move. All chance comes from `rng`, so that a search
      can be resumed and repeated.
    - `update` is called once per node, in the order of their ids. It is the
      only way to learn: a stopped search is resumed by calling it for every
      node of the journal. Not every one of them was `asked` for.
    - `state` says a node's standing in a word or two, for the live view.
    - `repeats` says that it asks the same question again on purpose, for
      another answer; else the problem words it otherwise.
    - `weighs_proposals` says that it needs to know how likely an answer was (`Node.forward`),
      and `corrects` that of the way back as well (`Node.backward`): a backend that cannot tell is
      refused.
    - `held` names the nodes that it builds on. Where the problem came to know more they are judged
      again, each as a node whose action is `EVIDENCE` and whose parent is the old one; so is the
      best of before, unless the strategy `forgets` it.
    - `accepted` counts the answers that it moved on to, where it may also stay where it is.

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
        """Whether the same prompt is sent again on purpose."""
        return False

    @property
    def weighs_proposals(self) -> bool:
        """Whether it needs the log-probability of each answer."""
        return self.corrects

    @property
    def corrects(self) -> bool:
        """Whether it needs the log-probability of the way back as well."""
        return False

    @property
    def forgets(self) -> bool:
        """Whether the best node of before does not compete when the problem knows more."""
        return False

    def held(self) -> Sequence[int]:
        """Return the nodes that it builds on, here none."""
        return ()

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Choose the next move, knowing the moves whose outcome is still awaited."""
        raise NotImplementedError

    def update(self, node: Node) -> None:
        """Learn from a judged node; a strategy that learns nothing leaves this out."""

    def state(self, node: int) -> str:
        """Describe a node's standing in a word or two, or return ""."""
        return ""


class Problem:
    """What a search looks for: how it is asked for, read, judged and kept.

    In the order of a completion:

    - `moves` are the kinds of move that it has words for.
    - `update` tells it of every node, in the order of their ids, before the strategy is
      told: all that it may learn from while it is searched.
    - `discloses` says, before that, whether a node has it show more from then on, which is
      written down with the node.
    - `messages` words a move for a language model, `shorter` does so for
      one that takes no prompt of that length, and `varied` so that it has not
      been asked in these words before.
    - `read` finds the candidate in the text of the completion.
    - `judge` scores it; called from several threads at once.
    - `confirm` makes sure of a verdict that would be the best, from the same threads.
    - `settled` says that nothing better is to be expected, although nothing says how good a
      candidate can be.
    - `requested` returns the contract that an answer asks for, `next_contract` proposes another
      contract for the rest of the search, and `under` returns the problem with that contract. The
      search records the switch and judges all earlier candidates again.
    - `keep` writes the best candidate so far into the folder of the run.

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
    """Limit of tokens per answer of a local language model, if the user sets none: four times the
    length of programs in this project's tests, so that a model can add a few words."""
    """The name of the file that the best candidate is kept in."""

    def update(self, node: Node) -> None:
        """Learn from a judged node; a problem that learns nothing leaves this out."""

    def discloses(self, node: Node) -> int | None:
        """Return the episode that prompts may show from this node on; here no more than before."""
        return None

    def requested(self, text: str) -> str:
        """Return the contract that a completion asks for, or ""."""
        return ""

    @property
    def next_contract(self) -> NextContract | None:
        """The contract to switch to, None to keep the present one."""
        return None

    def under(self, contract: str) -> Problem:
        """Return the same problem under another contract, which has learned no node."""
        raise NotImplementedError

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Ask for a candidate."""
        raise NotImplementedError

    def varied(self, move: Move, number: int) -> tuple[Message, ...]:
        """Ask otherwise than so many times before; here by saying that it was asked before."""
        asked, added = self.messages(move), ASKED_BEFORE.format(number=number)
        place = max((i for i, each in enumerate(asked) if each.role == "user"), default=0)
        again = asked[place].model_copy(update={"content": f"{asked[place].content}\n\n{added}"})
        return (*asked[:place], again, *asked[place + 1 :])

    def shorter(self, move: Move, room: int) -> tuple[Message, ...]:
        """Ask in about so many characters, leaving out what matters least: here nothing."""
        return self.messages(move)

    def read(self, text: str, move: Move) -> str:
        """Return the candidate in a completion: here the program in its fenced blocks, or ""."""
        from cwm_cli.search.reading import extract_program

        return extract_program(text, prefix=move.prefix)

    def judge(self, candidate: str) -> Verdict:
        """Score a candidate; what is wrong with it is in the verdict, never raised."""
        raise NotImplementedError

    def confirm(self, candidate: str, verdict: Verdict) -> Verdict:
        """Return the verdict confirmed, or one that says why it cannot be.

        This takes more time than `judge` may take for every candidate. Here a verdict stands
        as it is: where nothing that a candidate can see while it is judged tells what is right.
        """
        return replace(verdict, confirmed=True)

    @property
    def settled(self) -> bool:
        """Whether more completions are of no use; here that is for the score alone to say."""
        return False

    def keep(self, folder: Path, best: Node) -> None:
        """Write the best candidate so far down, the whole file or nothing of it."""
        partial = folder / f".{self.file}.part"
        partial.unlink(missing_ok=True)  # whatever it was: a pipe would be waited for
        partial.write_text(best.program, encoding="utf-8", errors="replace")
        partial.replace(folder / self.file)


class RefinementTask(NamedTuple):
    """A judged candidate to better: the node, and the best other ones, the best first.

    `problem` is what it is a candidate for; a refiner checks its type before it uses it. A refiner
    may `tell` in a few words what it is doing, from any thread.
    """

    problem: object
    node: Node
    others: Sequence[Node] = ()
    seed: int = 0
    tell: Callable[[str], None] = unheard


class Refinement(NamedTuple):
    """A candidate that may be better, "" for none, and what was found, for the next prompt."""

    candidate: str = ""
    findings: str = ""


class Refiner:
    """Betters a candidate without a completion: from what a search may fit to, and nothing else.

    A dataclass whose fields are its options (`-o NAME.KEY=VALUE`, NAME being its own in the hook).
    What it does follows from the task: its work is counted, and seconds only cap it. It never
    sees what candidates are tested by: of a `WorldModelProblem` the rows that are `fitted`.

    - `refine` looks at a candidate that runs and is not right yet; called from several threads.

    Example::

        @dataclass(frozen=True)
        class Tidy(Refiner):
            def refine(self, task):
                return Refinement(task.node.program.strip())
    """

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Return a candidate to judge, what was found, or None where there is nothing to do."""
        raise NotImplementedError


class Backend:
    """Whatever answers requests: a language model, a recording, an inducer.

    A dataclass with the field `model` (what `--model` named, "" where nothing
    was), whose other fields are its options (`-o backend.KEY=VALUE`); a field
    with the metadata `{"identity": False}` may differ when a run is continued.
    In the order of a search:

    - `needs_model` says that it cannot do without `--model`; `from_data` that
      it answers from recorded transitions alone, and so only for problems that
      have some (its option `learning`, if it has one, is set where an agent that acts on the
      answers asks the same object again and again, with ever more rows); `takes_help` that
      its searches begin with what data alone tell, and that refiners better its answers;
      `can_score` that it knows log-probabilities (an instance may find out that it does not),
      `normalises` that each is one number, the logarithm of a probability among all candidates,
      and `reads_messages` that it looks at the messages of what it scores, not at the question;
      `is_language_model` that answers take tokens, money or time that nobody wants to spend twice:
      they may be kept (`--cache`), and what they will take is told before a benchmark.
    - `ready` refuses what the user can mend before anything is begun.
    - `prepare` tells it of the environment that it will weigh predictions of.
    - `assign` names the model that is to answer a question, where there are several, and `update`
      tells it of every node, in the order of their ids: all that it may choose by.
    - `worst_cost` is asked before a completion where `--max-cost` is given, and `price` and
      `answer_length` before a benchmark, for the estimate.
    - `complete` answers; called from several threads at once.
    - `recorded` are the turns of a search whose answers it repeats.
    - `score`, where `can_score`, weighs texts, many at a time; `weighed` is what that took so far;
      `of_candidates` weighs all that may follow at once, where that is quicker.
    - `remedy` is advice to users if no program runs, as the end of a sentence.
    - `wording` and `unread` are for who writes the rules that it weighs by: how they have to be
      worded, and what of some it makes nothing of.

    Example::

        @dataclass(frozen=True)
        class Echo(Backend):
            model: str = ""

            def complete(self, request):
                return Completion(request.messages[-1].content)
    """

    needs_model: ClassVar[bool] = False
    from_data: ClassVar[bool] = False
    takes_help: ClassVar[bool] = False
    can_score: ClassVar[bool] = False
    normalises: ClassVar[bool] = False
    reads_messages: ClassVar[bool] = True
    is_language_model: ClassVar[bool] = False
    starts_from: ClassVar[str] = ""
    caveat: ClassVar[str] = ""
    remedy: ClassVar[str] = "use another --model"

    def ready(self, max_cost: float | None = None) -> None:
        """Refuse what can be told at once, asking nobody: a missing key, an unknown model or price.

        Called before data are recorded for nothing.
        """

    def prepare(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any],
        tell: Callable[[str], None] = unheard,
    ) -> None:
        """Learn what it has to know of an environment before it weighs anything; here nothing.

        That may take minutes: `tell` takes a line now and then.
        """

    def assign(self, rng: np.random.Generator, pending: Sequence[str]) -> str:
        """Return the model that is to answer next, given those that are answering; here the only.

        All chance comes from `rng`, so that a search can be resumed and repeated.
        """
        return ""

    def update(self, node: Node) -> None:
        """Learn what came of an answer; a backend with a single model has nothing to learn."""

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return what so many tokens cost in US dollars, None where the price is unknown."""
        return 0.0

    def answer_length(self) -> AnswerLength:
        """Return how many tokens an answer takes where nobody has counted any; here none."""
        return AnswerLength()

    def complete(self, request: Request) -> Completion:
        """Answer; raises `CwmError` for what the user can mend, such as a refused key.

        Where the cost is limited such a question counts with the worst that it may have cost; an
        `UnansweredError` says how much that is.
        """
        raise NotImplementedError

    def worst_cost(self, request: Request) -> float | None:
        """Return the most that answering can cost in US dollars, None when the price is unknown."""
        return 0.0

    def recorded(self) -> Sequence[Turn]:
        """Return when each node and remark was learned, in that order; here any order will do."""
        return ()

    @property
    def weighed(self) -> Usage:
        """What scoring took so far; here nobody counts it."""
        return Usage()

    def wording(self, view: TextView) -> str:
        """Say how rules have to be worded for it to read them; here any words will do."""
        return ""

    def unread(self, view: TextView, rules: str) -> Sequence[str]:
        """Return what it makes nothing of in rules, in a line each; here it reads all."""
        return ()

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Return, for each request, the log-probability of each token of its text as the answer."""
        raise CwmError(
            f"{type(self).__name__} provides no log-probabilities: choose another backend"
        )

    def of_candidates(self, questions: Sequence[Any]) -> Sequence[np.ndarray] | None:
        """Return, for each question of a prediction, the log-probability of each candidate.

        Here None: each candidate is a text to `score`.
        """
        return None
