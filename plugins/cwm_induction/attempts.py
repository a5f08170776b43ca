"""Attempts to write a program: rules for objects and whole numbers, or equations for real numbers.

An attempt takes a task, and proposes a program and further attempts. Two attempts run at the same
time if the machine has two cores.
"""

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from tempfile import TemporaryFile
from typing import NamedTuple, Protocol

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.envs.bodies import Body
from cwm_cli.evaluation import match
from cwm_induction import discrete, noise, noisy, objects, relations
from cwm_induction.bodies.induce import induce_body
from cwm_induction.chance.model import learn_model
from cwm_induction.chance.program import write as write_random
from cwm_induction.chance.quantities import OutcomeRows
from cwm_induction.chance.transfers import fit_transfers
from cwm_induction.continuous.dynamics import Hypothesis
from cwm_induction.continuous.inducing import induce, write
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.effort import Effort
from cwm_induction.flattening import Arrangement, is_numeric, is_whole
from cwm_induction.memory.counting import chosen_quantities
from cwm_induction.memory.history import RecordedHistory, with_quantities
from cwm_induction.memory.lagged import lagged_program
from cwm_induction.memory.lagging import KINDS, Kind
from cwm_induction.memory.velocities import UnseenVelocities, Way, ways
from cwm_induction.memory.wrapping import remembering
from cwm_induction.recalling.boards import remember_boards
from cwm_induction.recalling.windows import Views
from cwm_induction.structure import KnownStructure
from cwm_induction.vocabulary import Vocabulary
from cwm_induction.writing.finishing import broken
from cwm_induction.writing.statements import EmissionError

DEFAULT = Hypothesis()

MAX_STATES = 5_000
"""Maximum number of states for programs that treat random draws as actions.

In larger spaces, fitting such a program takes minutes.
"""

ONE_VIEW = 1200
"""Work units for one relation of hidden velocities to coordinates, or for equations without memory
if memory is expected. With 700 units, 1 % of the rows of a towed boat were exact, not 94 %."""

ONE_MEMORY = 700
"""Work units for equations with one kind of memory."""

SIMPLE = Hypothesis(level=1, mechanics=False, laws=False)
"""Hypothesis to try if a program fails, or if its statements cannot be sorted."""

CHECK_SHARE = 0.2
"""Share of the training rows, in whole trajectories, held out to choose between programs."""

MAX_HELD_OUT_RATIO = 1.5
"""Maximum share of held-out rows, relative to `CHECK_SHARE`; longer trajectories are fitted."""

FEWEST_EPISODES = 4
"""Minimum number of trajectories; if there are fewer, single rows are held out."""

RESTARTS = 3
"""Further searches for equations, with other held-out rows, while a program is inexact. In a system
of two tanks, one split of the rows gave an accuracy of 0.55, three others 0.97 to 1.00."""

UNCHANGED = '''class Environment:
    """Predicts no change, because no rule was found.

    The reward is the most common one of {count} transitions, and no episode ends.
    """

    def __init__(self):
        self.observation = None

    def set_state(self, observation):
        """Set the observation to predict from."""
        self.observation = observation

    def step(self, action):
        """Predict that nothing changes."""
        return self.observation, {reward!r}, False
'''


@dataclass(frozen=True)
class InductionTask:
    """Transitions to explain, with held-out rows that equations are not fitted to.

    `known` is the structure found in fewer rows: it is tried first, and then updated.
    """

    data: Dataset
    held_back: Array
    seed: int
    effort: Effort
    known: KnownStructure | None = None
    body: Body | None = None
    """A MuJoCo model that programs may simulate."""


class ProgramProposal(NamedTuple):
    """A program, or "" for none, and further attempts.

    `judged` is a second program, fitted without the held-out rows, whose score on these rows counts
    for the first program. It is needed for rules that remember every row of their data.
    """

    program: str
    more: "tuple[Attempt, ...]" = ()
    judged: str = ""
    contract: str = ""
    """Another model type (contract) whose programs would predict more rows."""
    is_complete: bool = False
    """Whether to accept the program without further attempts, renaming or new line breaks."""


class Attempt(Protocol):
    """A method for writing a program."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program without running it."""
        ...


