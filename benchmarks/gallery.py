"""The gallery of the documentation: programs that induction found, their scores and films.

`python -m benchmarks.gallery` runs `cwm` for each environment and writes `docs/gallery.md` and the
films in `docs/gallery/`. With `--folder DIR` the runs are kept, and a second call continues them.
The page only shows programs whose own run reports that they are solved.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image, ImageSequence

from benchmarks.documentation.pages import DOCS

PAGE = DOCS / "gallery.md"
FILMS = DOCS / "gallery"

MAX_FILM_BYTES = 150_000
FILM_PIXELS = 240
"""Longest side of a film; it is halved until the film is small enough."""

MAX_LINES = 80
"""Longer programs are folded."""


@dataclass(frozen=True)
class Entry:
    """An environment of the gallery.

    Args:
        name: Name of the run folder and of the files.
        family: Family of environments, for the table.
        about: Sentences on the environment and its program.
        env: Environment id.
        env_args: Arguments of the environment.
        collect: Options of `cwm collect`; if empty, the default data are used.
        plan: Options of `cwm plan`.
        has_film: Whether the environment can be rendered.
    """

    name: str
    family: str
    about: str
    env: str
    env_args: Mapping[str, Any] = field(default_factory=dict)
    collect: str = ""
    plan: str = "--episodes 3 --max-steps 100"
    has_film: bool = True

    @property
    def title(self) -> str:
        """Return the environment with its arguments."""
        args = [f"{name}={json.dumps(value)}" for name, value in self.env_args.items()]
        return f"{self.env} ({', '.join(args)})" if args else self.env

    def commands(self) -> list[str]:
        """Return the commands that make the program and plan with it."""
        args = [f"{name}={json.dumps(value)}" for name, value in self.env_args.items()]
        named = shlex.join(
            ["--env", self.env, *(word for arg in args for word in ("--env-arg", arg))]
        )
        data = f"{self.name}.npz"
        collect = [f"cwm collect {named} {self.collect} --out {data}"] if self.collect else []
        dataset = f" --dataset {data}" if self.collect else ""
        return [
            *collect,
            f"cwm synthesize {named}{dataset} --run {self.name}",
            f"cwm plan {self.name} {self.plan}",
        ]


ENTRIES: Sequence[Entry] = (
    Entry(
        "cartpole",
        "classic control",
        "Balance a pole on a cart. The program has the equations of motion of the cart and the "
        "pole, and the two limits that end an episode.",
        "CartPole-v1",
    ),
    Entry(
        "pendulum",
        "classic control",
        "Swing a pendulum up with a torque, a real number. The observation has the cosine and the "
        "sine of the angle.",
        "Pendulum-v1",
    ),
    Entry(
        "inverted-pendulum",
        "MuJoCo",
        "Balance a pole on a cart in the MuJoCo simulator. The program integrates the equations "
        "of motion.",
        "InvertedPendulum-v5",
        plan="--episodes 3 --max-steps 60",
    ),
    Entry(
        "cliff-walking",
        "toy text",
        "Walk along a cliff. The observation is one number, which the program splits into row and "
        "column.",
        "CliffWalking-v1",
    ),
    Entry(
        "frozen-lake",
        "toy text, with chance",
        "Cross slippery ice. The program returns the possible outcomes with their probabilities.",
        "FrozenLake-v1",
        plan="--episodes 20 --max-steps 100",
    ),
    Entry(
        "frozen-lake-8x8",
        "toy text",
        "Cross a larger lake whose ice is not slippery.",
        "FrozenLake-v1",
        {"is_slippery": False, "map_name": "8x8"},
        collect="--episodes 60 --test-episodes 60",
    ),
    Entry(
        "taxi",
        "toy text",
        "Fetch a passenger and bring them to a hotel. The program splits the observation, one "
        "number, into row, column, passenger and destination, and lists the walls.",
        "Taxi-v4",
        collect="--episodes 40 --test-episodes 40",
    ),
    Entry(
        "lava-gap",
        "MiniGrid",
        "Cross a wall of lava through its only gap, which is elsewhere in each episode.",
        "MiniGrid-LavaGapS5-v0",
        plan="--episodes 3 --max-steps 60",
    ),
    Entry(
        "door-key",
        "MiniGrid",
        "Fetch a key, open a door, go to the goal. The observation lists objects, and the program "
        "has rules for kinds of objects, so that it also predicts other rooms.",
        "MiniGrid-DoorKey-5x5-v0",
        plan="--episodes 3 --max-steps 60",
    ),
    Entry(
        "sokoban",
        "Sokoban",
        "Push a box onto a target, on a new board in each episode.",
        "Sokoban-v0",
        plan="--episodes 3 --max-steps 60",
    ),
    Entry("mountain-car", "classic control", "", "MountainCar-v0"),
    Entry("acrobot", "classic control", "", "Acrobot-v1"),
    Entry(
        "hidden-velocities",
        "classic control, with memory",
        "",
        "CartPole-v1",
        {"hide": ["velocities"]},
        collect="--policy random --episodes 30 --test-episodes 10",
    ),
)


@dataclass(frozen=True)
class EntryResult:
    """The results of an entry: the JSON of `synthesize`, `evaluate` and `plan`, and the program."""

    entry: Entry
    found: Mapping[str, Any]
    scores: Mapping[str, Any]
    played: Mapping[str, Any]
    program: str

    def score(self, part: str) -> str:
        """Return the score that decides, of the train or the test rows."""
        score = self.scores[part]
        if score.get("skill") is not None:
            return f"skill {score['skill']:.3f} ± {score['skill_stderr']:.3f}"
        exact = round(score["exact"] * score["transitions"])
        return f"{exact:,} of {score['transitions']:,}"

    def verdict(self) -> str:
        """Return the scores and the returns in a few sentences."""
        rollouts = [each for each in self.scores["rollouts"] if each["error"] is not None]
        steps = [str(each["steps"]) for each in rollouts]
        errors = [f"{each['error']:.1g}" for each in rollouts]
        if self.scores["test"].get("skill") is not None:
            scores = f"held-out {self.score('test')} (1 is the score of the true environment)."
        else:
            scores = (
                f"exact on {self.score('train')} training and {self.score('test')} held-out "
                f"transitions. Open-loop error after {', '.join(steps)} steps: {', '.join(errors)}."
            )
        return (
            f"Solved in {self.found['seconds']:.0f} s: {scores} Mean return of plans in "
            f"the program: {self.played['mean']:.4g}; of random actions: "
            f"{self.played['random']['mean']:.4g}."
        )

    def reason(self) -> str:
        """Return why the program is not solved."""
        if self.found["unverified"]:
            return f"Not verified by held-out rows: {'; '.join(self.found['unverified'])}."
        if self.scores["test"].get("skill") is not None:
            return "The best possible score is unknown."
        return "Some transitions are predicted wrongly."

    def section(self) -> str:
        """Return the section of the page."""
        entry, lines = self.entry, len(self.program.splitlines())
        block = f"```python file={entry.name}.py\n{self.program.rstrip()}\n```"
        if lines > MAX_LINES:
            summary = f"<summary>The program, {lines} lines</summary>"
            block = f'<details markdown="1">\n{summary}\n\n{block}\n\n</details>'
        film = ""
        if entry.has_film:
            film = f"![Plans in the program of {entry.env}](gallery/{entry.name}.gif)\n\n"
        gaps = "".join(f"- {gap}\n" for gap in self.found["gaps"])
        gaps = f"Not covered by the data:\n\n{gaps}\n" if gaps else ""
        commands = "\n".join(entry.commands())
        return (
            f"## {entry.title}\n\n{entry.about}\n\n{film}{self.verdict()}\n\n{gaps}"
            f"```sh\n{commands}\n```\n\n{block}\n"
        )


def run_entry(entry: Entry, folder: Path) -> EntryResult:
    """Run the commands of an entry in a folder, and film an episode if the program is solved."""
    *made, planned = entry.commands()
    for command in made[:-1]:
        run(command, folder)
    found = json.loads(run(f"{made[-1]} --json", folder))
    scores = json.loads(run(f"cwm evaluate {entry.name} --rollouts 20 --json", folder))
    film = folder / f"{entry.name}.gif"
    played: Mapping[str, Any] = {}
    if found["solved"]:
        render = f" --render {film.name}" if entry.has_film else ""
        played = json.loads(run(f"{planned}{render} --json", folder))
        if entry.has_film:
            shrink(film, FILMS / film.name)
    return EntryResult(entry, found, scores, played, (folder / found["program"]).read_text())


def run(command: str, folder: Path) -> str:
    """Run a command of `cwm` and return its output; raises CalledProcessError if it fails."""
    print(command, file=sys.stderr)
    script = Path(sys.executable).with_name("cwm")
    words = [str(script), *shlex.split(command)[1:]]
    variables = {"XDG_CACHE_HOME": str(folder / "cache"), "MUJOCO_GL": "egl"} | os.environ
    done = subprocess.run(
        words, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def shrink(source: Path, target: Path) -> None:
    """Write a film with few colours and small frames, and fewer frames if it is still too large."""
    with Image.open(source) as film:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(film)]
        milliseconds = film.info.get("duration", 100)
    side, every = FILM_PIXELS, 1
    while len(data := encode_gif(frames[::every], side, milliseconds * every)) > MAX_FILM_BYTES:
        side, every = (side, 2 * every) if every < 4 else (side // 2, 1)
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(data)


def encode_gif(frames: Sequence[Image.Image], side: int, milliseconds: int) -> bytes:
    """Return a GIF whose frames have at most `side` pixels and 32 colours."""
    small = []
    for frame in frames:
        copy = frame.copy()
        copy.thumbnail((side, side))
        small.append(copy.quantize(32, dither=Image.Dither.NONE))
    file = BytesIO()
    small[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=small[1:],
        duration=milliseconds,
        loop=0,
        optimize=True,
    )
    return file.getvalue()


def parts(results: Sequence[EntryResult]) -> dict[str, str]:
    """Return the parts of the page: the table, the sections, and the table of the other entries."""
    solved = [each for each in results if each.found["solved"]]
    table = [
        f"| {each.entry.title} | {each.entry.family} | "
        f"{each.score('test')} | {each.played['mean']:.4g} | {each.played['random']['mean']:.4g} | "
        f"{len(each.program.splitlines())} |"
        for each in solved
    ]
    nearly = [
        f"| {each.entry.title} | {each.entry.family} | {each.score('train')} | "
        f"{each.score('test')} | {each.reason()} |"
        for each in results
        if each not in solved
    ]
    heads = "| environment | family | exact on held-out transitions | mean return of plans | "
    return {
        "table": "\n".join(
            [f"{heads}of random actions | lines |", "|---|---|---|---:|---:|---:|", *table]
        ),
        "programs": "\n".join(each.section() for each in solved),
        "nearly": "\n".join(
            [
                "| environment | family | exact on training transitions | held-out | missing |",
                "|---|---|---|---|---|",
                *nearly,
            ]
        ),
    }


def replace_parts(page: str, made: Mapping[str, str]) -> str:
    """Return the page with its parts, each between `<!-- NAME -->` and `<!-- end -->`, replaced."""
    for name, text in made.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{text.strip()}\n\n{end}{rest.partition(end)[2]}"
    return page


def main() -> None:
    """Run all entries and write the page."""
    parser = argparse.ArgumentParser(description="Write the gallery of the documentation.")
    parser.add_argument("--folder", type=Path, help="keep the runs in this folder")
    chosen = parser.parse_args()
    with TemporaryDirectory(prefix="cwm-gallery-") as temporary:
        folder = (chosen.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        results = [run_entry(entry, folder) for entry in ENTRIES]
    PAGE.write_text(replace_parts(PAGE.read_text("utf-8"), parts(results)), encoding="utf-8")


if __name__ == "__main__":
    main()
