"""Score program.py on the rows of rows.jsonl: `python check.py` prints how many it predicts.

Needs the standard library and NumPy only. The score that counts is computed elsewhere, on these
and other rows, from program.py alone.
"""

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SETTINGS: dict[str, Any] = {}

FOLDER = Path(__file__).resolve().parent
DRAWS = 50
SHOWN = 5

Json = dict[str, Any]


class Checked(NamedTuple):
    """The correctness of each part of a row, from 0 to 1, and the first prediction."""

    observation: float
    reward: float
    terminated: float
    exact: float
    predicted: Any


def value_of(space: Json, data: Any) -> Any:
    """Return a value as programs receive it: numbers, texts, arrays, tuples or dicts."""
    if space["kind"] == "tuple":
        return tuple(
            value_of(child, part) for child, part in zip(space["children"], data, strict=True)
        )
    if space["kind"] == "dict":
        pairs = zip(space["keys"], space["children"], strict=True)
        return {name: value_of(child, data[name]) for name, child in pairs}
    if space["kind"] in ("discrete", "text"):
        return data
    is_real = space["kind"] == "box" and space["dtype"].startswith("float")
    return np.array(data, np.float64 if is_real else np.int64)


def components(space: Json, value: Any) -> list[Any]:
    """Return the numbers and texts in a value."""
    if space["kind"] == "tuple":
        return [
            x
            for child, part in zip(space["children"], value, strict=True)
            for x in components(child, part)
        ]
    if space["kind"] == "dict":
        pairs = zip(space["keys"], space["children"], strict=True)
        return [x for name, child in pairs for x in components(child, value[name])]
    if space["kind"] == "text":
        return [str(value)]
    return list(np.reshape(value, space["shape"]).ravel().tolist())


def equal(predicted: Any, recorded: Any, name: str) -> bool:
    """Return whether two numbers agree within the tolerance, or two texts are equal."""
    if isinstance(recorded, str):
        return bool(predicted == recorded)
    tolerance = SETTINGS["tolerances"].get(name)
    if tolerance is not None:
        return bool(abs(predicted - recorded) <= tolerance)
    return bool(abs(predicted - recorded) <= 1e-5 + 1e-5 * abs(recorded))


def compare(row: Json, predicted: Sequence[Any]) -> tuple[bool, bool, bool]:
    """Return whether the observation, the reward and the end of a prediction are right."""
    space = SETTINGS["observation_space"]
    observation, reward, terminated = predicted[:3]
    seen, recorded = (
        components(space, each) for each in (observation, value_of(space, row["next_observation"]))
    )
    right = len(seen) == len(recorded) and all(
        equal(one, other, str(place))
        for place, (one, other) in enumerate(zip(seen, recorded, strict=True))
    )
    has_reward = not SETTINGS["rewards"] or equal(
        float(np.asarray(reward).item()), row["reward"], "reward"
    )
    has_end = not SETTINGS["ends"] or bool(terminated) == row["terminated"]
    # The next observation of an episode that ended is not scored.
    return right or row["terminated"], has_reward, has_end


def checked(row: Json, outcomes: Sequence[tuple[float, Sequence[Any]]]) -> Checked:
    """Compare all possible predictions of a row with the recorded result, by probability."""
    total = sum(share for share, _ in outcomes) or 1.0
    found = np.array([[*compare(row, each), 1] for _, each in outcomes], float)
    found[:, 3] = found[:, :3].all(axis=1)
    shares = np.array([share for share, _ in outcomes]) / total
    observation, reward, terminated, exact = (shares @ found).tolist()
    return Checked(observation, reward, terminated, exact, outcomes[0][1])


def load() -> Any:
    """Return an object of the class Environment in program.py."""
    # Not an import, whose cache would miss a change of equal length within a second.
    text = (FOLDER / "program.py").read_text(encoding="utf-8")
    module: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, "program.py", "exec"), module)  # noqa: S102  # it is the agent's own program
    kind = module["Environment"]
    kind.rng = np.random.default_rng(0)
    made = kind()
    made.rng = kind.rng
    return made


def predict(program: Any, row: Json, draws: int) -> list[tuple[float, Sequence[Any]]]:
    """Return the predictions of a row by a program without memory, with their probabilities."""
    observation = value_of(SETTINGS["observation_space"], row["observation"])
    action = value_of(SETTINGS["action_space"], row["action"])
    if hasattr(program, "outcomes"):
        program.set_state(deepcopy(observation))
        return [(float(share), rest) for share, *rest in program.outcomes(deepcopy(action))]
    found = []
    for _ in range(draws):
        program.set_state(deepcopy(observation))
        found.append((1.0, deepcopy(program.step(deepcopy(action)))))
    return found


def check_rows(rows: Sequence[Json], draws: int) -> Iterator[Checked]:
    """Yield the comparison of each row; programs with memory follow whole episodes."""
    program = load()
    if not hasattr(program, "correct"):
        for row in rows:
            yield checked(row, predict(program, row, draws))
        return
    space = SETTINGS["observation_space"]
    for _, episode in groupby(rows, key=lambda row: row["episode"]):
        for place, row in enumerate(episode):
            if place == 0:
                program.reset(value_of(space, row["observation"]))
            predicted = deepcopy(program.step(value_of(SETTINGS["action_space"], row["action"])))
            yield checked(row, [(1.0, predicted)])
            program.correct(value_of(space, row["next_observation"]), row["reward"])


def describe(number: int, row: Json) -> str:
    """Return a row in words; rows count from 1, as lines of the file do."""
    asked = f"observation {row['observation']}, action {row['action']}"
    return f"row {number + 1} (episode {row['episode']}): {asked}"


def main() -> int:
    """Print the scores and the first wrong rows; return 0 if no row is wrong."""
    rows = [json.loads(line) for line in (FOLDER / "rows.jsonl").read_text().splitlines()]
    text = (FOLDER / "program.py").read_text()
    found: list[Checked] = []
    try:
        for each in check_rows(rows, DRAWS if "rng" in text else 1):
            found.append(each)
    except Exception:  # noqa: BLE001  # programs may raise anything
        traceback.print_exc()
        if len(found) < len(rows):
            print(f"failed at {describe(len(found), rows[len(found)])}")
        return 1
    means = np.array([each[:4] for each in found]).mean(axis=0)
    names = ("observation", "reward", "terminated", "exact")
    print("  ".join(f"{name} {mean:.4f}" for name, mean in zip(names, means, strict=True)))
    wrong = [number for number, each in enumerate(found) if not each.exact]
    print(f"{len(wrong)} of {len(rows)} rows are wrong")
    for number in wrong[:SHOWN]:
        row, (observation, reward, terminated, *_) = rows[number], found[number].predicted
        print(describe(number, row))
        print(f"  recorded   {row['next_observation']}, {row['reward']}, {row['terminated']}")
        print(f"  predicted  {observation}, {reward}, {terminated}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
