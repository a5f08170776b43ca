"""Print how much of each prompt an earlier prompt of the same search begins with.

Providers cache the beginning of prompts, usually from 1,024 tokens on, and sell it for a tenth
to a half of the price when it is sent again. For each environment this writes the prompts of a
usual search: to generate a program, to generate another one, to improve a half-right program, and
to fix one that raises. It prints the tokens of all prompts except the first, and the tokens at
their beginning that are equal to the beginning of an earlier prompt.
"""

import argparse
from collections.abc import Sequence

from benchmarks.evidence import NINETEEN, half_right, problem, prompt_of, tokenizer
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, Message

MIN_CACHED_TOKENS = 1024
"""Minimum number of equal tokens that most providers cache."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each environment, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; default: nineteen usual ones")
    count, name = tokenizer()
    rows: list[tuple[int, int, int]] = []
    for env in parser.parse_args(arguments).envs or NINETEEN:
        texts = ["\n".join(each.content for each in prompt) for prompt in prompts(env)]
        repeated = [
            count(max((common_prefix(before, text) for before in texts[:n]), key=len))
            for n, text in enumerate(texts)
            if n
        ]
        long = [size for size in repeated if size >= MIN_CACHED_TOKENS]
        rows.append((sum(map(count, texts[1:])), sum(repeated), sum(long)))
        sizes = ", ".join(f"{size:,}" for size in repeated)
        print(f"{env:26} {rows[-1][0]:6,} tokens, repeated at the start: {sizes}", flush=True)
    tokens, shared, cached = (sum(column) for column in zip(*rows, strict=True))
    print(
        f"{'all':26} {tokens:6,} tokens, {shared / tokens:.0%} repeated at the start, "
        f"{cached / tokens:.0%} in prompts that repeat at least {MIN_CACHED_TOKENS:,} ({name})"
    )


def prompts(env: str) -> list[tuple[Message, ...]]:
    """Return prompts of a search, in a usual order."""
    task = problem(env, 2000)
    program = half_right(env, task)
    return [
        prompt_of(task, GENERATE),
        prompt_of(task, GENERATE, variant=1),
        prompt_of(task, IMPROVE, program),
        prompt_of(task, FIX, program),
    ]


def common_prefix(one: str, other: str) -> str:
    """Return the common beginning of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))]


if __name__ == "__main__":
    main()
