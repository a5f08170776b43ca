"""Print the number of tokens of prompts, and with `--show` the prompts in full.

`--move generate` asks for a program, `improve` for a better one than a half-right program
(hand-written with a wrong number, or written by induction from few rows), `fix` for one that does
not raise. The environments are FrozenLake and all of the
benchmark that have shipped data. `bare:Tram-v0` is an undocumented environment: a system that was
never used for tuning, without its docstring. The tokenizer is cl100k if LiteLLM, which contains it,
is installed; otherwise tokens are estimated.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import numpy as np

from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.tasks import SUITES
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import environment, find
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, Message, Move, Request
from cwm_cli.text import estimated_tokens
from cwm_induction.refining.constants import find_constants, replace_spans

DATA = Path(__file__).parents[1] / "data" / "cwm_data"
NINETEEN = (*(env for env in SUITES["cwmb"] if (DATA / f"{env}.npz").exists()), "FrozenLake-v1")
SHOWN = ("bare:Orchard-v0", "bare:Coldroom-v0", "Hopper-v5", "FrozenLake-v1")
"""An undocumented grid, an undocumented mechanism, a documented one, and chance."""

BARE = "bare:"
PROGRAMS = Path(__file__).parents[1] / "tests" / "support" / "world_models"
WRITTEN = {
    "Blackjack-v1": "blackjack_random",
    "CliffWalking-v1": "cliff_branches",
    "Taxi-v4": "taxi_map",
    "CartPole-v1": "cartpole_helpers",
    "MountainCar-v0": "mountain_car_scalars",
    "Acrobot-v1": "acrobot_lists",
    "Pendulum-v1": "pendulum_numpy",
    "Reacher-v5": "reacher_slices",
    "InvertedPendulum-v5": "inverted_pendulum_slices",
    "HalfCheetah-v5": "cheetah_vectors",
    "FrozenLake-v1": "lake_strings",
}
"""Hand-written programs of environments."""
FEW_ROWS, SECONDS = 60, 5.0
"""Rows for the induction of a half-right program, and its time limit."""

RAISES = """
_step = Environment.step


def step(self, action):
    observation, reward, terminated = _step(self, action)
    return observation, reward + bonus, terminated


Environment.step = step
"""
"""Makes a program raise a NameError in each step."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each environment and the median, or the prompts themselves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; by default those above")
    parser.add_argument("--move", choices=(GENERATE, IMPROVE, FIX), default=GENERATE)
    parser.add_argument("--show", action="store_true", help="print prompts in full")
    parser.add_argument("--evidence-tokens", type=int, default=2000)
    parser.add_argument("--variant", type=int, default=0, help="number of earlier equal questions")
    chosen = parser.parse_args(arguments)
    count, name = tokenizer()
    sizes = []
    for env in chosen.envs or (SHOWN if chosen.show else NINETEEN):
        task = problem(env, chosen.evidence_tokens)
        program = half_right(env, task) if chosen.move != GENERATE else ""
        prompt = prompt_of(task, chosen.move, program, chosen.variant)
        without = prompt_of(replace(task, evidence_tokens=0), chosen.move, program)
        size, bare = (sum(count(each.content) for each in texts) for texts in (prompt, without))
        sizes.append(size)
        print(f"{env:26} {size:6,} tokens, {size - bare:5,} of them evidence", flush=True)
        if chosen.show:
            print("\n".join(["-" * 80, *(each.content for each in prompt), "-" * 80]))
    print(f"{'median':26} {statistics.median(sizes):6,.0f} tokens ({name})")


def prompt_of(
    task: WorldModelProblem, action: str, program: str = "", variant: int = 0
) -> tuple[Message, ...]:
    """Return the prompt of a move; to fix a program it is made to raise an error."""
    if action == GENERATE:
        return task.varied(Move(GENERATE), variant)
    program += RAISES if action == FIX else ""
    return task.varied(Move(action, 0, program, task.judge(program)), variant)


def half_right(env: str, task: WorldModelProblem) -> str:
    """Return a hand-written program with one changed number, else one that induction writes."""
    if env in WRITTEN:
        program = (PROGRAMS / f"{WRITTEN[env]}.py").read_text().removeprefix("# ruff: noqa\n")
        for number in find_constants(program):
            wrong = replace_spans(program, [(number.span, number.text(1.1 * number.value + 0.1))])
            verdict = task.judge(wrong)
            if not verdict.is_bug and verdict.score < 1:
                return wrong
    rows = task.dataset[task.dataset.fitted]
    few = replace(task, dataset=rows[np.arange(min(FEW_ROWS, len(rows)))])
    inducer = find("backend", "induction")(seconds=SECONDS)
    completion = inducer.complete(Request((), 0, Move(GENERATE), few))
    return few.read(completion.text, Move(GENERATE))


def problem(env: str, tokens: int, train: Dataset | None = None) -> WorldModelProblem:
    """Return the problem of an environment with shipped data, or with data recorded now."""
    spec = environment(environment_id(env))
    shipped = DATA / f"{env}.npz"
    if train is None:
        train = (Dataset.load(shipped) if shipped.exists() else record(spec)).train
    made = spec.make()
    described = spec.describe(made)
    made.close()
    metric = AccuracyMetric.of(train)
    return WorldModelProblem(described, train, Sandbox(), metric, evidence_tokens=tokens)


def environment_id(env: str) -> str:
    """Return the id of an environment; a bare one is registered without its docstring."""
    if not env.startswith(BARE):
        return env
    name = env.removeprefix(BARE)
    from benchmarks import novel, unseen

    module = next(each for each in (unseen, novel) if name in each.IDS)
    with_docstring = gymnasium.spec(name)
    bare = f"Bare{name}"
    if bare not in gymnasium.registry:
        made = gymnasium.make(f"{module.__name__}:{name}").unwrapped
        described = type(made)
        stripped = type("System", (described,), {"__doc__": "", "step": described.step})
        gymnasium.register(
            bare, entry_point=stripped, max_episode_steps=with_docstring.max_episode_steps
        )
    return bare


def tokenizer() -> tuple[Callable[[str], int], str]:
    """Return the function that counts tokens, and its name."""
    litellm = find_spec("litellm")
    if litellm is None or litellm.origin is None or find_spec("tiktoken") is None:
        return estimated_tokens, "estimated"
    shipped = Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers"
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(shipped))
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base")
    return lambda text: len(encoding.encode(text, disallowed_special=())), "cl100k"


if __name__ == "__main__":
    main()
