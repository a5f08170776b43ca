"""A process of a benchmark: `python -m cwm_benchmark.worker FOLDER KIND NAME [PLANNER]`.

It does one task, and ends when its parent process ends. Before it exits with code 0, its outcome
is in the folder. It may be repeated at any time.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cwm_benchmark.configuration import (
    BenchmarkAccess,
    BenchmarkConfig,
    BenchmarkTask,
    Group,
    Trial,
)
from cwm_benchmark.folder import BenchmarkFolder
from cwm_cli.bench.executor import Command, job_process
from cwm_cli.commands.choices import Choices
from cwm_cli.commands.collect import default_dataset
from cwm_cli.commands.plan import plan
from cwm_cli.commands.sides import episodes_by_length
from cwm_cli.commands.synthesize import Order, open_job
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import PaperMetric
from cwm_cli.registry import default, environment, find
from cwm_cli.runs.storage import HEADER, bring, located, named, send
from cwm_cli.search.spending import CostLimit
from cwm_cli.worlds import EnvironmentModel

ACCESS = "CWM_BENCHMARK_ACCESS"
"""The environment variable that passes settings to a process which no file contains."""


class TaskWork(NamedTuple):
    """A task with its benchmark and its settings."""

    run: BenchmarkFolder
    task: BenchmarkTask
    access: BenchmarkAccess

    @property
    def trial(self) -> Trial:
        """The trial that the task is for."""
        trials = self.run.config.trials
        return next(trial for trial in trials if trial.name == self.task.name)

    def command(self) -> Command:
        """Return the command that does the task."""
        words = (sys.executable, "-m", "cwm_benchmark.worker", self.run.place)
        return Command(
            name=self.task.key,
            words=(*words, *filter(None, self.task)),
            log=self.run.log_file(self.task),
            environment={ACCESS: self.access.model_dump_json()},
            held=(self.run.lock_descriptor,),
            spending=self.run.spending_file,
        )


def group_of(observation_space: Space, action_space: Space) -> Group:
    """Return the kind of an environment: with text to read, or by its actions."""
    if any(leaf.space.kind == "text" for leaf in observation_space.leaves("")):
        return "text"
    floats = any(leaf.space.is_float for leaf in action_space.leaves(""))
    return "continuous" if floats else "discrete"


def prepare(work: TaskWork) -> None:
    """Create an environment and record its data."""
    name, env_args = work.task.name, work.run.config.env_args
    spec = environment(name)
    with closing(spec.make(**env_args)) as env:
        group = group_of(space_of(env.observation_space), space_of(env.action_space, "actions"))
    dataset = _record_data(work.run.config, spec)
    dataset.save(work.run.data_file(name))
    send(work.run.data_file(name))
    facts = {
        "environment": spec.id,
        "group": group,
        "digest": dataset.digest,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "versions": dict(spec.versions()),
    }
    work.run.keep(work.task, facts)


def _record_data(config: BenchmarkConfig, spec: EnvironmentSpec) -> Dataset:
    """Return the default rows of an environment, or a longer recording if a job needs more."""
    about: dict[str, Any] = {"env_args": config.env_args, "data_seed": config.data_seed}
    file, _ = default_dataset(spec, **about)
    dataset, needed = Dataset.load(file), max(config.rows, default=0)
    if len(dataset.train) < needed:
        file, _ = default_dataset(spec, **about, min_rows=needed)
        dataset = Dataset.load(file)
    return dataset


def search(work: TaskWork) -> None:
    """Search for a program of an environment, or continue the search."""
    run, trial, config = work.run, work.trial, work.run.config
    choices = config.choices(trial.strategy, trial.model, run.header.terms, work.access)
    if config.needs_programs:
        file = run.program_folder(trial.environment) / "best.py"
        start = f"backend.{find('backend', config.backend).starts_from}={file}"
        choices = choices._replace(options=[*choices.options, start])
    choices = choices._replace(seed=trial.seed)
    _search(work, trial.environment, choices, run.trial_folder(trial), trial.train_rows)


def write(work: TaskWork) -> None:
    """Write a program of an environment from data, for a backend that starts from one."""
    offline = {"backend": default("backend"), "options": (), "temperature": None}
    config, terms = work.run.config.model_copy(update=offline), work.run.header.terms
    choices = config.choices(default("strategy"), "", terms, BenchmarkAccess())
    choices = choices._replace(budget=1, accepted=work.access.accepted)
    _search(work, work.task.name, choices, work.run.program_folder(work.task.name))


def ceiling(work: TaskWork) -> None:
    """Score the true environment on its own data."""
    dataset = Dataset.load(work.run.data_file(work.task.name))
    truth = EnvironmentModel(environment(work.task.name), work.run.config.env_args)
    metric = PaperMetric.of(dataset.train)
    parts = {"train": dataset.train, "test": dataset.test}
    scores = {name: metric.ceiling(truth, rows) for name, rows in parts.items()}
    along = replace(truth, remembers=True)
    scores |= {f"{name}_with_memory": metric.ceiling(along, rows) for name, rows in parts.items()}
    found = {name: score.model_dump() if score else None for name, score in scores.items()}
    work.run.keep(work.task, found)


def play(work: TaskWork) -> None:
    """Play by planning in the best program of a trial. The oracle plays in its own task."""
    digest = work.run.digest(work.trial)
    found = _plan(work, run=work.run.trial_folder(work.trial))
    work.run.keep(work.task, found | {"program_digest": digest})


def oracle(work: TaskWork) -> None:
    """Play by planning in the environment itself. Episodes are saved in the benchmark."""
    folder = work.run.folder / "oracles"
    how: dict[str, Any] = {"real_env": True, "planner": work.task.planner, "folder": folder}
    env_args = work.run.config.env_args
    work.run.keep(work.task, _plan(work, env=work.task.name, env_args=env_args, **how))


def _plan(work: TaskWork, **arguments: Any) -> dict[str, Any]:
    """Play the episodes of the benchmark; return the JSON output of `cwm plan`."""
    result = plan(
        **arguments,
        episodes=work.run.header.terms.episodes,
        max_steps=work.run.config.max_steps,
        allow_gap=work.access.accepted,
        options={"planning.stop": False},  # returns of bad programs are compared as well
    )
    return result.as_json() | {"usual_episodes": episodes_by_length(result.sides.values())}


TASKS: Mapping[str, Callable[[TaskWork], None]] = {
    "prepare": prepare,
    "write": write,
    "search": search,
    "play": play,
    "ceiling": ceiling,
    "oracle": oracle,
}


def _search(work: TaskWork, name: str, choices: Choices, folder: Path, train_rows: int = 0) -> None:
    """Search as `cwm synthesize` does; the result also has the published score or the skill.

    With `train_rows`, the search gets only that number of first rows.
    """
    file = work.run.data_file(name)
    dataset = Dataset.load(file)
    if train_rows:
        dataset = dataset.first_train_rows(train_rows)
    order = Order(environment(name), work.run.config.env_args, dataset, named(file), choices)
    with open_job(order, folder=folder) as job:
        if choices.max_cost is not None:
            job.search.limit = CostLimit.shared(work.task.key) or job.search.limit
        try:
            for _ in job.nodes():
                pass
        except CwmError as error:
            job.run.log(f"stopped: {error}")
            raise
        paper = None if choices.metric == "skill" else PaperMetric.of(dataset.train)
        money = {"max_cost": choices.max_cost, "out_of_money": job.search.out_of_money}
        job.run.save_result(job.finish(paper).as_json() | money)


def main() -> None:
    """Do the task of the command line."""
    with job_process():
        folder, *task = sys.argv[1:]
        access = BenchmarkAccess.model_validate_json(os.environ.pop(ACCESS, "{}"))
        place = located(folder)
        bring(place / HEADER)
        work = TaskWork(BenchmarkFolder.load(place), BenchmarkTask(*task), access)
        work.run.bring_for(work.task)
        TASKS[work.task.kind](work)


if __name__ == "__main__":
    main()
