"""Print how many tokens the prompts to generate have, and with `--show` such prompts in full.

The environments are those of the benchmark whose data ship, and FrozenLake. An undocumented one is
one of those kept aside, without its docstring: `bare:Tram-v0`. Tokens are those of cl100k where
LiteLLM, which ships it, is installed, else estimated.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import gymnasium

from cwm_cli.agents.recording import record
from cwm_cli.bench.configuration import SUITES
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import environment
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import GENERATE, Move
from cwm_cli.text import estimated_tokens

DATA = Path(__file__).parents[1] / "data" / "cwm_data"
NINETEEN = (*(env for env in SUITES["cwmb"] if (DATA / f"{env}.npz").exists()), "FrozenLake-v1")
SHOWN = ("bare:Orchard-v0", "bare:Coldroom-v0", "Hopper-v5", "FrozenLake-v1")
"""An undocumented grid, an undocumented mechanism, a documented one, and chance."""

BARE = "bare:"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each environment and the median, or the prompts themselves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; those above unless any is given")
    parser.add_argument("--show", action="store_true", help="print prompts in full")
    parser.add_argument("--evidence-tokens", type=int, default=2000)
    parser.add_argument("--variant", type=int, default=0)
    chosen = parser.parse_args(arguments)
    count, name = tokenizer()
    sizes = []
    for env in chosen.envs or (SHOWN if chosen.show else NINETEEN):
        asked = problem(env, chosen.evidence_tokens)
        texts = [message.content for message in asked.varied(Move(GENERATE), chosen.variant)]
        size = sum(map(count, texts))
        without = problem(env, 0, asked.dataset).messages(Move(GENERATE))
        bare = sum(count(message.content) for message in without)
        sizes.append(size)
        print(f"{env:26} {size:6,} tokens, {size - bare:5,} of them evidence", flush=True)
        if chosen.show:
            print("\n".join(["-" * 80, *texts, "-" * 80]))
    print(f"{'median':26} {statistics.median(sizes):6,.0f} tokens ({name})")


def problem(env: str, tokens: int, train: Dataset | None = None) -> WorldModelProblem:
    """Pose the problem of an environment from the data that ship, or that are recorded now."""
    spec = environment(known(env))
    shipped = DATA / f"{env}.npz"
    if train is None:
        train = (Dataset.load(shipped) if shipped.exists() else record(spec)).train
    made = spec.make()
    described = spec.describe(made)
    made.close()
    metric = AccuracyMetric.of(train)
    return WorldModelProblem(described, train, Sandbox(), metric, evidence_tokens=tokens)


def known(env: str) -> str:
    """Return the id of an environment; a bare one is registered without its docstring."""
    if not env.startswith(BARE):
        return env
    name = env.removeprefix(BARE)
    from benchmarks import aside, unseen

    module = next(each for each in (unseen, aside) if name in each.IDS)
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
    """Return what counts tokens, and its name."""
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
