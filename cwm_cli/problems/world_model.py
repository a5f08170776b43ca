"""The problem of writing a world model: prompts from a description, verdicts from transitions."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self, cast

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import Evaluation, Metric, evaluate, log_error
from cwm_cli.evaluation.finding import USUAL_METRICS, ContractName, Finding, reexamine
from cwm_cli.problems.feedback import (
    counterexample,
    documented_names,
    evidence,
    failing_steps,
    on_chance,
    report,
    right_steps,
    trim_description,
    uncertain_report,
)
from cwm_cli.problems.feedback.dead_end import GENERALISE, UNSEEN, dead_end
from cwm_cli.problems.feedback.evidence import DOCUMENTED, SPARED
from cwm_cli.problems.history import History, other_programs
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
from cwm_cli.search.reading import extract_program, without_thinking
from cwm_cli.text import estimated_tokens, percent, share
from cwm_cli.worlds import ProgramModel

NO_OPTION = {"option": False}
"""Marks a field with a default that is no option of the user's."""

PARTS = ("observation", "reward", "terminated", "valid_actions", "exact")
"""Parts of a score that a verdict keeps."""

EXAMINED_AFTER = 2
"""Completions without a better program after which the contract is examined again."""

HIGH_SCORE = 0.9
"""Above this score users expect a search to end, and learn why it does not."""

EARLIER_STEPS = (
    "The last programs were not better. Check in these episodes whether earlier steps decide the "
    "outcomes that seem to be random. If they do, write `CONTRACT: memory`."
)

MARKER = "CONTRACT:"
"""The beginning of a line of a completion that asks for programs of another contract."""

REQUEST = re.compile(
    rf"^[ \t>*_`-]*{MARKER}[ \t*_`]*({'|'.join(USUAL_METRICS)})\b", re.MULTILINE | re.IGNORECASE
)

NEEDS = {
    "plain": "if the present observation and the action decide everything",
    "chance": "if the same situation can lead to different outcomes by chance",
    "memory": "if outcomes depend on earlier steps, for example on a hidden mode, timer or counter",
}

NO_PROGRAM = (
    "This question was asked before, but the answer held no whole program: {reason} Answer again, "
    "briefly, with the whole program in one ```python block."
)

INEXACT = (
    "Every transition is predicted within the tolerance. The score is below 1 because it compares "
    "rewards that were stored as float32 exactly, or because some imported files mark time limits "
    "as ends."
)

EXPLAINED = 0.95
"""Improve prompts show recorded steps until the program predicts this share of rows exactly."""

IMPROVING = 0.2
"""Share of `evidence_tokens` for recorded steps in a prompt to improve, if a long description and
a report are in it as well."""

LEAST_RIGHT, UNDOCUMENTED_RIGHT = 0.1, 0.25
"""Least share of `evidence_tokens` for rightly predicted steps next to the recorded steps, with and
without a long description."""

