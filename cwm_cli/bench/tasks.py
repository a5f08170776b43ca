"""What is left to do in a benchmark, read from its folder."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from cwm_cli.bench.configuration import Header, Terms, Trial
from cwm_cli.bench.folder import Folder, Task

AUTOMATIC = "auto"
"""With this planner the oracle plays, and again with that of a model where they differ."""


def left(folder: Folder, header: Header, failed: Collection[str]) -> list[Task]:
    """Return the tasks that can be begun, the most urgent first, without those that failed.

    Searches come first; what concerns an environment only fills the gaps.
    """
    trials = header.configuration.trials
    tasks = dict.fromkeys(task for trial in trials for task in _urgent(folder, header, trial))
    tasks |= dict.fromkeys(task for trial in trials for task in _besides(folder, header, trial))
    return [task for task in tasks if task.key not in failed]


def is_settled(result: Mapping[str, Any] | None, terms: Terms) -> bool:
    """Whether a search is over: solved, given up, or budget or money are spent."""
    if result is None:
        return False
    spent = result.get("out_of_money") and result.get("max_cost") == terms.max_cost
    over = result["solved"] or result.get("given_up")
    return bool(over or result["completions"] >= terms.budget or spent)


def play_of(folder: Folder, terms: Terms, trial: Trial) -> dict[str, Any] | None:
    """Return what the present program of a trial came to in so many episodes."""
    found = folder.found(Task("play", trial.name))
    if found is None or found["program_digest"] != folder.digest(trial):
        return None
    return found if len(found["returns"]) >= terms.episodes else None


def oracle_of(
    folder: Folder, terms: Terms, environment: str, planner: str | None
) -> dict[str, Any] | None:
    """Return what the oracle with a model's planner came to, or with what stands in for it."""
    for name in filter(None, (planner, AUTOMATIC)):
        found = folder.found(Task("oracle", environment, name))
        if found and len(found["returns"]) >= terms.episodes:
            return found
    return None


def _urgent(folder: Folder, header: Header, trial: Trial) -> Iterator[Task]:
    """Yield the next task on the way to what a trial comes to."""
    terms, environment = header.terms, trial.environment
    if folder.found(Task("prepare", environment)) is None:
        yield Task("prepare", environment)
        return
    program = folder.result(folder.program(environment))
    if header.configuration.needs_programs and program is None:
        yield Task("write", environment)
        return
    result = folder.result(folder.run(trial))
    if not is_settled(result, terms):
        yield Task("search", trial.name)
    elif terms.plan and result and result["program"] and play_of(folder, terms, trial) is None:
        yield Task("play", trial.name)


def _besides(folder: Folder, header: Header, trial: Trial) -> Iterator[Task]:
    """Yield what is to be found out about the environment of a trial."""
    terms, environment = header.terms, trial.environment
    if folder.found(Task("prepare", environment)) is None:
        return
    ceiling = Task("ceiling", environment)
    if terms.ceilings and folder.found(ceiling) is None:
        yield ceiling
    if not terms.plan:
        return
    oracle = Task("oracle", environment, AUTOMATIC)
    usual = folder.found(oracle)
    if usual is None or len(usual["returns"]) < terms.episodes:
        yield oracle
        return
    planner = (play_of(folder, terms, trial) or {}).get("planner")
    if planner in (None, usual["planner"]) or f"not {planner}: " in usual["note"]:
        return  # where the planner of a model was tried in vain, the usual oracle stands in
    found = folder.found(Task("oracle", environment, planner))
    if found is None or len(found["returns"]) < terms.episodes:
        yield Task("oracle", environment, planner)
