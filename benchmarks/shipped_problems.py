"""Write the shipped coding problems in `data/`, with tests that two programs agree on.

A second run writes the same bytes.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from data.problems import MODULES

FOLDER = Path(__file__).parents[1] / "data" / "cwm_data" / "apps"
CHECKS = 200
"""Number of additional small inputs, with equal answers of the reference and of brute force."""

ORIGIN = "written for cwm-cli"
LICENSE = "Apache-2.0"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the problems and print the size of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args(arguments)
    for number, name in enumerate(MODULES):
        module = import_module(f"data.problems.{name}")
        folder = chosen.folder / f"{number:04}"
        folder.mkdir(parents=True, exist_ok=True)
        size = sum(write(folder / file, text) for file, text in files(module, number).items())
        print(f"{folder.name} {name:12} {module.DIFFICULTY:13} {size / 1e3:6.1f} kB", flush=True)


def files(module: ModuleType, number: int) -> dict[str, str]:
    """Return the files of a problem, by name."""
    cases = module.tests(Random(number))
    answer = answers(module.reference, called=bool(module.FUNCTION))
    check(module, Random(1000 + number))
    tests = {"inputs": list(cases), "outputs": [answer(case) for case in cases]}
    named = {"fn_name": module.FUNCTION} if module.FUNCTION else {}
    metadata = {
        "difficulty": module.DIFFICULTY,
        "url": "",
        "origin": ORIGIN,
        "license": LICENSE,
    }
    starter = {"starter_code.py": module.STARTER} if module.STARTER else {}
    return {
        "question.txt": module.QUESTION,
        "input_output.json": json.dumps(named | tests) + "\n",
        "solutions.json": json.dumps(module.RIGHT, indent=1) + "\n",
        "wrong_solutions.json": json.dumps(module.WRONG, indent=1) + "\n",
        "metadata.json": json.dumps(metadata, indent=1) + "\n",
        **starter,
    }


def answers(program: Callable[..., Any], *, called: bool) -> Callable[[Any], Any]:
    """Return a function of one input: a text, or a list of arguments if `called`."""
    return lambda case: program(*case) if called else program(case)


def check(module: ModuleType, rng: Random) -> None:
    """Compare the reference with brute force on the examples and on small inputs.

    Raises:
        AssertionError: The answers differ.
    """
    called = bool(module.FUNCTION)
    reference, brute = (answers(each, called=called) for each in (module.reference, module.brute))
    for case in [*module.EXAMPLES, *(module.small(rng) for _ in range(CHECKS))]:
        if reference(case) != brute(case):
            raise AssertionError(f"{module.__name__}: {case}: {reference(case)} or {brute(case)}")


def write(path: Path, text: str) -> int:
    """Write a file and return its size in bytes."""
    return path.write_bytes(text.encode())


if __name__ == "__main__":
    main()
