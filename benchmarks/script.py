"""The command line of each script of the suite."""

import argparse
import json
from collections.abc import Sequence

from benchmarks.claims import Claim
from benchmarks.machine import machine
from benchmarks.results import Result


def main(claims: Sequence[Claim], arguments: Sequence[str] | None = None) -> None:
    """Measure all claims, or the claims that the command line names, and print a line for each."""
    parser = argparse.ArgumentParser(description="Measure the claims of this script.")
    parser.add_argument("claims", nargs="*", help="beginnings of names of claims; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sides")
    parser.add_argument("--json", action="store_true", help="a JSON object per line")
    chosen = parser.parse_args(arguments)
    for word in chosen.claims:
        if not any(claim.name.startswith(word) for claim in claims):
            names = ", ".join(claim.name for claim in claims)
            parser.error(f"no claim begins with {word}: the claims are {names}")
    for claim in claims:
        named = claim.name.startswith(tuple(chosen.claims)) if chosen.claims else True
        if named and (claim.in_quick or not chosen.quick):
            result = Result.of(claim, quick=chosen.quick)
            print(json.dumps(result.to_json()) if chosen.json else result.line(), flush=True)
    if not chosen.json:
        print(machine())
