"""Programs of the rows that an agent has seen: kept while they replay every row, else written anew.

What is cheap and tells most comes first: the program as it is, rules found from data alone, a
repair of what those leave over, a language model where one is to be asked. Rows that no rule
gives are looked up in the end, and counted: a program that fails a row is not planned with.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
    unheard,
)
from cwm_cli.search.loop import Search
from cwm_cli.search.models import InFlight
from cwm_cli.search.spending import CostLimit, Refusal
from cwm_cli.worlds.model import Predictions
from cwm_cli.worlds.program import ProgramModel
from cwm_learn.runs import WritingRecord

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox

KEPT, MODEL = "kept", "model"
"""Where a program comes from that was there already, and one that a language model wrote; others
come from the backend or the refiner of that name."""

ENOUGH = 3
"""Rows without a rule from which on one is looked for: fewer say nothing of what they share."""

MOSTLY_WRONG = 0.5
"""Share of wrong rows from which on nothing is repaired: there is no program yet to repair."""

NUMBERS = "calibrate"
"""The refiner that fits numbers, as data alone have just done where they gave the program."""

AGAIN, MUCH_LATER = 1.1, 1.5
"""What did not help is tried again with so many times the rows: a program from data alone, and a
repair or a language model, which take longer."""

LEAST, SHARE = 0.2, 0.5
"""Seconds below which no refiner is begun, and the share of what is left that one gets: they come
to an end in a while only."""

SHOWN = 24_000
"""Characters of a program that a language model is shown beside what it is asked."""

DRAWS = 64
"""Of a program that only draws: what is drawn in none of them is called impossible."""

EXCEPTIONS = "\n\n\n# Recorded transitions that the rules do not give"
"""Where what is looked up begins, in a program that has exceptions."""


class WrittenProgram(NamedTuple):
    """A program that replays the rows it was written from, and where it comes from.

    `rules` is the same without what it looks up, and `unexplained` a mask of the rows that are
    wrong there. `wrong` is a mask of those that the whole program has wrong: rows that contradict
    each other, and, where observations hold real numbers, all that no rule gives. Where chance
    decides those rows are wrong that it calls impossible, and it has a `skill`. `findings` say
    what was found, in words, and `usage` is what a language model took.
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
    def is_exact(self) -> bool:
        """Whether every row is replayed."""
        return not self.wrong.any()

    @property
    def rank(self) -> tuple[int, float, int]:
        """What the better program has less of: rows that it does not explain, then text.

        Where chance decides, the lack of skill comes before the text.
        """
        return int(self.unexplained.sum()), -round(self.skill, 3), len(self.rules)


@dataclass
class AskedModel:
    """A language model that is asked where data alone do not explain every row.

    `each` is how many completions one program may take; `completions` and `max_cost`, in US
    dollars, are for all of them, None being no limit. `used` and `spent` count.
    """

    backend: Backend
    strategy: Callable[[], Strategy]
    each: int = 3
    completions: int | None = None
    max_cost: float | None = None
    in_flight: InFlight = field(default_factory=InFlight, repr=False)
    used: int = field(default=0, init=False)
    spent: float = field(default=0.0, init=False)
    limit: CostLimit | None = field(default=None, init=False, repr=False)
    _others: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def __post_init__(self) -> None:
        self.limit = None if self.max_cost is None else CostLimit.own(self.max_cost)

    @property
    def left(self) -> int:
        """How many completions the next program may take."""
        if self.limit and self.limit.left <= 0:
            return 0
        most = self.each if self.completions is None else self.completions - self.used
        return max(0, min(self.each, most))

    def recall(self, completions: int, spent: float) -> None:
        """Count completions of an interrupted process, and the US dollars that they cost."""
        self.used += completions
        self.spent += spent
        if self.limit is not None:
            self.limit.recall(spent)

    def ask(self, messages: tuple[Message, ...], seed: int, problem: object) -> Completion | None:
        """Ask for something else than a program; None where that may cost more than is left."""
        request = Request(messages, seed, Move(GENERATE), problem, self._others.total())
        request = request._replace(occurrence=self._others[request.key])
        self._others[request.key] += 1
        if self.limit is None:
            completion = self.backend.complete(request)
        else:
            kept = self.limit.reserve(self.backend.worst_cost(request) or 0.0)
            if isinstance(kept, Refusal):
                return None
            completion = self.limit.pay_for(kept, partial(self.backend.complete, request))
        self.used += 1
        self.spent += completion.usage.cost or 0.0
        return completion