@dataclass(frozen=True)
class LimitedAttempt:
    """An attempt with a limited number of work units."""

    attempt: Attempt
    units: float

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Run the attempt within its work units."""
        effort = task.effort.part(max(1.0, task.effort.units / self.units))
        given = effort.units
        proposal = self.attempt(replace(task, effort=effort))
        # The last search may have exceeded the limit by far; charge at most the limit.
        task.effort.units -= min(given, given - effort.units)
        return proposal


@dataclass(frozen=True)
class RuleAttempt:
    """Fits rules on whole numbers."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write rules for all rows.

        If equations can also explain the data, fit rules without the held-out rows for the score.
        """
        task.effort.tell("fitting rules on integers")
        program = self._written(task.data, task)
        sure = task.known is not None and forgetful(program, task.data) == program
        if sure or not has_equations(task.data) or not task.held_back.any():
            return ProgramProposal(program)
        return ProgramProposal(program, judged=self._written(task.data[~task.held_back], task))

    def _written(self, data: Dataset, task: InductionTask) -> str:
        view = readable(data)
        known = task.known if data is task.data else None
        return view.nested(discrete.induce(view.flat(data), known))


@dataclass(frozen=True)
class RelationAttempt:
    """Fits rules that are equal for all cells of a board; if they are weak, others follow."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program with one or more stages, or none if the data have no such structure."""
        task.effort.tell("fitting rules on boards")
        view = readable(task.data)
        found = relations.induce(view.flat(task.data), task.held_back, task.effort)
        others = () if found.exact >= relations.ENOUGH else tuple(usual_attempts(task.data))
        if not found.program:
            return ProgramProposal("", others)
        program, judged = (view.nested(text) for text in (found.program, found.judged))
        return ProgramProposal(program, others, judged)


@dataclass(frozen=True)
class WordAttempt:
    """Encodes words as numbers, and applies an attempt for whole numbers."""

    attempt: Attempt

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program on words; equations of the numbers of words are not tried."""
        vocabulary = Vocabulary.of(task.data)
        assert vocabulary is not None
        found = self.attempt(replace(task, data=vocabulary.numbers(task.data)))
        more = [one for one in found.more if not isinstance(one, EquationAttempt)]
        return found._replace(
            program=vocabulary.program(found.program),
            judged=vocabulary.program(found.judged),
            more=tuple(map(WordAttempt, more)),
        )


@dataclass(frozen=True)
class ChanceAttempt:
    """Fits outcome probabilities on whole numbers, and rules for the outcomes."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program for all rows, and a judged one."""
        task.effort.tell("fitting outcome probabilities")
        program = self._written(task.data, task)
        if task.data.observation_space.kind in ("discrete", "tuple"):
            return ProgramProposal(program)  # each label occurs in few rows: use them all
        learned = task.data[~task.held_back]
        return ProgramProposal(program, judged=self._written(learned, task))

    def _written(self, data: Dataset, task: InductionTask) -> str:
        view = readable(data)
        known = task.known if data is task.data else None
        return view.nested(discrete.induce_chances(view.flat(data), known))


@dataclass(frozen=True)
class RandomOutcomeAttempt:
    """Fits the distribution of every part of an outcome: events, counts and noisy numbers."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program for all rows, and a judged one without parameters from held-out rows.

        If no amount is a random count, tables of the outcomes of each state follow.
        """
        task.effort.tell("fitting random counts and events")
        view = real(task.data)
        if has_rules(task.data) or has_counts(task.data):
            view = Arrangement.of(task.data, "int64")
        model = learn_model(view.flat(task.data), np.ones(len(task.data), bool), task.effort)
        judged = write_random(model.refitted(~task.held_back))
        lacks_counts = has_amounts(task.data) and not model.has_counts
        more = (ChanceAttempt(),) if lacks_counts and has_few_states(task.data) else ()
        return ProgramProposal(view.nested(write_random(model)), more, view.nested(judged))


