"""Join programs: each is right about some parts of a transition, and one takes them from all.

A part is a component of the observation, the reward, the end or the valid actions. What a program
has wrong is taken from another one that is exact there; where none is, data alone are asked.
"""

from __future__ import annotations

import ast
import io
import re
import symtable
import threading
import tokenize
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

MOST_JOINED = 3
"""Programs in one: with more, nobody could read it."""

WHOLE, REWARD, END, ACTIONS = "observation", "reward", "terminated", "valid_actions"
PLACES = {REWARD: 1, END: 2, ACTIONS: 3}
"""Where the parts stand in what a step returns; the observation comes first."""

WORDS = {WHOLE: "the observation", REWARD: "the reward", END: "the end", ACTIONS: "valid actions"}


class JoinedPart(NamedTuple):
    """A part of a transition; a component of an observation has a number."""

    name: str
    number: int | None = None


class Contribution(NamedTuple):
    """A program, and the parts of a transition that are to be taken from it."""

    program: str
    parts: list[JoinedPart]


@dataclass(frozen=True)
class Join(Refiner):
    """Takes what a program has wrong from other programs that are exact there."""

    join_induction: bool = True
    """If no program has a part right, infer this part from the data, once per search."""
    _right: dict[tuple[str, int], frozenset[JoinedPart] | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _induced: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Join the program with others; None where nothing is wrong or nobody has what is."""
        problem, node = task.problem, task.node
        if not isinstance(problem, WorldModelProblem):
            return None
        rows = problem.dataset[problem.dataset.fitted]
        every = [part for part, _ in _parts_of(rows)]
        here = self._right_parts(node.program, problem, rows)
        if here is None or len(here) == len(every):
            return None
        task.tell(f"searching for {len(every) - len(here)} parts in {len(task.others)} programs")
        others = [other.program for other in task.others]
        shares = self._shares([node.program, *others], every, problem, rows)
        begun = any(each.action == START for each in (node, *task.others))
        if not shares and self.join_induction and not begun:
            others.append(self._from_data(problem, rows, task))
            shares = self._shares([node.program, *others], every, problem, rows)
        return self._written(shares, problem, rows) if shares else None

    def _shares(
        self,
        programs: Sequence[str],
        every: Sequence[JoinedPart],
        problem: WorldModelProblem,
        rows: Dataset,
    ) -> list[Contribution]:
        """Divide the parts among few programs; what nobody has right stays with the first.

        There are none where one program has all there is.
        """
        first, *others = dict.fromkeys(filter(None, programs))
        known = {other: self._right_parts(other, problem, rows) or frozenset() for other in others}
        open_parts = set(every) - (self._right_parts(first, problem, rows) or frozenset())
        shares: list[Contribution] = []
        while open_parts and len(shares) < MOST_JOINED - 1:
            best = max(others, key=lambda other: len(open_parts & known[other]), default="")
            taken = open_parts & known[best] if best else set()
            if not taken:
                break
            shares.append(Contribution(best, [part for part in every if part in taken]))
            open_parts -= taken
        elsewhere = {part for share in shares for part in share.parts}
        shares.append(Contribution(first, [part for part in every if part not in elsewhere]))
        shares = [share for share in shares if share.parts]
        return _main_first(shares) if len(shares) > 1 else []

    def _right_parts(
        self, program: str, problem: WorldModelProblem, rows: Dataset
    ) -> frozenset[JoinedPart] | None:
        """Return the parts that a program has right in all rows, None if it does not run."""
        key = program, len(rows)
        if key not in self._right:
            found = problem.sandbox.predict(program, rows, seed=problem.seed)
            self._right[key] = None if found.failure is not None else _right(found.columns, rows)
        return self._right[key]

    def _from_data(self, problem: WorldModelProblem, rows: Dataset, task: RefinementTask) -> str:
        """Return the program that data alone give, "" for none; it is asked for once."""
        with self._lock:
            if len(rows) not in self._induced:
                answer = ask_data_backend(problem, default("backend"), task.seed, task.tell)
                self._induced[len(rows)] = problem.read(answer.text, Move(GENERATE))
            return self._induced[len(rows)]

    def _written(
        self, shares: list[Contribution], problem: WorldModelProblem, rows: Dataset
    ) -> Refinement | None:
        """Write the programs as one, if that is right where each of them is."""
        space = rows.observation_space
        names = documented_names(problem.description, space) or component_names(space, WHOLE)
        program = joined(shares, names)
        due = {
            part
            for share in shares
            for part in share.parts
            if part in (self._right_parts(share.program, problem, rows) or ())
        }
        right = self._right_parts(program, problem, rows)
        if right is None or not due <= right:
            return None
        taken = "; ".join(_named(share.parts, names) for share in shares[1:])
        return Refinement(
            program, f"Parts taken from other programs, which predict them exactly: {taken}."
        )


def _parts_of(rows: Dataset) -> Iterator[tuple[JoinedPart, int]]:
    """Yield the parts of a transition; a vector's components one by one, others as a whole."""
    space = rows.observation_space
    vector = not space.children and len(space.shape) == 1 and space.kind != "text"
    numbers = range(space.size) if vector else [None]
    yield from ((JoinedPart(WHOLE, number), 0) for number in numbers)
    yield JoinedPart(REWARD), 1
    yield JoinedPart(END), 2
    if rows.has_valid_actions:
        yield JoinedPart(ACTIONS), 3


def _right(predictions: Mapping[str, object], rows: Dataset) -> frozenset[JoinedPart]:
    """Return the parts that are right in every row where they count."""
    goes_on = ~rows.columns["terminations"]
    found, leaves = match(predictions, rows), components(predictions, rows)  # type: ignore[arg-type]
    masks = {
        JoinedPart(REWARD): found.reward == 1,
        JoinedPart(END): found.terminated == 1,
        JoinedPart(WHOLE): found.observation[goes_on] == 1,
    }
    if found.valid_actions is not None:
        masks[JoinedPart(ACTIONS)] = found.valid_actions[goes_on] == 1
    for number, right in enumerate(leaves[0][goes_on].T):
        masks[JoinedPart(WHOLE, number)] = right
    return frozenset(part for part, _ in _parts_of(rows) if masks[part].all())


def _main_first(shares: Sequence[Contribution]) -> list[Contribution]:
    """Put the program first that most of the observation comes from: it keeps the state."""

    def observed(share: Contribution) -> int:
        return sum(part.name == WHOLE for part in share.parts)

    return sorted(shares, key=observed, reverse=True)


def joined(shares: Sequence[Contribution], names: Sequence[str] = ()) -> str:
    """Write programs as one, whose first gives all that is not taken from another one."""
    texts: list[str] = []
    models: list[str] = []
    for place, share in enumerate(shares):
        used = {name for text in texts for name in _top_names(text)} | {"Environment"}
        wanted = _model_name(share.parts) if place else "MainModel"
        models.append(_free(wanted, {*used, *_top_names(share.program)}))
        texts.append(_made_room(share.program, used, models[-1], imported=texts))
    return "\n\n\n".join([*texts, _environment(shares, models, names)])


def _environment(
    shares: Sequence[Contribution], models: Sequence[str], names: Sequence[str]
) -> str:
    """Write the class that asks the models and puts together what each is right about."""
    others = list(zip(shares, models, strict=True))[1:]
    taken = ", ".join(f"{_named(share.parts, names)} from {model}" for share, model in others)
    fields = {model: _field(model) for model in models}
    mixed = any(part.name == WHOLE for share, _ in others for part in share.parts)
    lines = [f"self.{fields[model]}.set_state(deepcopy(self.observation))" for model in models]
    body = [*lines[0 if mixed else 1 :], f"answer = list(self.{fields[models[0]]}.step(action))"]
    for share, model in others:
        body.append(f"{fields[model]} = self.{fields[model]}.step(action)")
        body += _taken(share.parts, fields[model], names)
    made = "\n".join(f"        self.{fields[model]} = {model}()" for model in models)
    step = "\n".join(f"        {line}" for line in body)
    return f'''class Environment:
    """Combines programs: {taken}; everything else from {models[0]}."""

    def __init__(self):
{made}

    def set_state(self, observation):
        """Set the observation to predict from."""
        self.observation = observation
        self.{fields[models[0]]}.set_state(deepcopy(observation))

    def step(self, action):
        """Combine the predictions of the programs."""
{step}
        self.observation = answer[0]
        return tuple(answer)
'''


def _taken(parts: Sequence[JoinedPart], source: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines that take parts from an answer."""
    numbers = [part.number for part in parts if part.name == WHOLE]
    if None in numbers:
        yield f"answer[0] = {source}[0]"
    elif numbers:
        yield "answer[0] = list(answer[0])"
        for number in numbers:
            called = names[number] if number is not None and number < len(names) else ""
            yield f"answer[0][{number}] = {source}[0][{number}]" + (called and f"  # {called}")
    for part in parts:
        if part.name in PLACES:
            place = PLACES[part.name]
            yield f"answer[{place}] = {source}[{place}]  # {WORDS[part.name]}"


def _named(parts: Sequence[JoinedPart], names: Sequence[str]) -> str:
    """Name parts in words."""
    called = [
        names[part.number]
        if part.number is not None and part.number < len(names)
        else WORDS[part.name]
        for part in parts
    ]
    return " and ".join(dict.fromkeys(called))


def _model_name(parts: Sequence[JoinedPart]) -> str:
    """Name the class of a program after what is taken from it."""
    kinds = {part.name for part in parts}
    named = {REWARD: "RewardModel", END: "EndModel", WHOLE: "MotionModel", ACTIONS: "ActionsModel"}
    return named[kinds.pop()] if len(kinds) == 1 else "OtherModel"


def _field(model: str) -> str:
    """Return the name of a model as an attribute: RewardModel is reward_model."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", model).lower()


def _top_names(program: str) -> set[str]:
    """Return the names that a program binds at its top."""
    try:
        symbols = symtable.symtable(program, "program", "exec").get_symbols()
    except (SyntaxError, ValueError):
        return set()
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}


