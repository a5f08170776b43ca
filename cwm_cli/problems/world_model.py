"""The problem of writing a world model: prompts from a description, verdicts from transitions."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self, cast

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import AccuracyMetric, Evaluation, Metric, evaluate, log_error
from cwm_cli.evaluation.finding import USUAL_METRICS, ContractName, Finding, reexamine
from cwm_cli.problems.contract_requests import request_words, requested_contract
from cwm_cli.problems.feedback import (
    About,
    counterexample,
    documented_names,
    evidence,
    hidden_examples,
    needed,
    on_chance,
    report,
    uncertain_report,
)
from cwm_cli.problems.feedback.dead_end import GENERALISE, UNSEEN, dead_end
from cwm_cli.problems.history import History
from cwm_cli.problems.templates import messages
from cwm_cli.registry import find
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.failures import NO_ANSWER, Failure
from cwm_cli.search.contracts import (
    ASKED_BEFORE,
    GENERATE,
    IMPROVE,
    ROOT,
    Message,
    Move,
    NextContract,
    Node,
    Problem,
    Verdict,
)
from cwm_cli.search.reading import extract_program
from cwm_cli.worlds import ProgramModel

if TYPE_CHECKING:
    from cwm_cli.testing.conftest import Material

NO_OPTION = {"option": False}
"""Marks a field with a default that is no option of the user's."""

PARTS = ("observation", "reward", "terminated", "valid_actions", "exact")
"""Parts of a score that a verdict keeps."""

EXAMINED_AFTER = 2
"""Completions without a better program after which the contract is examined again."""

HIGH_SCORE = 0.9
"""Above this score users expect a search to end, and learn why it does not."""

NO_PROGRAM = (
    "This question was asked before, but the answer held no whole program: {reason} Answer again, "
    "briefly, with the whole program in one ```python block."
)

INEXACT = (
    "Every transition is predicted within the tolerance. What the score lacks comes from its "
    "exact comparison with rewards that were stored as float32, and from limits of time that "
    "some imported files mark as ends."
)