@dataclass(frozen=True)
class TransferAttempt:
    """Recognises large counts that move at random, which need another model type."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Request the model type of random outcomes, or write no program."""
        task.effort.tell("looking for random counts")
        flat = Arrangement.of(task.data, "int64").flat(task.data)
        found = fit_transfers(OutcomeRows.of(flat), ~task.held_back)
        if found is None or not found.is_calibrated:
            return ProgramProposal("")
        return ProgramProposal(unchanged(task.data), contract="chance", is_complete=True)


@dataclass(frozen=True)
class ObjectAttempt:
    """Fits rules on relations between objects."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write rules for effects of actions and for rewards."""
        task.effort.tell("fitting rules on objects")
        return ProgramProposal(objects.induce(task.data))


@dataclass(frozen=True)
class MemoryAttempt:
    """Adds a table of the most common outcomes to a program, for wrongly predicted rows."""

    program: str
    wrong: Array

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Add the table to the program."""
        view = readable(task.data)
        program = view.flattened(self.program)
        return ProgramProposal(
            view.nested(discrete.improve(program, view.flat(task.data), self.wrong))
        )


@dataclass(frozen=True)
class EquationAttempt:
    """Searches for equations; proposes simple ones if statements cannot be sorted.

    A `restart` after 0 holds out other rows. Programs written during learning have none.
    """

    hypothesis: Hypothesis = DEFAULT
    restart: int = 0

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program of equations, or none if its statements cannot be sorted."""
        if self.restart and task.known is not None:
            return ProgramProposal("")
        task.effort.tell("searching for equations")
        seed, mask = task.seed, task.held_back
        if self.restart:
            seed += self.restart
            mask = held_back(task.data, seed)
        view, rng = real(task.data), np.random.default_rng(seed)
        try:
            samples = Samples.of(view.flat(task.data), mask)
            known = task.known if self.hypothesis == DEFAULT else None
            program = view.nested(write(induce(samples, self.hypothesis, rng, task.effort, known)))
        except (EmissionError, np.linalg.LinAlgError):
            return ProgramProposal(
                "", (EquationAttempt(SIMPLE),) if self.hypothesis != SIMPLE else ()
            )
        return ProgramProposal(program)


@dataclass(frozen=True)
class VelocityAttempt:
    """Searches for equations of observed coordinates and of their hidden velocities.

    The change of a coordinate is given by the velocity "after" a step or "before" it. With
    "between", the coordinates move as a mechanism. All moving coordinates have a hidden velocity,
    or the coordinate `only`.
    """

    by: Way
    only: str = ""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program with memory, or none if nothing moves or statements cannot be sorted."""
        task.effort.tell("searching for hidden velocities")
        view, rng = real(task.data), np.random.default_rng(task.seed)
        data, known = view.flat(task.data), None
        pace = UnseenVelocities.of(data, task.held_back, task.effort, self.only)
        if pace is None:
            return ProgramProposal("")
        singles = [v.name for v in pace.coordinates] if len(pace.coordinates) > 1 else []
        names = singles if self.by != "between" else ()
        more = tuple(LimitedAttempt(VelocityAttempt(self.by, name), ONE_VIEW) for name in names)
        if self.by == "between":
            found = pace.mechanism(rng, task.effort)
            if found is None:
                return ProgramProposal("")
            samples, known = found[0], KnownStructure(len(found[0]), mechanics=found[1])
        else:
            samples = pace.after() if self.by == "after" else pace.before()
        try:
            program = write(induce(samples, DEFAULT, rng, task.effort, known))
        except (EmissionError, np.linalg.LinAlgError):
            return ProgramProposal("", more)
        return ProgramProposal(pace.program(program, view.observations, view.actions), more)


@dataclass(frozen=True)
class CounterAttempt:
    """Searches for counters and latches that explain equal steps with different outcomes."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write rules of the observation and of remembered quantities, or none if none helps."""
        task.effort.tell("searching for counters and latches")
        program = self._written(task.data, task)
        if not program or not task.held_back.any():
            return ProgramProposal(program)
        return ProgramProposal(program, judged=self._written(task.data[~task.held_back], task))

    def _written(self, data: Dataset, task: InductionTask) -> str:
        view = readable(data)
        flat = view.flat(data)
        quantities = chosen_quantities(
            RecordedHistory.of(flat, np.zeros(len(data), bool)), task.effort
        )
        if not quantities:
            return ""
        program = discrete.induce(with_quantities(flat, quantities))
        return remembering(program, quantities, view.observations, view.actions)