@dataclass
class ProgramWriter:
    """Writes programs of one environment, again and again as more of it is known.

    `backend` answers from data alone, "" being the usual one; a language model is asked
    where it is named and data are not enough. It is to be kept while an agent learns, as it
    remembers what did not help.
    """

    sandbox: Sandbox
    seed: int = 0
    description: str = ""
    backend: str = ""
    seconds: float = 5.0
    """Seconds for data alone, and for repairs: then an agent learns more by acting than by
    thinking."""
    model: AskedModel | None = None
    tell: Callable[[str], None] = unheard
    contract: ContractName = "plain"
    """What the rows ask of programs, as far as is known by now."""
    in_vain: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """Number of rows at the last attempt that did not help, by who made the attempt."""
    _has_induced: bool = field(default=False, init=False, repr=False)
    _own: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        self.backend = self.backend or default("backend")
        self._answers = make_data_backend(self.backend, seconds=self.seconds, learning=True)

    def write(self, rows: Dataset, programs: Sequence[str] = ()) -> WrittenProgram:
        """Return a program that replays every row: the first of these that does, or another one.

        Rows that chance decides are to be left out, unless that is the contract: then it is the
        one of most skill that calls fewest rows impossible.
        """
        problem, chance = self._problem(rows), self.contract == "chance"
        found: list[WrittenProgram] = []
        for text in programs:
            found += self._judged(text, KEPT, problem)
            if found and not found[-1].unexplained.any() and not chance:
                return found[-1]
        if not found or self._worthwhile(self.backend, problem, AGAIN):
            induced, words = self._from_data(problem)
            found += self._judged(induced, self.backend, problem, words)
        if not found:
            raise CwmError(f"no working program was found from {len(rows)} transitions")
        best = min(found, key=lambda one: one.rank)
        if best.origin == KEPT:
            self.in_vain[self.backend] = len(rows)
        if chance:
            return self._asked(best, problem)
        best = self._refined(best, problem)
        best = self._asked(best, problem)
        return self._looked_up(best, problem)

    def recorded_writing(
        self, rows: Dataset, programs: Sequence[str] = ()
    ) -> tuple[WrittenProgram, WritingRecord]:
        """Write a program, and return it with its record for `repeated`."""
        began, self._has_induced = time.perf_counter(), False
        used, spent = (self.model.used, self.model.spent) if self.model else (0, 0.0)
        found = self.write(rows, programs)
        record = WritingRecord(
            origin=found.origin,
            rules=None if found.origin == KEPT else found.rules,
            looks_up=EXCEPTIONS in found.program,
            unexplained=tuple(np.flatnonzero(found.unexplained).tolist()),
            wrong=tuple(np.flatnonzero(found.wrong).tolist()),
            usage=found.usage,
            in_vain=dict(self.in_vain),
            induced=self._has_induced,
            completions=self.model.used - used if self.model else 0,
            spent=self.model.spent - spent if self.model else 0.0,
            seconds=round(time.perf_counter() - began, 3),
        )
        return found, record

    def repeated(
        self, record: WritingRecord, rows: Dataset, programs: Sequence[str] = ()
    ) -> WrittenProgram:
        """Return a recorded program, and remember what writing it made known.

        Only the induction is computed again: later inductions begin with its findings.
        """
        if record.induced:
            self._from_data(self._problem(rows))
        rules = programs[0].partition(EXCEPTIONS)[0] if record.rules is None else record.rules
        if record.origin not in (KEPT, MODEL):
            self._own.add(rules)
        self.in_vain = dict(record.in_vain)
        if self.model:
            self.model.recall(record.completions, record.spent)
        unexplained, wrong = np.zeros((2, len(rows)), np.bool_)
        unexplained[list(record.unexplained)] = wrong[list(record.wrong)] = True
        program = with_exceptions(rules, rows[unexplained]) if record.looks_up else rules
        return WrittenProgram(program, record.origin, rules, unexplained, wrong, usage=record.usage)

    def others(self, rows: Dataset, known: Sequence[str], most: int = 3) -> list[str]:
        """Return other programs that replay every row: where they disagree nothing is known."""
        problem, seen, found = self._problem(rows), set(known), list[str]()
        for step in range(1, 2 * most + 1):  # some do not fit
            text, _ = self._from_data(problem, step)
            if len(found) == most or (step == 1 and text in seen):  # it knows no other
                break
            if text not in seen and not self.wrong(text, problem.dataset).any():
                found.append(text)
            seen.add(text)
        return found

    def wrong(self, program: str, rows: Dataset) -> np.ndarray:
        """Return a mask of the rows that a program does not replay: all of them if it fails."""
        answers = ProgramModel(program, self.sandbox).predict(rows, seed=self.seed, draws=DRAWS)
        if answers.failure is not None:
            return np.ones(len(rows), np.bool_)
        return impossible(answers, rows)

    def recorded(self, rows: Dataset) -> str:
        """Return the prompt section that shows rows, as long as in a prompt for a program."""
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
        """Return the problem that all who write programs are given: every row is fitted to."""
        rows = replace(rows, metadata=rows.metadata | ALL_FITTED)
        metric = find("metric", USUAL_METRICS[self.contract]).of(rows)
        return WorldModelProblem(
            self.description, rows, self.sandbox, metric, self.seed, contract=self.contract
        )

    def _judged(
        self, program: str, origin: str, problem: WorldModelProblem, findings: str = ""
    ) -> list[WrittenProgram]:
        """Run the rules of a program on every row; there is nothing of one that does not run."""
        rules, rows = program.partition(EXCEPTIONS)[0], problem.dataset
        answers = ProgramModel(rules, self.sandbox).predict(rows, seed=self.seed, draws=DRAWS)
        if answers.failure is not None:
            return []
        wrong = impossible(answers, rows)
        score = problem.metric.score(answers, rows) if self.contract == "chance" else None
        skill = 0.0 if score is None or score.skill is None else score.skill
        return [WrittenProgram(rules, origin, rules, wrong, wrong, findings, skill=skill)]

    def _from_data(self, problem: WorldModelProblem, step: int = 0) -> tuple[str, str]:
        """Have a program written from the rows alone; return it, and what was found, in words."""
        self.tell(f"{self.backend} from {len(problem.dataset)} transitions")
        request = Request((), self.seed, Move(GENERATE), problem, step, tell=self.tell)
        answer = self._answers.complete(request)
        program = problem.read(answer.text, Move(GENERATE))
        self._own.add(program)
        self._has_induced = True
        return program, answer.text.partition("```")[0].strip()

    def _refined(self, best: WrittenProgram, problem: WorldModelProblem) -> WrittenProgram:
        """Have the refiners repair what is wrong, one after the other, while there is time."""
        waiting, start = names("refiner"), time.monotonic()
        while waiting and self._repairable(best):
            name, *waiting = waiting
            left = self.seconds - (time.monotonic() - start)
            fitted = name == NUMBERS and best.rules in self._own
            if fitted or left < LEAST or not self._worthwhile(name, problem, MUCH_LATER):
                continue
            found = self._refinement(name, best, problem, SHARE * left)
            after = self._judged(found.candidate, name, problem, found.findings) if found else []
            if after and after[0].unexplained.sum() < best.unexplained.sum():
                self._own.add(after[0].rules)
                best, waiting = after[0], [each for each in names("refiner") if each != name]
            else:
                self.in_vain[name] = len(problem.dataset)
        return best

    def _repairable(self, best: WrittenProgram) -> bool:
        return ENOUGH <= int(best.unexplained.sum()) < MOSTLY_WRONG * len(best.unexplained)

    def _worthwhile(self, name: str, problem: WorldModelProblem, grown: float) -> bool:
        """Whether there are so many times the rows as when something did not help."""
        return len(problem.dataset) >= grown * self.in_vain.get(name, 0)

    def _refinement(
        self, name: str, best: WrittenProgram, problem: WorldModelProblem, seconds: float
    ) -> Refinement | None:
        """Have one refiner look at a program, for few seconds where it can say so."""
        owner = Owner("refiner", find("refiner", name))
        limits = {key: seconds for key in owner.options if key.endswith("_seconds")}
        verdict = problem.judge(best.rules)
        node = Node(0, 0, ROOT, START, best.rules, verdict, "", Usage(), asked=False)
        task = RefinementTask(problem, node, (), self.seed, self.tell)
        refiner: Refiner = owner.factory(**limits)
        found = refiner.refine(task)
        return found if found and found.candidate else None

    def _asked(self, best: WrittenProgram, problem: WorldModelProblem) -> WrittenProgram:
        """Have a language model better the program, told what was found so far."""
        model = self.model
        if model is None or not best.unexplained.any() or not model.left:
            return best
        if not self._worthwhile(MODEL, problem, MUCH_LATER):
            return best
        search = Search(
            problem,
            model.strategy(),
            model.backend,
            seed=self.seed + model.used,
            limit=model.limit,
            start=lambda problem, tell: Refinement(best.rules, best.findings),
        )
        nodes = [record.node for record in search.run(model.left)]
        nodes += [record.node for record in search.drain()]
        usage = total([node.usage for node in nodes if node.asked])
        model.used, model.spent = model.used + search.completions, model.spent + search.spent
        found = [
            one
            for node in nodes
            if node.asked and not node.verdict.is_bug
            for one in self._judged(node.program, MODEL, problem, best.findings)
        ]
        bettered = min([best, *found], key=lambda one: one.rank)
        if bettered is best:
            self.in_vain[MODEL] = len(problem.dataset)
        return bettered._replace(usage=usage)

    def _looked_up(self, best: WrittenProgram, problem: WorldModelProblem) -> WrittenProgram:
        """Let the program look up the rows that no rule gives, where they may be met again.

        Of real numbers none is, and a table could not be computed for many at once.
        """
        leaves = problem.dataset.observation_space.leaves("observations")
        if not best.unexplained.any() or any(leaf.space.is_float for leaf in leaves):
            return best
        text = with_exceptions(best.rules, problem.dataset[best.unexplained])
        return best._replace(program=text, wrong=self.wrong(text, problem.dataset))


