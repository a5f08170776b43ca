"""A plugin for tests: a linear world model and a linear policy, learned with numpy alone."""

from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from types import MappingProxyType

import numpy as np

from cwm_cli import hookimpl
from cwm_cli.data.dataset import write_arrays
from cwm_cli.data.reading import read_arrays
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.worlds.model import Plan, PlanningSession, Predictions, WorldModel
from cwm_neural.training.trainer import Agent, AgentTrainer, Diverged, Trainer, Training


class LinearModel(WorldModel):
    """A linear model; an episode ends outside the range of rows that do not end it."""

    kind = "linear"

    def __init__(self, size):
        self.weights, self.bounds = np.zeros((size + 2, size)), np.zeros(size)

    def features(self, rows):
        seen, done = rows.columns["observations"], rows.columns["actions"]
        return np.column_stack([seen, done, np.ones(len(rows))])

    def predict(self, rows, *, seed=0, draws=1):
        after = rows.columns["observations"] + self.features(rows) @ self.weights
        ended = (np.abs(after) > self.bounds).any(axis=1)
        ones = np.ones(len(rows))
        return Predictions({"next_observations": after, "rewards": ones, "terminations": ended})


@dataclass
class LinearTrainer(Trainer):
    """Learns by gradient descent with momentum, a row at a time."""

    agent = "climbing"
    PRESETS = MappingProxyType({"tiny": {"training.tests": 1}})

    preset: str = "tiny"
    rate: float = 0.05
    """How far an update goes."""
    patience: float = field(default=0.0, metadata={"identity": False})
    """Seconds that fitting takes longer."""

    def begin(self, task):
        if task.observation_space.kind != "box":
            raise CwmError("a linear model needs numbers: choose another environment")
        return LinearTraining(self, task)


class LinearTraining(Training):
    def __init__(self, trainer, task):
        self.trainer, self.rng = trainer, np.random.default_rng(task.seed)
        self.model = LinearModel(task.observation_space.size)
        self.speed, self.updates, self.frozen = np.zeros_like(self.model.weights), 0, False

    @property
    def parameters(self):
        return {"linear": self.model.weights.size}

    def adopt(self, part, folder):
        if part not in ("model", "linear"):
            raise self._no_part(part)
        self.model.weights = read_arrays(folder / "linear.npz")["weights"]

    def freeze(self, part):
        if part != "linear":
            raise self._no_part(part)
        self.frozen = True

    def fit(self, rows, steps):
        sleep(self.trainer.patience)
        change = rows.columns["next_observations"] - rows.columns["observations"]
        kept = ~rows.columns["terminations"]
        self.model.bounds = np.abs(rows.columns["next_observations"][kept]).max(axis=0)
        features, losses = self.model.features(rows), []
        for _ in range(0 if self.frozen else steps):
            row = self.rng.integers(len(rows))
            error = features[row] @ self.model.weights - change[row]
            self.speed = 0.5 * self.speed - self.trainer.rate * np.outer(features[row], error)
            self.model.weights = self.model.weights + self.speed
            self.updates += 1
            losses.append(float(np.square(error).mean()))
            if not np.isfinite(losses[-1]) or losses[-1] > 1e100:
                raise Diverged(f"the loss error is {losses[-1]:.3g} at update {self.updates:,}")
        return {"error": float(np.mean(losses))} if losses else {}

    def measure(self, rows):
        found = self.model.predict(rows).columns["next_observations"]
        return {"off": float(np.abs(found - rows.columns["next_observations"]).mean())}

    def save(self, folder):
        write_arrays(
            folder / "linear.npz",
            {
                "weights": self.model.weights,
                "speed": self.speed,
                "bounds": self.model.bounds,
                "state": state_of(self.rng, self.updates),
            },
        )

    def load(self, folder):
        found = read_arrays(folder / "linear.npz")
        self.model.weights, self.speed = found["weights"], found["speed"]
        self.model.bounds = found["bounds"]
        self.updates = restore(self.rng, found["state"])


def state_of(rng, more=0):
    """Return the state of a generator, and a number."""
    state = rng.bit_generator.state
    words = [state["state"]["state"], state["state"]["inc"], state["has_uint32"], state["uinteger"]]
    return np.array([str(word) for word in (*words, more)])


def restore(rng, words):
    state, inc, has, integer, more = map(int, words)
    inner = {"state": state, "inc": inc}
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": inner,
        "has_uint32": has,
        "uinteger": integer,
    }
    return more


@dataclass
class ClimbingTrainer(AgentTrainer):
    """Changes a linear policy at random where that lasts longer in the model."""

    tries: int = 3

    def begin(self, task):
        return Climbing(self.tries, task)


class Climbing(Agent):
    def __init__(self, tries, task):
        self.tries, self.rng = tries, np.random.default_rng(task.seed)
        self.weights = np.zeros(task.observation_space.size)

    @property
    def parameters(self):
        return {"policy": self.weights.size}

    def fit(self, model, rows, steps):
        best = self._worth(self.weights, model, rows)
        for _ in range(self.tries):
            other = self.weights + self.rng.normal(size=self.weights.shape)
            worth = self._worth(other, model, rows)
            if worth > best:
                best, self.weights = worth, other
        return {"lasts": float(best)}

    def _worth(self, weights, model, rows):
        starts = [EpisodeHistory((rows.row(place).observation,)) for place in range(4)]
        imagined = model.imagine(starts, rows, seed=0)
        seen, alive = rows.columns["observations"][:4], np.ones(4, bool)
        lasted = 0
        for _ in range(20):
            step = imagined.step({"actions": (seen @ weights > 0).astype(np.int64)})
            alive &= ~step.terminated
            lasted += alive.sum()
            seen = step.observations["observations"]
        return lasted

    def open(self, task, *, greedy=False, seed=0):
        return Leaning(self.weights)

    def save(self, folder):
        arrays = {"weights": self.weights, "state": state_of(self.rng)}
        write_arrays(Path(folder) / "policy.npz", arrays)

    def load(self, folder):
        found = read_arrays(Path(folder) / "policy.npz")
        self.weights = found["weights"]
        restore(self.rng, found["state"])


class Leaning(PlanningSession):
    def __init__(self, weights):
        self.weights = weights

    def plan(self, moments):
        return [Plan([int(each.state @ self.weights > 0)], None) for each in moments]


@dataclass
class CopyingTrainer(AgentTrainer):
    """Repeats the recorded actions without regard to the observation."""

    needs_model = False

    def begin(self, task):
        return Copying(0, task)


class Copying(Climbing):
    def fit(self, model, rows, steps):
        assert model is None
        self.weights = np.full_like(self.weights, rows.columns["actions"].mean() - 0.5)
        return {"mean": float(self.weights[0])}


@hookimpl
def cwm_trainers():
    return {"linear": LinearTrainer}


@hookimpl
def cwm_agents():
    return {"climbing": ClimbingTrainer, "copying": CopyingTrainer}
