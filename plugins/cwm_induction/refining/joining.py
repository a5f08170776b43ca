"""The refiner `join`: it joins programs that are exact in different parts of a transition.

A part is a component of the observation, the reward, the end or the valid actions. A part that a
program predicts wrongly is taken from another program, or from a program of the data alone.
"""

from __future__ import annotations

import ast
import re
import symtable
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cwm_cli.commands.choices import ask_data_backend
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.metric import components, match
from cwm_cli.problems.feedback import documented_names
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import default
from cwm_cli.search.contracts import GENERATE, START, Move, Refinement, RefinementTask, Refiner
from cwm_cli.worlds.contract import component_names
from cwm_induction.refining.tracing import rename

MAX_PROGRAMS = 3
"""Most programs that are joined; a longer program would be hard to read."""

OBSERVATION, REWARD, END, ACTIONS = "observation", "reward", "terminated", "valid_actions"


class PartKind(NamedTuple):
    """The position in the result of a step, the name, and the class of a program for this kind."""

    position: int
    label: str
    model: str


KINDS = {
    OBSERVATION: PartKind(0, "the observation", "MotionModel"),
    REWARD: PartKind(1, "the reward", "RewardModel"),
    END: PartKind(2, "the end", "EndModel"),
    ACTIONS: PartKind(3, "valid actions", "ActionsModel"),
}


class ProgramPart(NamedTuple):
    """A part of a transition; a component of an observation vector has a number."""

    name: str
    number: int | None = None


class Contribution(NamedTuple):
    """A program, and the parts of a transition that it contributes."""

    program: str
    parts: list[ProgramPart]


