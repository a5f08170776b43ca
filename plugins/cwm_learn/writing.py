"""Write programs that replay the rows of an agent, again and again as it gets more rows.

A writer tries the cheapest and most reliable source first: the present program, induction from
data, refiners that repair the induced program, and then a language model if the user named one. It
adds the remaining rows to the program as a lookup table, and counts them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.commands.choices import make_data_backend
from cwm_cli.data.dataset import ALL_FITTED, Dataset
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.finding import USUAL_METRICS, ContractName
from cwm_cli.evaluation.metric import match
from cwm_cli.problems.feedback import evidence, on_chance
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import Owner, default, find, names
from cwm_cli.search.contracts import (
    GENERATE,
    ROOT,
    START,
    Backend,
    Completion,
    Message,
    Move,
    Node,
    Refinement,
    RefinementTask,
    Refiner,
    Request,
    Strategy,
    Usage,
    total,
)
from cwm_cli.search.loop import Search
from cwm_cli.search.models import InFlight
from cwm_cli.search.spending import CostLimit, Refusal
from cwm_cli.worlds.model import Predictions
from cwm_cli.worlds.program import ProgramModel
from cwm_learn.records import ProgramRecord, WritingRecord

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox

KEPT, MODEL = "kept", "model"
"""Origins: a program that existed before, and one by a language model. Other origins are names of
backends or refiners."""

INDUCTION_GROWTH, REPAIR_GROWTH = 1.1, 1.5
"""Retry a source that did not help after the rows grew by this factor: induction, and refiners or
a language model, which take longer."""

MIN_REFINER_SECONDS, REFINER_TIME_FRACTION = 0.2, 0.5
"""Start no refiner with less time left, and give each refiner this fraction of the remaining time,
because refiners exceed their time limits."""

MAX_PROGRAM_CHARACTERS = 24_000
"""Maximum number of characters of a program in a prompt."""

SAMPLES = 64
"""Samples of a program without probabilities: an outcome in no sample counts as impossible."""

EXCEPTIONS = "\n\n\n# Recorded transitions that the rules do not give"
"""Start of the lookup table in the text of a program."""


class WrittenProgram(NamedTuple):
    """A program, and how well it replays the rows that it was written from.

    Attributes:
        program: Text of the program.
        origin: Source of the program: `KEPT`, `MODEL`, or the name of a backend or a refiner.
        rules: Text without the lookup table.
        unexplained: Mask of the rows that the rules mispredict.
        wrong: Mask of the rows that the whole program mispredicts: rows that contradict each
            other and, if observations have real numbers, all unexplained rows. In stochastic
            environments, mask of the rows with probability 0.
        findings: Findings of the source, in words.
        usage: Tokens and money of the language model.
        skill: Skill score in stochastic environments.
    """

    program: str
    origin: str
    rules: str
    unexplained: np.ndarray
    wrong: np.ndarray
    findings: str = ""
    usage: Usage = Usage()
    skill: float = 0.0

    @property
    def rank(self) -> tuple[int, float, int]:
        """Sort key, lowest first: unexplained rows, then skill (highest first), then length."""
        return int(self.unexplained.sum()), -round(self.skill, 3), len(self.rules)

    def record(self, number: int, steps: int, seconds: float, completions: int) -> ProgramRecord:
        """Return the journal line of the program, after a number of environment steps."""
        return ProgramRecord(
            number=number,
            steps=steps,
            rows=len(self.wrong),
            origin=self.origin,
            lines=self.program.count("\n"),
            unexplained=int(self.unexplained.sum()),
            wrong=int(self.wrong.sum()),
            seconds=round(seconds, 3),
            completions=completions,
            cost=self.usage.cost,
        )


@dataclass
class BudgetedModel:
    """A language model with its budget and its usage.

    Attributes:
        each: Maximum number of completions for one program.
        completions: Maximum number of completions in all, None without a limit.
        max_cost: Maximum cost in US dollars in all, None without a limit.
        seconds_left: Returns the seconds until the time limit; 0 or less ends requests.
        used: Number of completions so far.
        spent: Cost so far, in US dollars.
    """

    backend: Backend
    strategy: Callable[[], Strategy]
    each: int = 3
    completions: int | None = None
    max_cost: float | None = None
    in_flight: InFlight = field(default_factory=InFlight, repr=False)
    seconds_left: Callable[[], float] = lambda: inf
    used: int = field(default=0, init=False)
    spent: float = field(default=0.0, init=False)
    limit: CostLimit | None = field(default=None, init=False, repr=False)
    _requests: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    """Number of requests for other answers than programs, by key."""

    def __post_init__(self) -> None:
        self.limit = None if self.max_cost is None else CostLimit.own(self.max_cost)

    @property
    def left(self) -> int:
        """Maximum number of completions for the next program."""
        if self.seconds_left() <= 0 or (self.limit and self.limit.left <= 0):
            return 0
        most = self.each if self.completions is None else self.completions - self.used
        return max(0, min(self.each, most))

    def recall(self, completions: int, spent: float) -> None:
        """Add completions of an earlier process and their cost in US dollars to the usage."""
        self.used += completions
        self.spent += spent
        if self.limit is not None:
            self.limit.recall(spent)

    def ask(self, messages: tuple[Message, ...], seed: int, problem: object) -> Completion | None:
        """Request an answer other than a program; None if it could exceed the cost limit."""
        request = Request(messages, seed, Move(GENERATE), problem, self._requests.total())
        request = request._replace(occurrence=self._requests[request.key])
        self._requests[request.key] += 1
        if self.limit is None:
            completion = self.backend.complete(request)
        else:
            reserved = self.limit.reserve(self.backend.worst_cost(request) or 0.0)
            if isinstance(reserved, Refusal):
                return None
            completion = self.limit.pay_for(reserved, partial(self.backend.complete, request))
        self.used += 1
        self.spent += completion.usage.cost or 0.0
        return completion


@dataclass
class ProgramWriter:
    """Writes programs of one environment, and remembers which sources did not help.

    Attributes:
        seconds: Time limit for induction, and for repairs. More time helps an agent less than
            more steps.
        model: Language model for rows that data do not explain.
        contract: The kind of program that the rows require, according to the rows so far.
        seconds_left: Returns the seconds until the time limit of the learner. Induction starts
            only if it can finish, except for the first program.
    """

    sandbox: Sandbox
    seed: int = 0
    description: str = ""
    seconds: float = 5.0
    model: BudgetedModel | None = None
    contract: ContractName = "plain"
    seconds_left: Callable[[], float] = lambda: inf
    _failed_at: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """Number of rows at the last attempt that did not help, by source."""
    _has_induced: bool = field(default=False, init=False, repr=False)
    _fitted: set[str] = field(default_factory=set, init=False, repr=False)
    """Programs by induction or refiners, whose constants are fitted already."""

    def __post_init__(self) -> None:
        self._inducer = default("backend")
        self._answers = make_data_backend(self._inducer, seconds=self.seconds, learning=True)

    @property
    def is_stochastic(self) -> bool:
        """Whether the programs have random outcomes."""
        return self.contract == "chance"

    @property
    def used_completions(self) -> int:
        """Number of completions so far."""
        return self.model.used if self.model else 0

    def write(self, rows: Dataset, programs: Sequence[str] = ()) -> WrittenProgram:
        """Return the first given program that replays every row, or the best one found.

        In a stochastic environment, return the program with the fewest impossible rows, then the
        highest skill. Otherwise the rows must not contain randomness.

        Raises:
            CwmError: No program runs.
        """
        problem = self._problem(rows)
        found: list[WrittenProgram] = []
        for text in programs:
            kept = self._evaluate(text, KEPT, problem)
            if kept is not None:
                found.append(kept)
                if not kept.unexplained.any() and not self.is_stochastic:
                    return kept
        has_time = self.seconds_left() >= self.seconds
        if not found or (has_time and self._may_retry(self._inducer, problem, INDUCTION_GROWTH)):
            text, findings = self._induce(problem)
            induced = self._evaluate(text, self._inducer, problem, findings)
            found += [] if induced is None else [induced]
        if not found:
            raise CwmError(f"no working program was found from {len(rows)} transitions")
        best = min(found, key=lambda written: written.rank)
        if best.origin == KEPT and has_time:
            self._failed_at[self._inducer] = len(rows)
        if self.is_stochastic:
            return self._improve_by_model(best, problem)
        best = self._improve_by_model(self._refine(best, problem), problem)
        return self._with_lookup(best, problem)

    def write_and_record(
        self, rows: Dataset, programs: Sequence[str] = ()
    ) -> tuple[WrittenProgram, WritingRecord]:
        """Write a program, and return it with its record for `repeat`."""
        began, self._has_induced = time.perf_counter(), False
        used, spent = self.used_completions, self.model.spent if self.model else 0.0
        written = self.write(rows, programs)
        record = WritingRecord(
            origin=written.origin,
            rules=None if written.origin == KEPT else written.rules,
            looks_up=EXCEPTIONS in written.program,
            unexplained=tuple(np.flatnonzero(written.unexplained).tolist()),
            wrong=tuple(np.flatnonzero(written.wrong).tolist()),
            usage=written.usage,
            in_vain=dict(self._failed_at),
            induced=self._has_induced,
            completions=self.used_completions - used,
            spent=self.model.spent - spent if self.model else 0.0,
            seconds=round(time.perf_counter() - began, 3),
        )
        return written, record

    def repeat(
        self, record: WritingRecord, rows: Dataset, programs: Sequence[str] = ()
    ) -> WrittenProgram:
        """Return a recorded program, and restore the state of the writer after it.

        Only induction runs again, because later inductions start with its findings.
        """
        if record.induced:
            self._induce(self._problem(rows))
        rules = programs[0].partition(EXCEPTIONS)[0] if record.rules is None else record.rules
        if record.origin not in (KEPT, MODEL):
            self._fitted.add(rules)
        self._failed_at = dict(record.in_vain)
        if self.model:
            self.model.recall(record.completions, record.spent)
        unexplained, wrong = np.zeros((2, len(rows)), np.bool_)
        unexplained[list(record.unexplained)] = wrong[list(record.wrong)] = True
        program = with_exceptions(rules, rows[unexplained]) if record.looks_up else rules
        return WrittenProgram(program, record.origin, rules, unexplained, wrong, usage=record.usage)

    def rival(self, rows: Dataset, program: str) -> str | None:
        """Return another program that replays every row, by further inductions; None without."""
        problem = self._problem(rows)
        for step in (1, 2):  # the first one may mispredict rows
            if self.seconds_left() < self.seconds:
                return None
            text, _ = self._induce(problem, step)
            if text == program:
                return None
            if not self.wrong(text, problem.dataset).any():
                return text
        return None

    def wrong(self, program: str, rows: Dataset) -> np.ndarray:
        """Return a mask of the rows that a program does not replay: all rows if it fails."""
        answers = ProgramModel(program, self.sandbox).predict(rows, seed=self.seed, draws=SAMPLES)
        if answers.failure is not None:
            return np.ones(len(rows), np.bool_)
        return mispredicted(answers, rows)

    def recorded(self, rows: Dataset) -> str:
        """Return the prompt section that shows rows, as in a prompt for a program."""
        problem = self._problem(rows)
        section = evidence(
            problem.dataset,
            problem.metric,
            self.description,
            tokens=problem.evidence_tokens,
            contract=self.contract,
        )
        return "\n\n".join(filter(None, [on_chance(None, self.contract), section]))

    def _problem(self, rows: Dataset) -> WorldModelProblem:
        """Return the problem for all sources, with every row as training data."""
        rows = replace(rows, metadata=rows.metadata | ALL_FITTED)
        metric = find("metric", USUAL_METRICS[self.contract]).of(rows)
        return WorldModelProblem(
            self.description, rows, self.sandbox, metric, self.seed, contract=self.contract
        )

    def _evaluate(
        self, program: str, origin: str, problem: WorldModelProblem, findings: str = ""
    ) -> WrittenProgram | None:
        """Run the rules of a program on every row; return None if it fails."""
        rules, rows = program.partition(EXCEPTIONS)[0], problem.dataset
        answers = ProgramModel(rules, self.sandbox).predict(rows, seed=self.seed, draws=SAMPLES)
        if answers.failure is not None:
            return None
        wrong = mispredicted(answers, rows)
        score = problem.metric.score(answers, rows) if self.is_stochastic else None
        skill = 0.0 if score is None or score.skill is None else score.skill
        return WrittenProgram(rules, origin, rules, wrong, wrong, findings, skill=skill)

    def _induce(self, problem: WorldModelProblem, step: int = 0) -> tuple[str, str]:
        """Return a program from data, and the findings in words."""
        request = Request((), self.seed, Move(GENERATE), problem, step)
        answer = self._answers.complete(request)
        program = problem.read(answer.text, Move(GENERATE))
        self._fitted.add(program)
        self._has_induced = True
        return program, answer.text.partition("```")[0].strip()

    def _refine(self, best: WrittenProgram, problem: WorldModelProblem) -> WrittenProgram:
        """Repair a program with one refiner after the other, within the time limit."""
        waiting, start = names("refiner"), time.monotonic()
        # minimum number of mispredicted rows for a repair; fewer rows have no visible pattern
        min_repair_rows = 3
        # do not repair a program that mispredicts this fraction of the rows: few rules are right
        max_repair_fraction = 0.5

        while waiting:
            count, total_rows = int(best.unexplained.sum()), len(best.unexplained)
            if not min_repair_rows <= count < max_repair_fraction * total_rows:
                break
            name, *waiting = waiting
            left = min(self.seconds - (time.monotonic() - start), self.seconds_left())
            # programs of induction have fitted constants already
            is_fitted = name == "calibrate" and best.rules in self._fitted
            if is_fitted or left < MIN_REFINER_SECONDS:
                continue
            if not self._may_retry(name, problem, REPAIR_GROWTH):
                continue
            repaired = self._run_refiner(name, best, problem, REFINER_TIME_FRACTION * left)
            if repaired and repaired.unexplained.sum() < best.unexplained.sum():
                self._fitted.add(repaired.rules)
                best, waiting = repaired, [each for each in names("refiner") if each != name]
            else:
                self._failed_at[name] = len(problem.dataset)
        return best

    def _may_retry(self, source: str, problem: WorldModelProblem, growth: float) -> bool:
        """Return whether the rows grew by a factor since a source last did not help."""
        return len(problem.dataset) >= growth * self._failed_at.get(source, 0)

    def _run_refiner(
        self, name: str, best: WrittenProgram, problem: WorldModelProblem, seconds: float
    ) -> WrittenProgram | None:
        """Return the program of a refiner, with a time limit if the refiner has that option."""
        owner = Owner("refiner", find("refiner", name))
        limits = {key: seconds for key in owner.options if key.endswith("_seconds")}
        verdict = problem.judge(best.rules)
        node = Node(0, 0, ROOT, START, best.rules, verdict, "", Usage(), asked=False)
        task = RefinementTask(problem, node, (), self.seed)
        refiner: Refiner = owner.factory(**limits)
        found = refiner.refine(task)
        if not found or not found.candidate:
            return None
        return self._evaluate(found.candidate, name, problem, found.findings)

    def _improve_by_model(self, best: WrittenProgram, problem: WorldModelProblem) -> WrittenProgram:
        """Search for a better program with the language model, from the best one so far."""
        model = self.model
        if model is None or not best.unexplained.any() or not model.left:
            return best
        if not self._may_retry(MODEL, problem, REPAIR_GROWTH):
            return best
        search = Search(
            problem,
            model.strategy(),
            model.backend,
            seed=self.seed + model.used,
            limit=model.limit,
            start=lambda problem, tell: Refinement(best.rules, best.findings),
        )
        nodes = []
        for record in search.run(model.left):
            nodes.append(record.node)
            if model.seconds_left() <= 0:
                break
        nodes += [record.node for record in search.drain()]
        usage = total([node.usage for node in nodes if node.asked])
        model.used, model.spent = model.used + search.completions, model.spent + search.spent
        answers = [
            self._evaluate(node.program, MODEL, problem, best.findings)
            for node in nodes
            if node.asked and not node.verdict.is_bug
        ]
        candidates = [best, *(written for written in answers if written is not None)]
        improved = min(candidates, key=lambda written: written.rank)
        if improved is best:
            self._failed_at[MODEL] = len(problem.dataset)
        return improved._replace(usage=usage)

    def _with_lookup(self, best: WrittenProgram, problem: WorldModelProblem) -> WrittenProgram:
        """Add a lookup table of the unexplained rows to a program.

        With real-valued observations no row occurs again, and a table would prevent vectorised
        predictions, so the program stays unchanged.
        """
        leaves = problem.dataset.observation_space.leaves("observations")
        if not best.unexplained.any() or any(leaf.space.is_float for leaf in leaves):
            return best
        text = with_exceptions(best.rules, problem.dataset[best.unexplained])
        return best._replace(program=text, wrong=self.wrong(text, problem.dataset))


def mispredicted(answers: Predictions, rows: Dataset) -> np.ndarray:
    """Return a mask of the rows whose outcome has probability 0 in the predictions."""
    mask = np.ones(len(rows), np.bool_)
    for columns, probabilities in answers.answers():
        missed = match(columns, rows).losses(rows.columns["terminations"]) > 0
        mask &= missed | (probabilities <= 0)
    return mask


LOOKUP_CODE = '''


def key_of(value):
    """Return a hashable key of an observation or an action."""
    if isinstance(value, dict):
        return tuple((name, key_of(value[name])) for name in sorted(value))
    if isinstance(value, (list, tuple)):
        return tuple(key_of(each) for each in value)
    return key_of(value.tolist()) if hasattr(value, "tolist") else value


class Rules(Environment):
    """Predicts by rules."""


class Environment(Rules):
    """Predicts by rules, and looks up {count} recorded transitions that they miss."""

    def set_state(self, observation):
        """Set the observation to predict from."""
        self.current = observation
        super().set_state(observation)

    def step(self, action):
        """Look the transition up, or predict it by rules."""
        known = EXCEPTIONS.get((key_of(self.current), key_of(action)))
        if known is None:
            answer = super().step(action)
            self.current = answer[0]
            return answer
        known = deepcopy(known)
        self.set_state(known[0])
        return known
'''


def with_exceptions(program: str, rows: Dataset) -> str:
    """Return a program that looks recorded transitions up, and otherwise runs the given one."""
    entries: dict[str, str] = {}
    for row in rows:
        key = f"{_key(row.observation)!r}, {_key(row.action)!r}"
        outcome = [_literal(row.next_observation), repr(row.reward), repr(row.terminated)]
        outcome += [repr(row.valid)] if row.valid is not None else []
        entries.setdefault(key, ", ".join(outcome))
    lines = [f"    ({key}): ({outcome})," for key, outcome in entries.items()]
    imports = "from copy import deepcopy\n\nimport numpy as np\nfrom numpy import inf, nan\n"
    table = "\n".join(["EXCEPTIONS = {", *lines, "}"])
    text = f"{EXCEPTIONS}, by observation and action.\n{imports}\n{table}"
    return program.rstrip() + text + LOOKUP_CODE.format(count=len(entries))


def _key(value: Any) -> Any:
    """Return the key of an observation or an action, equal to `key_of` in `LOOKUP_CODE`."""
    if isinstance(value, dict):
        return tuple((name, _key(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    return _key(value.tolist()) if isinstance(value, np.ndarray) else value


def _literal(value: Any) -> str:
    """Return an observation as Python code."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_literal(each)}" for name, each in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_literal(each)}, " for each in value) + ")"
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()!r}, {str(value.dtype)!r})"
    return repr(value)