def impossible(answers: Predictions, rows: Dataset) -> np.ndarray:
    """Return a mask of the rows that no answer of a program gives: all other than its only one."""
    mask = np.ones(len(rows), np.bool_)
    for columns, shares in answers.answers():
        missed = match(columns, rows).losses(rows.columns["terminations"]) > 0
        mask &= missed | (shares <= 0)
    return mask


LOOKING_UP = '''


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
    """Write a program that looks recorded transitions up, and else does what this one says."""
    entries: dict[str, str] = {}
    for row in rows:
        asked = f"{_key(row.observation)!r}, {_key(row.action)!r}"
        answer = [_written(row.next_observation), repr(row.reward), repr(row.terminated)]
        answer += [repr(row.valid)] if row.valid is not None else []
        entries.setdefault(asked, ", ".join(answer))
    lines = [f"    ({asked}): ({answer})," for asked, answer in entries.items()]
    imports = "from copy import deepcopy\n\nimport numpy as np\nfrom numpy import inf, nan\n"
    table = "\n".join(["EXCEPTIONS = {", *lines, "}"])
    text = f"{EXCEPTIONS}, by observation and action.\n{imports}\n{table}"
    return program.rstrip() + text + LOOKING_UP.format(count=len(entries))


def _key(value: Any) -> Any:
    """Spell an observation or an action as programs do to look it up."""
    if isinstance(value, dict):
        return tuple((name, _key(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    return _key(value.tolist()) if isinstance(value, np.ndarray) else value


def _written(value: Any) -> str:
    """Write an observation as Python."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_written(each)}" for name, each in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_written(each)}, " for each in value) + ")"
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()!r}, {str(value.dtype)!r})"
    return repr(value)