@dataclass(frozen=True)
class Join(Refiner):
    """Takes the parts that a program predicts wrongly from other programs that are exact there."""

    join_induction: bool = True
    """If no program has a part right, infer this part from the data, once per search."""
    _exact: dict[tuple[str, int], frozenset[ProgramPart] | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _induced: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Join the program with others; return None if no other program has a missing part."""
        problem, node = task.problem, task.node
        if not isinstance(problem, WorldModelProblem):
            return None
        rows = problem.dataset[problem.dataset.fitted]
        every, exact = list(_parts(rows)), self._exact_parts(node.program, problem, rows)
        if exact is None or len(exact) == len(every):
            return None
        others = [other.program for other in task.others]
        task.tell(f"searching for {len(every) - len(exact)} parts in {len(others)} programs")
        shares = self._divide([node.program, *others], every, problem, rows)
        has_start = any(each.action == START for each in (node, *task.others))
        if not shares and self.join_induction and not has_start:
            others.append(self._induce(problem, rows, task))
            shares = self._divide([node.program, *others], every, problem, rows)
        return self._write(shares, problem, rows) if shares else None

    def _divide(
        self,
        programs: Sequence[str],
        every: Sequence[ProgramPart],
        problem: WorldModelProblem,
        rows: Dataset,
    ) -> list[Contribution]:
        """Divide the parts among few programs; return [] if one program has all parts.

        The first program keeps the parts that no program predicts exactly.
        """
        first, *others = dict.fromkeys(filter(None, programs))
        exact = {one: self._exact_parts(one, problem, rows) or frozenset() for one in others}
        missing = set(every) - (self._exact_parts(first, problem, rows) or frozenset())
        shares: list[Contribution] = []
        while missing and len(shares) < MAX_PROGRAMS - 1:
            best = max(others, key=lambda other: len(missing & exact[other]), default="")
            taken = missing & exact[best] if best else set()
            if not taken:
                break
            shares.append(Contribution(best, [part for part in every if part in taken]))
            missing -= taken
        elsewhere = {part for share in shares for part in share.parts}
        shares.append(Contribution(first, [part for part in every if part not in elsewhere]))
        shares = [share for share in shares if share.parts]
        # The program with most of the observation comes first, because it keeps the state.
        shares.sort(key=lambda share: -sum(part.name == OBSERVATION for part in share.parts))
        return shares if len(shares) > 1 else []

    def _exact_parts(
        self, program: str, problem: WorldModelProblem, rows: Dataset
    ) -> frozenset[ProgramPart] | None:
        """Return the parts that are right in all rows, None if the program does not run."""
        key = program, len(rows)
        if key not in self._exact:
            found = problem.sandbox.predict(program, rows, seed=problem.seed)
            self._exact[key] = None if found.failure else _exact(found.columns, rows)
        return self._exact[key]

    def _induce(self, problem: WorldModelProblem, rows: Dataset, task: RefinementTask) -> str:
        """Return the program of the data backend, "" for none; it is asked once."""
        with self._lock:
            if len(rows) not in self._induced:
                answer = ask_data_backend(problem, default("backend"), task.seed, task.tell)
                self._induced[len(rows)] = problem.read(answer.text, Move(GENERATE))
            return self._induced[len(rows)]

    def _write(
        self, shares: list[Contribution], problem: WorldModelProblem, rows: Dataset
    ) -> Refinement | None:
        """Return the joined program if it has all exact parts of the programs."""
        space = rows.observation_space
        names = documented_names(problem.description, space) or component_names(space, OBSERVATION)
        program = join_programs(shares, names)
        due = {
            part
            for share in shares
            for part in share.parts
            if part in (self._exact_parts(share.program, problem, rows) or ())
        }
        exact = self._exact_parts(program, problem, rows)
        if exact is None or not due <= exact:
            return None
        taken = "; ".join(_describe(share.parts, names) for share in shares[1:])
        return Refinement(
            program, f"Parts taken from other programs, which predict them exactly: {taken}."
        )


def _parts(rows: Dataset) -> Iterator[ProgramPart]:
    """Yield the parts of a transition; only vectors are divided into components."""
    space = rows.observation_space
    is_vector = not space.children and len(space.shape) == 1 and space.kind != "text"
    yield from (ProgramPart(OBSERVATION, n) for n in (range(space.size) if is_vector else [None]))
    yield from (ProgramPart(REWARD), ProgramPart(END))
    if rows.has_valid_actions:
        yield ProgramPart(ACTIONS)


def _exact(predictions: Mapping[str, object], rows: Dataset) -> frozenset[ProgramPart]:
    """Return the parts that are right in every row; after the end, only reward and end count."""
    continues = ~rows.columns["terminations"]
    found, leaves = match(predictions, rows), components(predictions, rows)  # type: ignore[arg-type]
    masks = {
        ProgramPart(OBSERVATION): found.observation[continues] == 1,
    }
    if found.reward is not None:
        masks[ProgramPart(REWARD)] = found.reward == 1
    if found.terminated is not None:
        masks[ProgramPart(END)] = found.terminated == 1
    if found.valid_actions is not None:
        masks[ProgramPart(ACTIONS)] = found.valid_actions[continues] == 1
    masks |= {ProgramPart(OBSERVATION, n): right for n, right in enumerate(leaves[0][continues].T)}
    # Parts that the rows lack are right.
    return frozenset(part for part in _parts(rows) if part not in masks or masks[part].all())


def join_programs(shares: Sequence[Contribution], names: Sequence[str] = ()) -> str:
    """Return one program; the first contribution predicts all parts that no other one does."""
    texts: list[str] = []
    models: list[str] = []
    for number, share in enumerate(shares):
        used = {name for text in texts for name in _global_names(text)} | {"Environment"}
        kinds = {part.name for part in share.parts}
        wanted = KINDS[kinds.pop()].model if len(kinds) == 1 else "OtherModel"
        taken = {*used, *_global_names(share.program)}
        models.append(_unused(wanted if number else "MainModel", taken))
        texts.append(_rename_globals(share.program, used, models[-1], texts))
    return "\n\n\n".join([*texts, _write_environment(shares, models, names)])


def _write_environment(
    shares: Sequence[Contribution], models: Sequence[str], names: Sequence[str]
) -> str:
    """Return the class that combines the predictions of the models."""
    others = list(zip(shares, models, strict=True))[1:]
    taken = ", ".join(f"{_describe(share.parts, names)} from {model}" for share, model in others)
    # RewardModel becomes reward_model.
    fields = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", model).lower() for model in models]
    is_mixed = any(part.name == OBSERVATION for share, _ in others for part in share.parts)
    body = [f"self.{each}.set_state(deepcopy(self.observation))" for each in fields]
    body = body if is_mixed else body[1:]
    body.append(f"answer = list(self.{fields[0]}.step(action))")
    for (share, _), name in zip(others, fields[1:], strict=True):
        body += [f"{name} = self.{name}.step(action)", *_assignments(share.parts, name, names)]
    pairs = zip(fields, models, strict=True)
    created = "\n".join(f"        self.{name} = {model}()" for name, model in pairs)
    step = "\n".join(f"        {line}" for line in body)
    return f'''class Environment:
    """Combines programs: {taken}; everything else from {models[0]}."""

    def __init__(self):
{created}

    def set_state(self, observation):
        """Set the observation to predict from."""
        self.observation = observation
        self.{fields[0]}.set_state(deepcopy(observation))

    def step(self, action):
        """Combine the predictions of the programs."""
{step}
        self.observation = answer[0]
        return tuple(answer)
'''


def _assignments(parts: Sequence[ProgramPart], source: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines that take parts from the result of a model."""
    if any(part.number is not None for part in parts):
        yield "answer[0] = list(answer[0])"
    for part in parts:
        index = KINDS[part.name].position
        place = f"[{index}]" if part.number is None else f"[{index}][{part.number}]"
        yield f"answer{place} = {source}{place}  # {_label(part, names)}"


def _label(part: ProgramPart, names: Sequence[str]) -> str:
    is_named = part.number is not None and part.number < len(names)
    return names[part.number] if is_named else KINDS[part.name].label  # type: ignore[index]


def _describe(parts: Sequence[ProgramPart], names: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(_label(part, names) for part in parts))


def _global_names(program: str) -> set[str]:
    """Return the names that a module assigns or imports."""
    try:
        symbols = symtable.symtable(program, "program", "exec").get_symbols()
    except (SyntaxError, ValueError):
        return set()
    return {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}


def _unused(name: str, used: set[str]) -> str:
    number, found = 2, name
    while found in used:
        number, found = number + 1, f"{name}{number}"
    return found


def _rename_globals(program: str, used: set[str], model: str, above: Sequence[str]) -> str:
    """Rename the class and used names, and remove imports and docstrings of programs above."""
    tree, lines, own = ast.parse(program), program.splitlines(), _global_names(program)
    known = {ast.dump(line) for text in above for line in ast.parse(text).body}
    shared: set[str] = set()
    for statement in tree.body:
        is_import = isinstance(statement, ast.Import | ast.ImportFrom)
        is_repeated = is_import and ast.dump(statement) in known
        is_docstring = statement is tree.body[0] and ast.get_docstring(tree) is not None
        if is_repeated or (above and is_docstring):
            for line in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
                lines[line] = ""
        if is_repeated and isinstance(statement, ast.Import | ast.ImportFrom):
            shared |= {each.asname or each.name.partition(".")[0] for each in statement.names}
    clashing = (own & used) - shared - {"Environment"}
    mapping = {name: _unused(f"{name}_2", {*own, *used}) for name in sorted(clashing)}
    text = rename("\n".join(lines), {**mapping, "Environment": model}).strip("\n")
    return text if above or "deepcopy" in own else f"from copy import deepcopy\n\n{text}"