@dataclass(frozen=True)
class LagAttempt:
    """Searches for equations of observations, delayed actions and earlier changes.

    The `kind` is "recent" for the last step, "earlier" for steps before it, "events", or "clock".
    """

    kind: Kind = "recent"

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program with memory, or none if nothing earlier has an effect."""
        task.effort.tell("searching for delays and lags")
        view, rng = real(task.data), np.random.default_rng(task.seed)
        rows = task.data, task.held_back
        try:
            program = lagged_program(*rows, view, self.kind, rng, task.effort)
        except (EmissionError, np.linalg.LinAlgError):
            return ProgramProposal("")
        return ProgramProposal(program)


@dataclass(frozen=True)
class BoardAttempt:
    """Searches for a partially observed board, and remembers its observed cells."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program with memory; if there is none, propose rules on the observation."""
        task.effort.tell("searching for a board behind a partial view")
        program = remember_boards(task.data)
        rules = (RuleAttempt(),) if has_rules(task.data) and not program else ()
        return ProgramProposal(program, rules)


@dataclass(frozen=True)
class NoiseAttempt:
    """Searches for equations, and for the distributions of their residuals."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program with random draws, or none if no quantity is random."""
        task.effort.tell("fitting noise")
        view, rng = real(task.data), np.random.default_rng(task.seed)
        samples = Samples.of(view.flat(task.data), task.held_back)
        try:
            found = noise.induce(samples, rng, task.effort.part(2))
            return ProgramProposal(view.nested(noise.write(found)) if found.draws else "")
        except (EmissionError, np.linalg.LinAlgError):
            return ProgramProposal("")


@dataclass(frozen=True)
class NoisyLawAttempt:
    """Fits laws of rounded or noisy numbers, with memory if the contract has one."""

    contract: str

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program whose errors are as small as the noise allows."""
        task.effort.tell("fitting laws under noise")
        view = real(task.data)
        series = noisy.RecordedSeries.of(view.flat(task.data), ~task.held_back)
        found = noisy.induce(series, task.effort, self.contract == "memory")
        program = broken(view.nested(noisy.Writer(found).text()))
        # Rounded values have no exact laws; whole numbers may have, unless they are noisy.
        is_noisy = noisy.has_noise(task.data) or found.has_sensor_noise
        return ProgramProposal(program, is_complete=is_noisy and self.contract != "chance")


@dataclass(frozen=True)
class BodyAttempt:
    """Simulates a given body; proposes the default attempts if the body explains no row."""

    contract: str

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write a program that simulates the body."""
        assert task.body is not None
        task.effort.tell("fitting the given body")
        found = induce_body(
            task.body.xml,
            task.data,
            seed=task.seed,
            remembers=self.contract == "memory",
            comment=task.body.comment,
        )
        if not found.program:
            return ProgramProposal("", tuple(attempts(task.data, self.contract)))
        needed = "memory" if found.needs_memory else ""
        return ProgramProposal(found.program, contract=needed, is_complete=True)


@dataclass(frozen=True)
class UnchangedAttempt:
    """Predicts that nothing changes, as a fallback for wrong programs."""

    def __call__(self, task: InductionTask) -> ProgramProposal:
        """Write the program."""
        return ProgramProposal(unchanged(task.data))


def unchanged(data: Dataset) -> str:
    """Return a program that predicts no change, for a dataset with any spaces."""
    rewards = Counter(data.columns["rewards"].tolist())
    reward = rewards.most_common(1)[0][0] if rewards else 0.0
    return UNCHANGED.format(count=len(data), reward=reward)