STUCK, OTHERS_TOKENS = 3, 1200
"""After this many completions in a row without a better program, improve prompts also show other
programs of the search, in about this many tokens."""


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
    """Feedback in a prompt that improves a program. full: a report on all rows that may be shown;
    paper: one counterexample, the first wrong transition, as published."""
    evidence_tokens: int = 2000
    """Approximate number of tokens for recorded transitions in a prompt; 0 for none. With a long
    description of the environment, 60 % of the tokens stay unused. The published
    prompts have none."""
    prefill: bool = False
    """Start the answer in an assistant message and ask for no reasoning steps, as published. Many
    services refuse this or start their answer again."""
    patience: int = 6
    """Number of completions in a row without an improvement beyond noise after which the search
    ends. This applies to stochastic programs and programs with memory if the best possible score
    is unknown. With 6, an improvement that one in three answers makes is found nine times out of
    ten."""
    tools: tuple[str, ...] = field(default=(), metadata=NO_OPTION)
    contract: ContractName = field(default="plain", metadata=NO_OPTION)
    finding: Finding | None = field(default=None, metadata=NO_OPTION, repr=False)
    measure: Callable[[ContractName], Metric] | None = field(
        default=None, metadata=NO_OPTION, repr=False, compare=False
    )
    """Makes the metric of another contract; None if the contract may not change."""
    former: tuple[ContractName, ...] = field(default=(), metadata=NO_OPTION, repr=False)
    """Contracts that the search has left."""
    _history: History = field(default_factory=History, init=False, repr=False, compare=False)
    _verdicts: dict[str, tuple[int, Verdict]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _suggested: dict[str, Finding | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

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
        """Add that the question was asked before, and show other steps of equal value."""
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
        """Return the prompt of a move in at most `room` characters; it was asked `number` times."""
        interface = find("contract", self.contract)().words(
            self.dataset.observation_space,
            self.dataset.action_space,
            tools=self.tools,
            names_actions=self.dataset.has_valid_actions,
            fitted=self.feedback != "paper" and self._has_real_numbers,
        )
        description, recorded, others = self.description.strip(), "", ""
        if self.feedback != "paper":
            shown = self.dataset[self.shown]
            names = documented_names(self.description, self.dataset.observation_space)
            about = [interface, self.metric.words(shown)]
            about.append(on_chance(self.finding, self.contract, names))
            if self.measure is not None:
                about.append(request_words(self.contract, self.former))
            interface = "\n\n".join(filter(None, about))
            description = trim_description(description)
            sections = []
            if self._needs_evidence(move):
                sections.append(self._evidence(shown, number, improves=move.action == IMPROVE))
                if self._may_hide_state:
                    sections.append(EARLIER_STEPS)
            if move.action == GENERATE and move.verdict is not None:
                sections.append(_start_words(move.verdict))
            if move.action == GENERATE and number:
                sections += [self._history.programs(), ASKED_BEFORE.format(number=number)]
            recorded = "\n\n".join(filter(None, sections))
            others = self._others(move)
            move = self._informed(move, number)
        return messages(
            "world_model",
            move,
            name="continue" if self.prefill and move.action == GENERATE else "",
            prefill=self.prefill,
            room=room,
            description=description,
            interface=interface,
            evidence=f"\n\n{recorded}" if recorded else "",
            others=f"\n\n{others}" if others else "",
        )

    def _needs_evidence(self, move: Move) -> bool:
        """Return whether a prompt shows recorded steps."""
        verdict = move.verdict
        if move.action != IMPROVE or verdict is None:
            return True
        if self._seen(move.program, verdict).dead_end is not None:
            return True
        return verdict.parts.get("exact", 0.0) < EXPLAINED

    @property
    def _has_real_numbers(self) -> bool:
        """Whether some component of the observation is a real number."""
        leaves = self.dataset.observation_space.leaves("observations")
        return any(leaf.space.is_float for leaf in leaves)

    @cached_property
    def _is_documented(self) -> bool:
        """Whether the description states rules that steps would have to show otherwise."""
        return estimated_tokens(self.description) >= DOCUMENTED

    def _evidence(self, shown: Dataset, variant: int = 0, *, improves: bool = False) -> str:
        """Return the section on the recorded steps that prompts may show.

        It is shorter in a prompt to improve a program of a documented environment, because the
        description and the report are in the prompt as well.
        """
        tokens = self.evidence_tokens
        if improves and self._is_documented:
            tokens = int(IMPROVING * tokens)
        contract = "memory" if self._may_hide_state else self.contract
        key = len(shown), variant, tokens, contract
        if key not in self._sections:
            self._sections[key] = evidence(
                shown,
                self.metric,
                self.description,
                tokens=tokens,
                variant=variant,
                contract=contract,
            )
        return self._sections[key]

    @property
    def _may_hide_state(self) -> bool:
        """Whether a search for a program with chance is stuck, and memory was not tried.

        Prompts then show episodes in order, since earlier steps may explain the outcomes.
        """
        can_switch = self.measure is not None and self._is_open("memory")
        is_stuck = self._history.stuck >= EXAMINED_AFTER
        return self.contract == "chance" and can_switch and is_stuck

    @cached_property
    def _sections(self) -> dict[tuple[int, int, int, ContractName], str]:
        """The sections on recorded steps, by number of rows, variant, allowance and contract."""
        return {}

    def _right_steps(self, shown: Dataset, right: np.ndarray, *, brief: bool) -> str:
        """Return rightly predicted steps, to fill the allowance for steps."""
        allowance = self.evidence_tokens
        if self._is_documented:
            allowance = int((1 - SPARED) * allowance)
        if brief:
            left = allowance - estimated_tokens(self._evidence(shown, improves=True))
            least = LEAST_RIGHT if self._is_documented else UNDOCUMENTED_RIGHT
            allowance = max(left, int(least * self.evidence_tokens))
        return right_steps(shown, right, allowance) if allowance > 0 else ""

    def _others(self, move: Move) -> str:
        """Return other programs of a stuck search, for a prompt to improve one that runs."""
        if move.action != IMPROVE or self._history.stuck < STUCK:
            return ""
        rows = self.dataset[self.shown]
        return other_programs(
            self._history, move, lambda program: self._rights(program, rows), OTHERS_TOKENS
        )

    def _rights(self, program: str, rows: Dataset) -> np.ndarray | None:
        """Return which rows a program predicts exactly, None if it fails."""
        key = program, len(rows)
        if key not in self._right_rows:
            model = ProgramModel(program, self.sandbox)
            found = evaluate(model, rows, self.metric, seed=self.seed, audited=False)
            self._right_rows[key] = None if found.failure is not None else found.rows >= 1.0
        return self._right_rows[key]

    @cached_property
    def _right_rows(self) -> dict[tuple[str, int], np.ndarray | None]:
        """The rows that programs predict exactly, by program and number of rows."""
        return {}

    def _informed(self, move: Move, number: int) -> Move:
        """Add to the failure of a program what disclosed rows show and which changes failed."""
        verdict = move.verdict
        if verdict is None or verdict.failure is None or move.action == GENERATE:
            return move
        failure = self._seen(move.program, verdict).failure or verdict.failure
        called = failing_steps(self.dataset, self.shown, failure) if failure.is_bug else ""
        words = [failure.message, called, self._history.refuted(move)]
        if number:
            words.append(ASKED_BEFORE.format(number=number))
        failure = replace(failure, message="\n\n".join(filter(None, words)))
        return move._replace(verdict=replace(verdict, failure=failure))

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
        certain = self.contract != "chance" and self.feedback != "paper"
        is_dead_end = certain and bool(wrong.any()) and not wrong[shown].any()
        failure = None
        if score < 1.0 and not reached:
            failure = self._mismatch(found, shown, is_dead_end=is_dead_end)
        return Verdict(
            score=score,
            validation=score if shown.all() else self._score(found, ~shown),
            parts={name: share for name, share in parts.items() if share is not None},
            failure=failure,
            floor=found.score.least,
            error=log_error(found.predictions, self.dataset),
            dead_end=_most_common(self.dataset.columns["episodes"][wrong]) if is_dead_end else None,
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
        for node in reversed(nodes[self._history.since :]):
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
        problem = replace(
            self,
            contract=name,
            metric=self.measure(name),
            finding=found if found is not None and found.contract == contract else None,
            former=(*self.former, self.contract),
        )
        problem._history.since = len(self._history.nodes)
        return problem

    def _is_open(self, contract: str) -> bool:
        """Whether the search may switch to a contract: each one is tried once."""
        return contract in USUAL_METRICS and contract not in (self.contract, *self.former)

    @property
    def _finding_if_stuck(self) -> Finding | None:
        """The other contract that the errors of the best program suggest in a stuck search."""
        nodes = self._history.nodes
        best = max(nodes, key=lambda node: node.verdict.rank, default=None)
        if best is None or best.verdict.is_bug or best.verdict.solved:
            return None
        given_up = any(node.final for node in nodes)
        if self._history.stuck < EXAMINED_AFTER and not given_up:
            return None
        if best.program not in self._suggested:
            rows = self.dataset[self.dataset.fitted]
            model = ProgramModel(best.program, self.sandbox)
            found = evaluate(model, rows, self.metric, seed=self.seed, audited=False)
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
            waited += node.asked and node.id >= self._history.since
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

    def _mismatch(self, found: Evaluation, shown: np.ndarray, *, is_dead_end: bool) -> Failure:
        """Describe wrong predictions without showing anything of the hidden rows."""
        wrong, published, rows = found.rows < 1.0, self.feedback == "paper", self.dataset[shown]
        brief = self.evidence_tokens > 0 and found.score.exact < EXPLAINED
        predictions = _rows(found.predictions, shown)
        uncertain = found.answers if self.contract != "plain" and not published else None
        if published and wrong[shown].any():
            message = counterexample(rows, predictions, self.metric, self.description)
        elif uncertain is not None and not is_dead_end:
            message = uncertain_report(
                rows,
                uncertain[shown],
                self.metric,
                self.description,
                contract=self.contract,
                brief=brief,
            )
            if found.score.open_gap:
                message += f"\n\nThe search is not over because {found.score.open_gap}, counting "
                message += "rows that are not shown."
        elif wrong[shown].any():
            written = report(rows, predictions, self.metric, self.description, brief=brief)
            right = self._right_steps(rows, ~wrong[shown], brief=brief)
            message = "\n\n".join(filter(None, [written, right]))
        elif not wrong.any():
            message = INEXACT
        elif published:
            unseen = UNSEEN.format(wrong=int(wrong.sum()), rows=int((~shown).sum()))
            message = f"{unseen} {GENERALISE}"
        else:
            message = dead_end(
                self.dataset, found.predictions, self.metric, shown, self.description
            )
        return Failure(kind="mismatch", message=message)


def _start_words(verdict: Verdict) -> str:
    """Mention the program that a search began with, which explains too little to be improved."""
    if verdict.stderr is not None:
        quality = f"scores {share(verdict.score, 4)}"
    else:
        quality = f"predicts {percent(verdict.explained)} of these transitions exactly"
    return f"The program that this search began with {quality}. {verdict.findings}".strip()


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


def request_words(contract: ContractName, former: tuple[ContractName, ...] = ()) -> str:
    """Return the sentences of a prompt that explain the marker; "" if every contract was tried."""
    others = [name for name in NEEDS if name != contract and name not in former]
    if not others:
        return ""
    listed = ", or ".join(f"`{MARKER} {name}` {NEEDS[name]}" for name in others)
    return (
        "If no program of this kind can be right, write one of these lines outside the program, "
        f"and the next question asks for a program of that kind: {listed}. The answer may "
        "still hold a program of the present kind."
    )


def requested_contract(text: str) -> str:
    """Return the contract that a completion asks for in a line of its own, or "".

    The last such line counts. Lines inside a model's thoughts do not.
    """
    found = REQUEST.findall(without_thinking(text).text)
    return str(found[-1]).lower() if found else ""
