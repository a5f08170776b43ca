"""Train the tiny language models that ship, one for the vocabulary of each named environment.

Training needs `cwm-cli[neural]`. Because it has a time limit, weights differ slightly between
machines. The file of a model describes its training.
"""

import argparse
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from cwm_cli.commands.collect import find_environment
from cwm_cli.errors import CwmError
from cwm_theorize.tiny.backend import SHIPPED, words_key
from cwm_theorize.tiny.lessons import train_for
from cwm_theorize.tiny.training import Course


def main(arguments: Sequence[str] | None = None) -> None:
    """Train a model for each environment, and print its size and training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", default=["Door-v0"], help="ids of environments")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=SHIPPED)
    chosen = parser.parse_args(arguments)
    course = Course(chosen.steps, chosen.seconds, seed=chosen.seed)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for env in chosen.envs:
        spec = find_environment(env)
        if spec.text is None:
            raise CwmError(f"{env} has no text view: choose an environment that has one")
        with closing(spec.make()) as made:
            view = spec.text(made)
        model = train_for(spec, {}, view, course, partial(print, flush=True))
        file = chosen.folder / f"{words_key(view)}.npz"
        model.save(file)
        size = f"{file.stat().st_size / 1e6:.2f} MB"
        print(f"{env:20} {size} {len(model.words)} words, {model.about}", flush=True)


if __name__ == "__main__":
    main()