def attempts(data: Dataset, contract: str = "plain") -> Iterator[Attempt]:
    """Yield the attempts for a new program of a model type, the likeliest first."""
    if (contract != "chance" and noisy.has_noise(data)) or (
        contract == "memory" and noisy.has_wide_counts(data)
    ):
        yield NoisyLawAttempt(contract)
    if has_window(data, contract):
        yield BoardAttempt()
        yield UnchangedAttempt()
        return
    if contract == "memory":
        yield from _with_memory(data)
        yield UnchangedAttempt()
        return
    if contract == "chance" and (has_rules(data) or has_counts(data)):
        if has_few_states(data) and not has_amounts(data):
            yield ChanceAttempt()
        yield RandomOutcomeAttempt()
        yield UnchangedAttempt()
        return
    if contract == "chance" and has_equations(data):
        yield RandomOutcomeAttempt()
        yield NoiseAttempt()
        if noisy.has_noise(data):
            yield NoisyLawAttempt(contract)
    if contract == "plain" and Vocabulary.of(data) is not None:
        yield WordAttempt(RelationAttempt())
        yield UnchangedAttempt()
        return
    if contract == "plain" and has_counts(data):
        yield TransferAttempt()
    if contract == "plain" and has_rules(data) and not objects.supports(data):
        yield RelationAttempt()
        yield UnchangedAttempt()
        return
    yield from usual_attempts(data)
    yield UnchangedAttempt()
    if contract == "plain" and has_equations(data):
        yield from (EquationAttempt(restart=number) for number in range(1, RESTARTS + 1))


def is_restart(attempt: Attempt) -> bool:
    """Return whether an attempt repeats the search for equations with other held-out rows."""
    return isinstance(attempt, EquationAttempt) and attempt.restart > 0


def usual_attempts(data: Dataset) -> Iterator[Attempt]:
    """Yield the attempts for any data: rules on objects or whole numbers, then equations."""
    if objects.supports(data):
        yield ObjectAttempt()
    if has_rules(data):
        yield RuleAttempt()
    if has_equations(data):
        yield EquationAttempt()


def _with_memory(data: Dataset) -> Iterator[Attempt]:
    """Yield the attempts for a program with memory, including programs that remember nothing."""
    if has_rules(data):
        yield CounterAttempt()
        yield RuleAttempt()
    if not has_equations(data):
        return
    first, *others = (VelocityAttempt(way) for way in ways(real(data).flat(data)))
    yield LimitedAttempt(first, ONE_VIEW)
    yield LimitedAttempt(EquationAttempt(), ONE_VIEW)
    yield from (LimitedAttempt(LagAttempt(kind), ONE_MEMORY) for kind in KINDS)
    yield from (LimitedAttempt(way, ONE_VIEW) for way in others)


def improvements(data: Dataset, program: str, predictions: Columns) -> Iterator[Attempt]:
    """Yield an attempt to improve a running program of rules: a table for the wrong rows."""
    if has_rules(data):
        wrong_rows = match(predictions, data).losses(data.columns["terminations"]) > 0
        if wrong_rows.any():
            yield MemoryAttempt(program, wrong_rows)


def forgetful(program: str, data: Dataset) -> str:
    """Return a program without its table of transitions that no rule explains."""
    if objects.supports(data):
        return objects.forgetful(program)
    if not has_rules(data):
        return program
    view = readable(data)
    rules, known = discrete.recall(view.flattened(program))
    return view.nested(rules) if known else program


def fixes(data: Dataset) -> Iterator[Attempt]:
    """Yield attempts to replace a failing program: simple equations."""
    if has_equations(data):
        yield EquationAttempt(SIMPLE)


def has_window(data: Dataset, contract: str) -> bool:
    """Return whether the model type has memory and observations may be windows onto a board."""
    return contract == "memory" and Views.of(data) is not None


def has_rules(data: Dataset) -> bool:
    """Return whether rules can explain the transitions: observations of few whole numbers."""
    if discrete.supports(data):
        return True
    whole = is_numeric(data.observation_space) and is_whole(data)
    return whole and discrete.supports(readable(data).flat(data))


def has_equations(data: Dataset) -> bool:
    """Return whether equations can explain the transitions: numbers other than plain labels."""
    kinds = {leaf.space.kind for leaf in data.observation_space.leaves("observations")}
    numbers = is_numeric(data.observation_space) and is_numeric(data.action_space)
    return len(data) > 0 and numbers and bool(kinds & {"box", "multidiscrete"})


def has_counts(data: Dataset) -> bool:
    """Return whether all observations are whole numbers."""
    return len(data) > 0 and is_numeric(data.observation_space) and is_whole(data)


