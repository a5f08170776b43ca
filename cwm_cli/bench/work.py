"""A process of a benchmark: does one task, and ends when whoever started it does.

Its order comes as the first line of standard input, which then stays open as
long as the process that started it is there. What it found is in the folder
before it ends with exit code 0.
"""

import json
import os
import runpy
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from cwm_cli.agents.collecting import default_dataset
from cwm_cli.agents.synthesizing import Choices, Order, open_job
from cwm_cli.bench.configuration import Access, Header, Trial
from cwm_cli.bench.folder import Folder, Task
from cwm_cli.bench.options import flags, options_of
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import PaperMetric
from cwm_cli.registry import environment
from cwm_cli.worlds import EnvironmentModel

Group = Literal["discrete", "continuous", "text"]


class Assignment(BaseModel):
    """What a process is told on standard input."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    kind: str
    name: str
    planner: str = ""
    access: Access


class Work(NamedTuple):
    """A task, and all that is known about it."""

    folder: Folder
    header: Header
    task: Task
    access: Access

    @property
    def trial(self) -> Trial:
        """The trial that the task is for."""
        trials = self.header.configuration.trials
        return next(trial for trial in trials if trial.name == self.task.name)

    def data(self, name: str) -> tuple[EnvironmentSpec, Dataset]:
        """Return an environment and its transitions."""
        return environment(name), Dataset.load(self.folder.data(name))


def group_of(observation_space: Space, action_space: Space) -> Group:
    """Tell what kind of environment it is: with text to read, or by its actions."""
    if any(leaf.space.kind == "text" for leaf in observation_space.leaves("")):
        return "text"
    floats = any(leaf.space.is_float for leaf in action_space.leaves(""))
    return "continuous" if floats else "discrete"


def prepare(work: Work) -> None:
    """Make an environment, and record its data."""
    spec = environment(work.task.name)
    with closing(spec.make()) as env:
        group = group_of(space_of(env.observation_space), space_of(env.action_space, "actions"))
    cached, _ = default_dataset(spec, data_seed=work.header.configuration.data_seed)
    dataset = Dataset.load(cached)
    dataset.save(work.folder.data(work.task.name))
    facts = {
        "environment": spec.id,
        "group": group,
        "digest": dataset.digest,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "versions": dict(spec.versions()),
    }
    work.folder.keep(work.task, facts)


def search(work: Work) -> None:
    """Search for a program of an environment, new or continued."""
    trial, configuration = work.trial, work.header.configuration
    options = options_of(configuration, trial.strategy)
    if configuration.needs_programs:
        program = work.folder.program(trial.environment) / "best.py"
        options.append(f"backend.program={program}")
    choices = _choices(work)._replace(
        strategy=trial.strategy,
        backend=configuration.backend,
        model=trial.model,
        options=options,
        flags=flags(configuration, work.access),
        seed=trial.seed,
    )
    _run(work, trial.environment, choices, work.folder.run(trial))


def write(work: Work) -> None:
    """Induce the program of an environment that a simulation is to break."""
    choices = _choices(work)._replace(budget=1)
    _run(work, work.task.name, choices, work.folder.program(work.task.name))


def ceiling(work: Work) -> None:
    """Find out what the true environment scores on its own data."""
    spec, dataset = work.data(work.task.name)
    metric = PaperMetric.of(dataset.train)
    parts = {"train": dataset.train, "test": dataset.test}
    scores = {name: metric.ceiling(EnvironmentModel(spec), rows) for name, rows in parts.items()}
    found = {name: score.model_dump() if score else None for name, score in scores.items()}
    work.folder.keep(work.task, found)


def play(work: Work) -> None:
    """Play by planning in the best program of a trial."""
    run, trial = work.folder.run(work.trial), work.trial
    digest = work.folder.digest(trial)
    found = _plan(work, trial.environment, "--run", str(run), "--no-oracle")
    work.folder.keep(work.task, found | {"program_digest": digest})


def oracle(work: Work) -> None:
    """Play by planning in an environment itself; the journal is kept in the benchmark."""
    home = work.folder.path / "oracles"
    home.mkdir(exist_ok=True)
    os.chdir(home)  # where `runs/plans` is then
    found = _plan(work, work.task.name, "--real-env", "--planner", work.task.planner)
    work.folder.keep(work.task, found)


TASKS: Mapping[str, Callable[[Work], None]] = {
    "prepare": prepare,
    "write": write,
    "search": search,
    "play": play,
    "ceiling": ceiling,
    "oracle": oracle,
}


def _choices(work: Work) -> Choices:
    """Return what all searches have in common; the others are those of the offline backend."""
    configuration, terms = work.header.configuration, work.header.terms
    return Choices(
        strategy="zero-shot",
        backend="induction",
        model="",
        options=[],
        flags={},
        metric=configuration.metric,
        seed=0,
        parallel=1,
        max_cost=terms.max_cost,
        budget=terms.budget,
        tools=configuration.tools,
        accepted=work.access.accepted,
    )


def _run(work: Work, name: str, choices: Choices, run: Path) -> None:
    """Search as `cwm synthesize` does; the result has the published score as well."""
    spec, dataset = work.data(name)
    order = Order(spec, {}, dataset, str(work.folder.data(name)), choices)
    with open_job(order, folder=run) as job:
        try:
            for _ in job.nodes():
                pass
        except CwmError as error:
            job.run.log(f"stopped: {error}")
            raise
        job.problem = replace(job.problem, metric=PaperMetric.of(dataset.train))
        result = job.finish().as_json()
        money = {"max_cost": choices.max_cost, "out_of_money": job.search.out_of_money}
        job.run.save_result(result | money)


def _plan(work: Work, name: str, *arguments: str) -> dict[str, Any]:
    """Run `cwm plan` in this process, as a user would, and return what it prints as JSON."""
    episodes = ["--episodes", str(work.header.terms.episodes), "--json"]
    longest = work.header.configuration.max_steps
    episodes += ["--max-steps", str(longest)] if longest else []
    gaps = [word for gap in work.access.accepted for word in ("--allow-gap", gap)]
    sys.argv = ["cwm", "plan", "--env", name, *arguments, *episodes, *gaps]
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            runpy.run_module("cwm_cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


def _leash(standard_input: int) -> None:
    """End at once when the process that started this one has ended."""
    while os.read(standard_input, 4096):
        pass
    os._exit(1)


def _first_line(standard_input: int) -> bytes:
    """Read the order, and nothing beyond it."""
    line = b""
    while not line.endswith(b"\n"):
        character = os.read(standard_input, 1)
        if not character:
            os._exit(1)
        line += character
    return line


def main() -> None:
    """Do what standard input says."""
    standard_input = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    told = Assignment.model_validate_json(_first_line(standard_input))
    threading.Thread(target=_leash, args=(standard_input,), daemon=True).start()
    folder = Folder(told.folder)
    task = Task(told.kind, told.name, told.planner)
    try:
        TASKS[task.kind](Work(folder, folder.header(), task, told.access))
    except CwmError as error:
        sys.exit(f"Error: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