def _free(name: str, used: set[str]) -> str:
    """Return a name that is not used yet."""
    number, free = 2, name
    while free in used:
        number, free = number + 1, f"{name}{number}"
    return free


def _made_room(program: str, used: set[str], model: str, *, imported: Sequence[str]) -> str:
    """Rename what clashes with programs above, and the class; say no import twice."""
    tree = ast.parse(program)
    above = {ast.dump(line) for text in imported for line in ast.parse(text).body}
    modules = (ast.Import, ast.ImportFrom)
    again = [line for line in tree.body if isinstance(line, modules) and ast.dump(line) in above]
    if imported and ast.get_docstring(tree) is not None:
        again.append(tree.body[0])  # type: ignore[arg-type]
    lines = program.splitlines()
    for line in again:
        lines[line.lineno - 1 : line.end_lineno] = [""] * (line.end_lineno - line.lineno + 1)  # type: ignore[operator]
    own = _top_names(program)
    shared = {name for line in again if isinstance(line, modules) for name in _bound(line)}
    clashing = (own & used) - shared - {"Environment"}
    mapping = {name: _free(f"{name}_2", {*own, *used}) for name in sorted(clashing)}
    text = _renamed("\n".join(lines), {**mapping, "Environment": model}).strip("\n")
    return text if imported or "deepcopy" in own else f"from copy import deepcopy\n\n{text}"


def _bound(line: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield the names that an import binds."""
    for alias in line.names:
        yield alias.asname or alias.name.partition(".")[0]


def _renamed(program: str, names: Mapping[str, str]) -> str:
    """Rename names wherever they stand, but for attributes."""
    lines = program.splitlines(keepends=True)
    places: list[tuple[int, int, str]] = []
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(program).readline):
        if token.type == tokenize.NAME and token.string in names and before != ".":
            places.append((*token.start, token.string))
        before = token.string
    for row, column, name in reversed(places):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + names[name] + line[column + len(name) :]
    return "".join(lines)
