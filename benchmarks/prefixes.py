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

LEAST = 1024
"""Fewest equal tokens that most providers cache."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each environment, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; nineteen usual ones unless given")
    count, name = tokenizer()
    rows: list[tuple[int, int, int]] = []
    for env in parser.parse_args(arguments).envs or NINETEEN:
        texts = ["\n".join(each.content for each in prompt) for prompt in prompts(env)]
        held = [
            count(max((alike(before, text) for before in texts[:n]), key=len))
            for n, text in enumerate(texts)
            if n
        ]
        rows.append(
            (sum(map(count, texts[1:])), sum(held), sum(size for size in held if size >= LEAST))
        )
        told = ", ".join(f"{size:,}" for size in held)
        print(f"{env:26} {rows[-1][0]:6,} tokens, begun before: {told}", flush=True)
    tokens, shared, long = (sum(column) for column in zip(*rows, strict=True))
    print(
        f"{'all':26} {tokens:6,} tokens, {shared / tokens:.0%} begun before, "
        f"{long / tokens:.0%} in prompts that had {LEAST:,} and more so ({name})"
    )


def prompts(env: str) -> list[tuple[Message, ...]]:
    """Return prompts of a search in the order in which it may send them."""
    asked = problem(env, 2000)
    program = half_right(env, asked)
    return [
        prompt_of(asked, GENERATE),
        prompt_of(asked, GENERATE, variant=1),
        prompt_of(asked, IMPROVE, program),
        prompt_of(asked, FIX, program),
    ]


def alike(one: str, other: str) -> str:
    """Return what two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))]


if __name__ == "__main__":
    main()
