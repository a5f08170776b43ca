"""Print how much of a prompt is what an earlier prompt of the same search began with.

Providers keep what prompts begin with, and sell it for a tenth to a half of the price when it
comes again, byte for byte, mostly in prompts of 1,024 tokens and more. For each environment the
prompts of a search are written in a usual order: a program is generated, another one in other
words, one that says that nothing changes is improved, one that raises is mended, and one that is
nearly right, of which the reward or the end may be settled, is improved. Printed are the tokens of
these prompts but the first, and how many of them stand alike at the start of one before.
"""

import argparse
from collections.abc import Sequence

from benchmarks.evidence import NINETEEN, problem, tokenizer
from benchmarks.improving import asked_to_improve
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import FIX, GENERATE, Message, Move, Verdict

LEAST = 1024
"""Tokens that have to be alike for most providers to keep them."""

RAISES = "class Environment:\n    def step(self, action):\n        return self.state, 0.0, Flase\n"


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
    asked = problem(env, 0)
    broken = Failure("step_error", "NameError: name 'Flase' is not defined")
    mend = Move(FIX, 1, RAISES, Verdict(0.0, failure=broken))
    return [
        asked.messages(Move(GENERATE)),
        asked.varied(Move(GENERATE), 1),
        asked_to_improve(env, asked, nearly_right=False),
        asked.messages(mend),
        asked_to_improve(env, asked, nearly_right=True),
    ]


def alike(one: str, other: str) -> str:
    """Return what two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))]


if __name__ == "__main__":
    main()