@dataclass(frozen=True)
class WorldModelProblem(Problem):
    """Find a program that predicts the train rows of an environment.

    `dataset[dataset.fitted]` is the part that may be fitted to and shown in
    prompts; the other rows only tell whether a program is right in general.
    `tools` are modules that programs may import beside the usual ones, `contract` is what the data
    ask of a program. After a dead end one
    episode more is `shown`. Programs have to keep the `contract`; `finding` is what the rows say
    of which one they need.
    """

    description: str
    dataset: Dataset
    sandbox: Sandbox
    metric: Metric
    seed: int = field(default=0, metadata=NO_OPTION)
    feedback: Literal["full", "paper"] = "full"
    """What a prompt to improve says: a report on all that may be shown, or, as published, one
    counterexample: the first transition that is wrong."""
    evidence_tokens: int = 2000
    """About how many tokens of recorded transitions a prompt to generate may hold, 0 for none; as
    published there are none. A description of its own spares half of them and more."""
    prefill: bool = False
    """Begin the answer in a turn of the assistant, as published, and ask for no steps of thought;
    many services refuse that or begin anew."""
    patience: int = 6
    """Completions in a row that better nothing beyond noise before a search for a program of chance
    or memory ends, where nothing tells what can be reached: what one answer in three betters has
    been bettered by then, nine times of ten."""
    tools: tuple[str, ...] = field(default=(), metadata=NO_OPTION)
    contract: ContractName = field(default="plain", metadata=NO_OPTION)
    finding: Finding | None = field(default=None, metadata=NO_OPTION, repr=False)
    measure: Callable[[ContractName], Metric] | None = field(
        default=None, metadata=NO_OPTION, repr=False, compare=False
    )
    """Makes the metric of another contract; None if the contract may not change."""
    former: tuple[ContractName, ...] = field(default=(), metadata=NO_OPTION, repr=False)
    """Contracts that the search has left."""
    learned_before: int = field(default=0, metadata=NO_OPTION, repr=False)
    """Nodes of the search that were found under former contracts."""
    _history: History = field(default_factory=History, init=False, repr=False, compare=False)
    _verdicts: dict[str, tuple[int, Verdict]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _suggested: dict[str, Finding | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def example(cls, material: "Material") -> Self:
        """Make a small one, for the tests of what plugs in."""
        train = material.dataset.train
        metric = AccuracyMetric.of(train)
        return cls("A cart with a pole.", train, material.sandbox, metric)

    @property
    def shown(self) -> np.ndarray:
        """Mask of the rows that prompts may show: those that are fitted to, and disclosed ones."""
        return self._shown(self._history.disclosed)

    def update(self, node: Node) -> None:
        """Learn what was tried, and what is shown from now on."""
        self._history.update(node)

    def discloses(self, node: Node) -> int | None:
        """Disclose an episode when a dead end was asked about, at most half of those held back."""
        question = self._history.questioned(node)
        if question is None or self.feedback == "paper":
            return None
        held_back = np.unique(self.dataset.columns["episodes"][~self.dataset.fitted])
        if len(self._history.disclosed) >= len(held_back) // 2:
            return None
        return self._seen(question.program, question.verdict).dead_end

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Fill the template of the move's action."""
        return self._asked(move)

    def varied(self, move: Move, number: int) -> tuple[Message, ...]:
        """Say that this was asked before, and what came of it."""
        return self._asked(move, number=number)

    def shorter(self, move: Move, room: int) -> tuple[Message, ...]:
        """Leave out examples first, then the end of the description."""
        return self._asked(move, room)

    def _asked(self, move: Move, room: int | None = None, number: int = 0) -> tuple[Message, ...]:
        """Return the prompt of a move; an answer without a program is no bug, so ask again."""
        if not _lacks_answer(move) or self.feedback == "paper":
            return self._worded(move, room, number)
        question = self._question(self._history.nodes[move.parent])
        if number or _lacks_answer(question):  # it was asked again already
            return self._worded(Move(GENERATE), room, number + 1)
        assert move.verdict is not None and move.verdict.failure is not None
        reason = NO_PROGRAM.format(reason=move.verdict.failure.message.strip())
        room = None if room is None else room - len(reason) - 2
        return tuple(
            message.model_copy(update={"content": f"{message.content}\n\n{reason}"})
            if message.role == "user"
            else message
            for message in self._worded(question, room, number)
        )

    def _question(self, node: Node) -> Move:
        """Return the move that a node answers."""
        if node.parent == ROOT:
            return Move(node.action)
        parent = self._history.nodes[node.parent]
        return Move(node.action, parent.id, parent.program, parent.verdict)

    def _worded(self, move: Move, room: int | None = None, number: int = 0) -> tuple[Message, ...]:
        """Ask in so many characters, if there is a limit, and otherwise than `number` times."""
        interface = find("contract", self.contract)().words(
            self.dataset.observation_space,
            self.dataset.action_space,
            tools=self.tools,
            names_actions=self.dataset.has_valid_actions,
            fitted=self.feedback != "paper" and self._has_real_numbers,
        )
        description, recorded = self.description.strip(), ""
        if self.measure is not None and self.feedback != "paper":
            interface += f"\n\n{request_words(self.contract, self.former)}".rstrip()
        if self.feedback != "paper":
            shown = self.dataset[self.shown]
            interface += f"\n\n{self.metric.words(shown)}"
            if self.contract != "plain" and move.action != GENERATE:
                interface += f"\n\n{self._uncertain(shown)}"
            move = self._informed(move, number)
            description = needed(description, self._settled(move))
            if move.action == GENERATE:
                recorded = self._evidence(shown, number)
        return messages(
            "world_model",
            move,
            name="continue" if self.prefill and move.action == GENERATE else "",
            prefill=self.prefill,
            room=room,
            description=description,
            interface=interface,
            evidence=f"\n\n{recorded}" if recorded else "",
        )

    def _settled(self, move: Move) -> list[About]:
        """Return what an improved program is right about already, as far as anybody knows."""
        parts = move.verdict.parts if move.verdict and move.action == IMPROVE else {}
        about: dict[str, About] = {"reward": "reward", "terminated": "ends"}
        return [passage for part, passage in about.items() if parts.get(part) == 1.0]

    @property
    def _has_real_numbers(self) -> bool:
        """Whether anything that is observed is a real number."""
        leaves = self.dataset.observation_space.leaves("observations")
        return any(leaf.space.is_float for leaf in leaves)

    def _evidence(self, shown: Dataset, variant: int) -> str:
        """Say what the rows that may be shown show, and what was tried if this is asked again."""
        key = len(shown), variant
        if key not in self._told:
            self._told[key] = evidence(
                shown,
                self.metric,
                self.description,
                tokens=self.evidence_tokens,
                variant=variant,
                uncertain=self._uncertain(shown),
            )
        again = [self._history.programs(), ASKED_BEFORE.format(number=variant)] if variant else []
        return "\n\n".join(filter(None, [self._told[key], *again]))

    def _uncertain(self, shown: Dataset) -> str:
        """Say what is known of chance, and of what is hidden."""
        names = documented_names(self.description, self.dataset.observation_space)
        told = on_chance(self.finding, self.contract, names)
        if self.contract == "memory" and self.finding is not None and self.finding.conflicts:
            told = "\n".join([told, *hidden_examples(shown)])
        return told

    @cached_property
    def _told(self) -> dict[tuple[int, int], str]:
        """The evidence of prompts, by how many rows may be shown, which only grow, and variant."""
        return {}

    def _informed(self, move: Move, number: int) -> Move:
        """Add to what is wrong with a program, as far as is shown now, what was tried in vain."""
        told = move.verdict
        if told is None or told.failure is None or move.action == GENERATE:
            return move
        verdict = self._seen(move.program, told)
        failure = verdict.failure or told.failure
        words = [failure.message, told.findings, self._history.refuted(move)]
        if verdict.dead_end is not None:
            words.insert(1, self._evidence(self.dataset[self.shown], 0))
        if number:
            words.append(ASKED_BEFORE.format(number=number))
        failure = replace(failure, message="\n\n".join(filter(None, words)))
        return move._replace(verdict=replace(told, failure=failure))

    def _seen(self, program: str, verdict: Verdict) -> Verdict:
        """Return the verdict of a program with what was disclosed since.

        `judge` leaves that out, so that its verdict does not depend on what arrives before it.
        """
        disclosed = self._history.disclosed
        if not disclosed or verdict.is_bug:
            return verdict
        if self._verdicts.get(program, (0, verdict))[0] != len(disclosed):
            seen = self._judge(program, audited=False, disclosed=disclosed)
            self._verdicts[program] = len(disclosed), seen
        return self._verdicts[program][1]

    def read(self, text: str, move: Move) -> str:
        """Return the program of a completion, which may go on with an answer that was begun."""
        begun = self.prefill and move.action == GENERATE
        return extract_program(text, prefix=move.prefix, begun=begun)

    def judge(self, program: str) -> Verdict:
        """Score the program on every train row."""
        if not program.strip():
            failure = Failure(kind=NO_ANSWER, message="there is no program in it.")
            return Verdict(score=0.0, failure=failure)
        return self._judge(program, audited=False)

    def confirm(self, program: str, verdict: Verdict) -> Verdict:
        """Score the program again, and have its answers audited."""
        return replace(self._judge(program, audited=True), confirmed=True)

    def _judge(self, program: str, *, audited: bool, disclosed: tuple[int, ...] = ()) -> Verdict:
        model = ProgramModel(program, self.sandbox)
        found = evaluate(model, self.dataset, self.metric, seed=self.seed, audited=audited)
        if found.failure is not None:
            return Verdict(score=0.0, failure=found.failure)
        shown = self._shown(disclosed)
        score, wrong, reached = found.score.value, found.rows < 1.0, found.score.reached
        parts = found.score.model_dump(include=set(PARTS))
        failure = None if score == 1.0 or reached else self._mismatch(found, shown)
        certain = self.contract == "plain" and self.feedback != "paper"
        stuck = certain and wrong.any() and not wrong[shown].any()
        return Verdict(
            score=score,
            validation=score if shown.all() else self._score(found, ~shown),
            parts={name: share for name, share in parts.items() if share is not None},
            failure=failure,
            floor=found.score.least,
            error=log_error(found.predictions, self.dataset),
            dead_end=_most_common(self.dataset.columns["episodes"][wrong]) if stuck else None,
            reached=reached,
            stderr=found.score.skill_stderr,
            open_gap=(found.score.open_gap or "") if score > HIGH_SCORE else "",
        )

    def requested(self, text: str) -> str:
        """Return another contract that a completion asks for, or ""."""
        name = requested_contract(text) if self.measure is not None else ""
        return name if self._is_open(name) else ""

    @property
    def next_contract(self) -> NextContract | None:
        """The contract that the last answers ask for, or that a stuck search suggests."""
        nodes = self._history.nodes
        if self.measure is None or self.feedback == "paper" or not nodes:
            return None
        for node in reversed(nodes[self.learned_before :]):
            if node.requested:
                return NextContract(node.requested, f"node #{node.id} asks for it")
        if (found := self._finding_if_stuck) is None:
            return None
        names = documented_names(self.description, self.dataset.observation_space)
        return NextContract(found.contract, found.words(names))

    def under(self, contract: str) -> Self:
        """Return the same problem under another contract, which has learned no node."""
        assert self.measure is not None
        name, found = cast("ContractName", contract), self._finding_if_stuck
        return replace(
            self,
            contract=name,
            metric=self.measure(name),
            finding=found if found is not None and found.contract == contract else None,
            former=(*self.former, self.contract),
            learned_before=len(self._history.nodes),
        )

    def _is_open(self, contract: str) -> bool:
        """Whether the search may switch to a contract: each one is tried once."""
        return contract in USUAL_METRICS and contract not in (self.contract, *self.former)

    @property
    def _finding_if_stuck(self) -> Finding | None:
        """What the errors of the best program suggest, if nothing improves and they do."""
        nodes = self._history.nodes
        best = max(nodes, key=lambda node: node.verdict.rank, default=None)
        if best is None or best.verdict.is_bug or best.verdict.solved:
            return None
        since = max(best.id + 1, self.learned_before)
        later = nodes[since:]
        given_up = any(node.final for node in nodes[self.learned_before :])
        if sum(node.asked for node in later) < EXAMINED_AFTER and not given_up:
            return None
        if best.program not in self._suggested:
            rows = self.dataset[self.dataset.fitted]
            model = ProgramModel(best.program, self.sandbox)
            found = evaluate(model, rows, self.metric, seed=self.seed)
            self._suggested[best.program] = (
                None
                if found.failure is not None
                else reexamine(rows, found.predictions, self.contract)
            )
        finding = self._suggested[best.program]
        return finding if finding is not None and self._is_open(finding.contract) else None

    @property
    def settled(self) -> bool:
        """Whether the score has not improved beyond noise for `patience` completions.

        This ends a search only if chance or hidden state leave the best reachable score unknown.
        """
        best, waited = None, 0
        for node in self._history.nodes if self.contract != "plain" else ():
            verdict = node.verdict
            waited += node.asked and node.id >= self.learned_before
            if best is None or verdict.score > best.score + (best.stderr or 0.0):
                best, waited = verdict, 0
        if best is None or best.reached is not None or best.score <= best.floor:
            return False
        return waited >= self.patience

    def _shown(self, disclosed: tuple[int, ...]) -> np.ndarray:
        """Return the mask of the rows that are fitted to, or in one of these episodes."""
        mask: np.ndarray = self.dataset.fitted
        mask |= np.isin(self.dataset.columns["episodes"], disclosed)
        return mask

    def _score(self, found: Evaluation, mask: np.ndarray) -> float:
        """Score what was said of some of the rows."""
        assert found.answers is not None
        return self.metric.score(found.answers[mask], self.dataset[mask]).value

    def _mismatch(self, found: Evaluation, shown: np.ndarray) -> Failure:
        """Say what is predicted wrongly, showing nothing of the hidden rows."""
        wrong, published = found.rows < 1.0, self.feedback == "paper"
        if self.contract != "plain" and not published and found.answers is not None:
            said = self.dataset[shown], found.answers[shown], self.metric, self.description
            message = uncertain_report(*said, contract=self.contract)
        elif wrong[shown].any():
            write, rows = counterexample if published else report, self.dataset[shown]
            message = write(rows, _rows(found.predictions, shown), self.metric, self.description)
        elif not wrong.any():
            message = INEXACT
        elif published:
            unseen = UNSEEN.format(wrong=int(wrong.sum()), rows=int((~shown).sum()))
            message = f"{unseen} {GENERALISE}"
        else:
            told = self.dataset, found.predictions, self.metric, shown, self.description
            message = dead_end(*told)
        return Failure(kind="mismatch", message=message)


def _lacks_answer(move: Move) -> bool:
    """Return whether a move is about an answer that held no whole program."""
    failure = move.verdict.failure if move.verdict is not None else None
    return failure is not None and failure.kind == NO_ANSWER


def _most_common(numbers: np.ndarray) -> int:
    """Return the number that occurs most often, the smallest of several."""
    values, counts = np.unique(numbers, return_counts=True)
    return int(values[np.argmax(counts)])


def _rows(columns: Columns, mask: np.ndarray) -> Columns:
    """Select rows of columns."""
    return {name: column[mask] for name, column in columns.items()}