def has_amounts(data: Dataset) -> bool:
    """Return whether observations are whole numbers in a box, which are rarely names of states."""
    return has_counts(data) and data.observation_space.kind == "box"


def has_few_states(data: Dataset) -> bool:
    """Return whether the observation space has at most `MAX_STATES` states, so states recur."""
    space = Arrangement.of(data, "int64").flat(data).observation_space
    sizes = np.array(space.high) - np.array(space.low) + 1
    return float(np.prod(sizes.astype(float))) <= MAX_STATES


def readable(data: Dataset) -> Arrangement:
    """Arrange observations as whole numbers, unless rules can read them unchanged."""
    return Arrangement.of(data, "" if discrete.supports(data) else "int64")


def real(data: Dataset) -> Arrangement:
    """Arrange observations as real numbers: float32 if all are stored as such, else float64."""
    leaves = [*data.observation_space.leaves("observations")]
    floats = {data.columns[leaf.name].dtype for leaf in leaves if leaf.space.is_float}
    return Arrangement.of(data, "float32" if floats == {np.dtype("float32")} else "float64")


def held_back(fit: Dataset, seed: int) -> np.ndarray:
    """Return the mask of the held-out rows: whole trajectories if there are enough.

    A trajectory with most of the rows is not held out.
    """
    rng = np.random.default_rng([seed, len(fit)])
    episodes, sizes = np.unique(fit.columns["episodes"], return_counts=True)
    if len(episodes) < FEWEST_EPISODES:
        chosen = rng.permutation(len(fit))[: int(CHECK_SHARE * len(fit))]
        return np.isin(np.arange(len(fit)), chosen)
    held: list[int] = []
    count = 0
    for episode in rng.permutation(len(episodes)).tolist():
        fits = count + sizes[episode] <= MAX_HELD_OUT_RATIO * CHECK_SHARE * len(fit)
        if count < CHECK_SHARE * len(fit) and fits:
            held.append(episodes[episode])
            count += int(sizes[episode])
    return np.isin(fit.columns["episodes"], held or episodes[sizes == sizes.min()][:1])


class _Result(NamedTuple):
    """A proposal, its work units, and whether it reached the time limit."""

    proposal: ProgramProposal
    spent: float
    capped: bool


def proposals(attempts: list[Attempt], task: InductionTask) -> list[ProgramProposal]:
    """Return the proposals of one or two attempts, each with an equal part of the effort.

    The proposals do not depend on the number of cores.
    """
    effort = task.effort
    first, *second = [replace(task, effort=effort.part(len(attempts))) for _ in attempts]
    if second and (os.cpu_count() or 1) > 1:
        done = _side_by_side(attempts, first, second[0])
    else:
        done = [_run(*pair) for pair in zip(attempts, [first, *second], strict=True)]
    effort.units -= sum(one.spent for one in done)
    effort.capped = effort.capped or any(one.capped for one in done)
    return [one.proposal for one in done]


def _run(attempt: Attempt, task: InductionTask) -> _Result:
    """Run an attempt without warnings for numbers out of range."""
    before = task.effort.units
    with np.errstate(all="ignore"):
        proposal = attempt(task)
    return _Result(proposal, before - task.effort.units, task.effort.capped)


def _side_by_side(
    attempts: list[Attempt], here: InductionTask, there: InductionTask
) -> list[_Result]:
    """Run the first attempt in this process and the second one in a subprocess.

    The subprocess starts with `main`, so that it does not import the main module of the caller. If
    the subprocess fails, its attempt runs in this process.
    """
    command = [sys.executable, "-c", "from cwm_induction.attempts import main; main()"]
    request = pickle.dumps((attempts[1], replace(there, effort=there.effort.alone())))
    with TemporaryFile() as file:
        file.write(request)
        file.seek(0)
        process = subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        first = _run(attempts[0], here)
        text, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    return [first, pickle.loads(text) if text else _run(attempts[1], there)]  # noqa: S301  # ours


def main() -> None:
    """Read an attempt from stdin, run it, and write its result to stdout."""
    attempt, task = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the parent process
    done = _run(attempt, replace(task, effort=task.effort.alone()))
    sys.stdout.buffer.write(pickle.dumps(done))
