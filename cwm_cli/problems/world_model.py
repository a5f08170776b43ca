"""The problem of writing a world model: its prompts, and the verdicts on its programs."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self, cast

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.bodies import Body
from cwm_cli.evaluation import Evaluation, Metric, evaluate, log_error
from cwm_cli.evaluation.finding import CERTAIN, USUAL_METRICS, ContractName, Finding, reexamine
from cwm_cli.evaluation.noise import NoiseLevel
from cwm_cli.evaluation.residuals import with_components
from cwm_cli.evaluation.verdicts import explains_all_but_noise
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
from cwm_cli.problems.feedback.evidence import DOCUMENTED, SPARED
from cwm_cli.problems.feedback.other_reports import GENERALISE, UNSEEN, dead_end
from cwm_cli.problems.history import History, other_programs
from cwm_cli.problems.templates import messages
from cwm_cli.registry import find
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.failures import NO_ANSWER, Failure
from cwm_cli.search.contracts import (
    ASKED_BEFORE,
    FIX,
    GENERATE,
    IMPROVE,
    ROOT,
    SIMPLIFY,
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
"""Metadata of a field that is no option of the command line."""

EXAMINED_AFTER = 2
"""Completions without a better program after which the search examines the contract again."""

EARLIER_STEPS = (
    "The last programs were not better. Check in these episodes whether earlier steps decide the "
    "outcomes that seem to be random. If they do, write `CONTRACT: memory`."
)

MARKER = "CONTRACT:"
"""The beginning of the line of a completion that requests programs of another contract."""

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

NO_OUTLIER = "No error is larger than four times the noise."

EXPLAINED = 0.95
"""Improve prompts show recorded steps until the program predicts this share of rows exactly."""


@dataclass(frozen=True)
class WorldModelProblem(Problem):
    """The problem of finding a program that predicts the train rows of an environment.

    Programs are fitted to the rows `dataset[dataset.fitted]`, and prompts show only these rows.
    The other train rows are hidden: they measure whether a program generalises. After a dead end,
    one hidden episode is disclosed.

    Programs satisfy the `contract`. `finding` states which contract the rows need, and why.
    `tools` are additional modules that programs may import.
    """

    moves = (GENERATE, IMPROVE, FIX, SIMPLIFY)

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
    body: Body | None = field(default=None, metadata=NO_OPTION, repr=False)
    """MuJoCo model that programs may simulate."""
    contract: ContractName = field(default="plain", metadata=NO_OPTION)
    finding: Finding | None = field(default=None, metadata=NO_OPTION, repr=False)
    noise: Mapping[int, NoiseLevel] = field(default_factory=dict, metadata=NO_OPTION, repr=False)
    """Noise levels of the components, if they are known."""
    measure: Callable[[ContractName], Metric] | None = field(
        default=None, metadata=NO_OPTION, repr=False, compare=False
    )
    """Returns the metric of a contract; None if the contract must not change."""
    former: tuple[ContractName, ...] = field(default=(), metadata=NO_OPTION, repr=False)
    """Contracts that the search tried before."""
    _history: History = field(default_factory=History, init=False, repr=False, compare=False)
    _verdicts: dict[str, tuple[int, Verdict]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _suggested: dict[str, Finding | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def shown(self) -> np.ndarray:
        """Mask of the rows that prompts may show: fitted rows and disclosed episodes."""
        return self._shown_rows(self._history.disclosed)

    def update(self, node: Node) -> None:
        """Add a node to the history, and disclose its episode."""
        self._history.update(node)

    def discloses(self, node: Node) -> int | None:
        """Return the hidden episode to disclose after a failed attempt to improve a dead end.

        At most half of the hidden episodes are disclosed.
        """
        parent = self._history.unimproved_parent(node)
        if parent is None or self.feedback == "paper":
            return None
        hidden = np.unique(self.dataset.columns["episodes"][~self.dataset.fitted])
        if len(self._history.disclosed) >= len(hidden) // 2:
            return None
        return self._verdict_on_shown(parent.program, parent.verdict).dead_end

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Return the prompt of a move, from the template of its action."""
        return self._write_prompt(move)

    def varied(self, move: Move, number: int) -> tuple[Message, ...]:
        """Return a prompt that states its repetition, and shows other steps of equal value."""
        return self._write_prompt(move, number=number)

    def shorter(self, move: Move, room: int) -> tuple[Message, ...]:
        """Return a prompt of at most `room` characters: examples are left out first."""
        return self._write_prompt(move, room)

    def _write_prompt(
        self, move: Move, room: int | None = None, number: int = 0
    ) -> tuple[Message, ...]:
        """Return the prompt of a move; if the last answer has no program, repeat its prompt."""
        if not _lacks_answer(move) or self.feedback == "paper":
            return self._fill_template(move, room, number)
        parent = self._history.nodes[move.parent]
        if parent.parent == ROOT:
            question = Move(parent.action)
        else:
            above = self._history.nodes[parent.parent]
            question = Move(parent.action, above.id, above.program, above.verdict)
        if number or _lacks_answer(question):  # the prompt was repeated already
            return self._fill_template(Move(GENERATE), room, number + 1)
        assert move.verdict is not None and move.verdict.failure is not None
        reason = NO_PROGRAM.format(reason=move.verdict.failure.message.strip())
        room = None if room is None else room - len(reason) - 2
        return tuple(
            message.model_copy(update={"content": f"{message.content}\n\n{reason}"})
            if message.role == "user"
            else message
            for message in self._fill_template(question, room, number)
        )

    def _fill_template(
        self, move: Move, room: int | None = None, number: int = 0
    ) -> tuple[Message, ...]:
        """Return the prompt of a move; `number` counts its earlier repetitions."""
        interface = find("contract", self.contract)().words(
            self.dataset.observation_space,
            self.dataset.action_space,
            tools=self.tools,
            names_actions=self.dataset.has_valid_actions,
            fitted=self.feedback != "paper"
            and any(leaf.space.is_float for leaf in self.dataset.observation_space.leaves("")),
        )
        description, recorded, others = self.description.strip(), "", ""
        if self.feedback != "paper":
            shown = self.dataset[self.shown]
            names = documented_names(self.description, self.dataset.observation_space)
            about = [interface, self.metric.words(shown)]
            about.append(self.body.words if self.body else "")
            about.append(on_chance(self.finding, self.contract, names))
            if self.measure is not None:
                about.append(request_words(self.contract, self.former))
            interface = "\n\n".join(filter(None, about))
            description = trim_description(description)
            sections = []
            improves = move.action == IMPROVE
            known = move.verdict
            # A program that is right on almost all rows needs its mistakes, not more rows.
            if move.action != SIMPLIFY and (
                not improves
                or known is None
                or known.parts.get("exact", 0.0) < EXPLAINED
                or self._verdict_on_shown(move.program, known).dead_end is not None
            ):
                sections.append(self._write_evidence(shown, number, improves=improves))
                if self._may_hide_state:
                    sections.append(EARLIER_STEPS)
            if move.action == GENERATE and move.verdict is not None:
                sections.append(_describe_start(move.verdict))
            if move.action == GENERATE and number:
                sections += [self._history.describe_programs(), ASKED_BEFORE.format(number=number)]
            recorded = "\n\n".join(filter(None, sections))
            if improves and self._history.stuck >= 3:
                others = other_programs(
                    self._history,
                    move,
                    lambda program: self._find_right_rows(program, shown),
                    tokens=1200,
                )
            move = self._add_feedback(move, number)
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

    @cached_property
    def _is_documented(self) -> bool:
        """Whether the description is long enough to state the rules."""
        return estimated_tokens(self.description) >= DOCUMENTED

    def _write_evidence(self, shown: Dataset, variant: int = 0, *, improves: bool = False) -> str:
        """Return the section on recorded steps.

        It is shorter if a prompt to improve a program also contains a long description.
        """
        tokens = self.evidence_tokens
        if improves and self._is_documented:
            tokens = int(0.2 * tokens)
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
        """Whether a stuck search for stochastic programs has not tried memory yet.

        Prompts then show episodes in order, since earlier steps may explain the outcomes.
        """
        can_switch = self.measure is not None and self._can_switch_to("memory")
        is_stuck = self._history.stuck >= EXAMINED_AFTER
        return self.contract == "chance" and can_switch and is_stuck

    @cached_property
    def _sections(self) -> dict[tuple[int, int, int, ContractName], str]:
        """The sections on recorded steps, by number of rows, variant, allowance and contract."""
        return {}

    def _right_steps(self, shown: Dataset, right: np.ndarray, *, brief: bool) -> str:
        """Return rightly predicted steps in the tokens that recorded steps leave unused.

        They have at least 10 % of all tokens, or 25 % without a long description.
        """
        allowance = self.evidence_tokens
        if self._is_documented:
            allowance = int((1 - SPARED) * allowance)
        if brief:
            left = allowance - estimated_tokens(self._write_evidence(shown, improves=True))
            least = 0.1 if self._is_documented else 0.25
            allowance = max(left, int(least * self.evidence_tokens))
        return right_steps(shown, right, allowance) if allowance > 0 else ""

    def _find_right_rows(self, program: str, rows: Dataset) -> np.ndarray | None:
        """Return the mask of the rows that a program predicts exactly, None if it fails."""
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

    def _add_feedback(self, move: Move, number: int) -> Move:
        """Add mistakes on disclosed rows, and changes that did not help, to the failure."""
        verdict = move.verdict
        if verdict is None or verdict.failure is None or move.action == GENERATE:
            return move
        failure = self._verdict_on_shown(move.program, verdict).failure or verdict.failure
        steps = failing_steps(self.dataset, self.shown, failure) if failure.is_bug else ""
        parts = [failure.message, steps, self._history.describe_failed_changes(move)]
        if number:
            parts.append(ASKED_BEFORE.format(number=number))
        failure = replace(failure, message="\n\n".join(filter(None, parts)))
        return move._replace(verdict=replace(verdict, failure=failure))

    def _verdict_on_shown(self, program: str, verdict: Verdict) -> Verdict:
        """Return the verdict on a program that takes disclosed episodes into account.

        `judge` ignores them, so that its verdict does not depend on the order of completions.
        """
        disclosed = self._history.disclosed
        if not disclosed or verdict.is_bug:
            return verdict
        if self._verdicts.get(program, (0, verdict))[0] != len(disclosed):
            seen = self._judge(program, audited=False, disclosed=disclosed)
            self._verdicts[program] = len(disclosed), seen
        return self._verdicts[program][1]

    def read(self, text: str, move: Move) -> str:
        """Return the program of a completion, which may continue the prefilled answer."""
        begun = self.prefill and move.action == GENERATE
        return extract_program(text, prefix=move.prefix, begun=begun)

    def judge(self, program: str) -> Verdict:
        """Score the program on every train row."""
        if not program.strip():
            failure = Failure(kind=NO_ANSWER, message="there is no program in it.")
            return Verdict(score=0.0, failure=failure)
        return self._judge(program, audited=False)

    def confirm(self, program: str, verdict: Verdict) -> Verdict:
        """Score the program again, and audit its predictions."""
        return replace(self._judge(program, audited=True), confirmed=True)

    def _judge(self, program: str, *, audited: bool, disclosed: tuple[int, ...] = ()) -> Verdict:
        model = ProgramModel(program, self.sandbox)
        found = evaluate(model, self.dataset, self.metric, seed=self.seed, audited=audited)
        if found.failure is not None:
            return Verdict(score=0.0, failure=found.failure)
        assert found.answers is not None
        shown = self._shown_rows(disclosed)
        score, wrong, reached = found.score.value, found.rows < 1.0, self._is_reached(found)
        parts = {"observation", "reward", "terminated", "valid_actions", "exact"}
        is_certain = self.contract != "chance" and self.feedback != "paper"
        dead_end = validation = failure = None
        if is_certain and wrong.any() and not wrong[shown].any():
            # Disclose the episode with the most wrong rows.
            episodes, counts = np.unique(
                self.dataset.columns["episodes"][wrong], return_counts=True
            )
            dead_end = int(episodes[np.argmax(counts)])
        if score < 1.0 and not reached:
            failure = self._describe_mismatch(found, shown, is_dead_end=dead_end is not None)
        if not shown.all():
            hidden = self.metric.score(found.answers[~shown], self.dataset[~shown])
            validation = hidden.value
        return Verdict(
            score=score,
            validation=score if validation is None else validation,
            parts=found.score.model_dump(include=parts, exclude_none=True),
            failure=failure,
            floor=found.score.least,
            error=log_error(found.predictions, self.dataset),
            dead_end=dead_end,
            reached=reached,
            stderr=found.score.skill_stderr,
            open_gap=(found.score.open_gap or "")
            if score > 0.9 or found.score.explained is not None
            else "",
        )

    def _is_reached(self, found: Evaluation) -> bool | None:
        """Return whether the best possible score is reached; None if that is unknown.

        A skill has no known ceiling without a simulator. For real numbers, it is reached if noise
        explains all errors and the draws are spread like the recorded values.
        """
        if found.score.reached is not None or not self.noise:
            return found.score.reached
        remembers = self.contract == "memory"
        score = with_components(found, self.dataset, self.noise, remembers=remembers).score
        is_real = all(each.right is None for each in score.components or ())
        return True if is_real and explains_all_but_noise(score, None) else None

    def requested(self, text: str) -> str:
        """Return another contract that a completion requests, or ""."""
        name = requested_contract(text) if self.measure is not None else ""
        return name if self._can_switch_to(name) else ""

    @property
    def next_contract(self) -> NextContract | None:
        """The contract that a completion requests, or that the errors of a stuck search suggest."""
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
        """Return the same problem under another contract, without the history of nodes."""
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

    def _can_switch_to(self, contract: str) -> bool:
        """Return whether the search may switch to a contract: it tries each contract once."""
        return contract in USUAL_METRICS and contract not in (self.contract, *self.former)

    @property
    def _finding_if_stuck(self) -> Finding | None:
        """The other contract that the errors of the best program suggest in a stuck search."""
        nodes = self._history.nodes
        best = max(nodes, key=lambda node: node.verdict.rank, default=None)
        if best is None or best.verdict.is_bug or best.verdict.solved:
            return None
        if self._history.stuck < EXAMINED_AFTER and not any(node.final for node in nodes):
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
        return finding if finding is not None and self._can_switch_to(finding.contract) else None

    @property
    def settled(self) -> bool:
        """Whether the score has not improved beyond noise for `patience` completions.

        This ends a search only if chance or hidden state leave the best reachable score unknown.
        """
        best, waited = None, 0
        for node in self._history.nodes if self.contract not in CERTAIN else ():
            verdict = node.verdict
            waited += node.asked and node.id >= self._history.since
            if best is None or verdict.score > best.score + (best.stderr or 0.0):
                best, waited = verdict, 0
        if best is None or best.reached is not None or best.score <= best.floor:
            return False
        return waited >= self.patience

    def _shown_rows(self, disclosed: tuple[int, ...]) -> np.ndarray:
        """Return the mask of the fitted rows and the rows of disclosed episodes."""
        # `fitted` is a new array at each access, so that this changes no other mask.
        mask: np.ndarray = self.dataset.fitted
        mask |= np.isin(self.dataset.columns["episodes"], disclosed)
        return mask

    def _describe_mismatch(
        self, found: Evaluation, shown: np.ndarray, *, is_dead_end: bool
    ) -> Failure:
        """Describe wrong predictions, without the values of hidden rows."""
        wrong, published = found.rows < 1.0, self.feedback == "paper"
        rows = self.metric.tolerant(self.dataset[shown])
        brief = self.evidence_tokens > 0 and found.score.exact < EXPLAINED
        predictions = {name: column[shown] for name, column in found.predictions.items()}
        is_certain = self.contract in CERTAIN
        uncertain = None if is_certain or published else found.answers
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
            text = report(rows, predictions, self.metric, self.description, brief=brief)
            right = self._right_steps(rows, ~wrong[shown], brief=brief)
            message = "\n\n".join(filter(None, [text, right]))
        elif not wrong.any():
            message = INEXACT if found.score.explained is None else NO_OUTLIER
        elif published:
            unseen = UNSEEN.format(wrong=int(wrong.sum()), rows=int((~shown).sum()))
            message = f"{unseen} {GENERALISE}"
        else:
            message = dead_end(
                self.dataset, found.predictions, self.metric, shown, self.description
            )
        if found.score.explained is not None and found.score.open_gap:
            message = f"The errors are not only noise: {found.score.open_gap}.\n\n{message}"
        return Failure(kind="mismatch", message=message)


def _describe_start(verdict: Verdict) -> str:
    """Describe the start program of a search, which predicts too little to be improved."""
    if verdict.stderr is not None:
        quality = f"scores {share(verdict.score, 4)}"
    else:
        quality = f"predicts {percent(verdict.explained)} of these transitions exactly"
    return f"The program that this search began with {quality}. {verdict.findings}".strip()


def _lacks_answer(move: Move) -> bool:
    """Return whether the answer that a move continues contains no whole program."""
    failure = move.verdict.failure if move.verdict is not None else None
    return failure is not None and failure.kind == NO_ANSWER


def request_words(contract: ContractName, former: tuple[ContractName, ...] = ()) -> str:
    """Return the part of a prompt that explains the marker, "" if all contracts were tried."""
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
    """Return the contract that a completion requests in a line of its own, or "".

    The last such line counts; lines in the reasoning of a model do not count.
    """
    found = REQUEST.findall(without_thinking(text).text)
    return str(found[-1]).lower() if found else ""
