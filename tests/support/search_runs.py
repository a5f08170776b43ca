"""The parts of a small run of a search: header, files and records."""

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun
from cwm_cli.runs.store import DATASET
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import GENERATE, Node, Record, Usage, Verdict

CONFIG = SearchConfig(
    env="X-v0", dataset="d", strategy="s", backend="b", options={"strategy": {"c": 1}}
)

HEADER = SearchHeader(
    config=CONFIG, description="It moves.", versions={}, source="x", created="now"
)

SPACE = Space("discrete", low=(0,), high=(1,))


def rows(count, reward=1.0):
    moves = [Transition(0, 1, 1, reward, False) for _ in range(count)]
    return Dataset.of(moves, observation_space=SPACE, action_space=SPACE)


FILES = {DATASET: rows(1)}


def record(number):
    failure = Failure(kind="mismatch", message="wrong \x1b[31m here")
    node = Node(
        id=number,
        step=number,
        parent=number - 1,
        action="generate",
        program=f"x = {number}\n",
        verdict=Verdict(score=number / 10, failure=failure),
        prompt="key",
        usage=Usage(cost=0.5),
    )
    return Record(node, f"```python\nx = {number}\n```")


def run_of(program, data, folder):
    """Write a run with one program for the environment of recorded rows, and return it."""
    config = SearchConfig(env=data.metadata["env"], dataset="d", strategy="s", backend="b")
    header = SearchHeader(config=config, description="", versions={}, source="x", created="now")
    run = SearchRun.start(folder, header, {DATASET: data})
    with run:
        node = Node(0, 0, -1, GENERATE, program, Verdict(0.5), "key", Usage())
        run.learn(Record(node, program))
    run.write_best(program)
    return run
