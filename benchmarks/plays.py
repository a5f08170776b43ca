"""Record the films in `docs/`: plans in programs from induction, next to the true environment.

python -m benchmarks.plays                     # synthesizes both programs, without a language model
python -m benchmarks.plays --run RUN FILE.gif  # the agent of a trained run, in its own world model
"""

import argparse
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import cwm_cli as cwm
from cwm_play.play import GameResult

DOCS = Path(__file__).parent.parent / "docs"


class Film(NamedTuple):
    """An environment, the number of steps, and frames per second."""

    env: str
    steps: int
    fps: float


FILMS: Mapping[str, Film] = {
    "play-cartpole.gif": Film("CartPole-v1", 80, 15),  # longer ones are too large for a page
    "play-sokoban.gif": Film("Sokoban-v0", 60, 4),
}


def record_film(name: str, film: Film) -> GameResult:
    """Find a program, and record plans in it."""
    with TemporaryDirectory() as folder, chdir(folder):
        found = cwm.synthesize(film.env, run=Path("found"))
        return cwm.play(
            found.run, mode="agent", max_steps=film.steps, record=DOCS / name, fps=film.fps
        )


def main() -> None:
    """Record the films, or a film of one run."""
    parser = argparse.ArgumentParser(description="Record the films of the documentation.")
    parser.add_argument("--run", nargs=2, metavar=("RUN", "FILE"), help="film a trained run")
    chosen = parser.parse_args()
    if chosen.run:
        run, file = map(Path, chosen.run)
        print(cwm.play(run, mode="agent", episodes=4, record=file, fps=6).as_json())
        return
    for name, film in FILMS.items():
        print(record_film(name, film).as_json())


if __name__ == "__main__":
    main()
