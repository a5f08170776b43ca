"""DreamerV3 (Hafner et al., 2023): a recurrent world model, and an actor trained in imagination.

It is a baseline, with the networks, losses and optimiser of torchrl. Its memory of an episode is a
vector (the belief). Everything else about the present is sampled from categories (the state). The
actor sees these two and no observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cwm_cli.planning.model import Here, Model, Step
from cwm_cli.worlds.model import (
    ImaginedEpisodes,
    ImaginedStep,
    Plan,
    Planning,
    PlanningSession,
    Predictions,
    TrustedSession,
    WorldModel,
)
from cwm_neural.dreamer_options import DreamerOptions
from cwm_neural.sampling import EpisodeSampler
from cwm_neural.states import (
    EXTRA,
    drawing,
    finite,
    mean_losses,
    save_state,
    saved_state,
    shape_of,
)
from cwm_neural.training.acting import Untrained
from cwm_neural.training.trainer import Agent, Diverged, Trainer, Training, TrainingTask

if TYPE_CHECKING:
    from pathlib import Path

    import gymnasium as gym
    from torch import Tensor

    from cwm_cli.data.dataset import Dataset
    from cwm_cli.data.spaces import Columns
    from cwm_cli.envs.tasks import Task
    from cwm_cli.planning import Moment
    from cwm_cli.planning.model import EpisodeHistory
    from cwm_neural.dreamer_parts import DreamerNetworks, Latent

PARTS: Mapping[str, tuple[str, ...]] = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "dynamics": ("prior", "posterior"),
    "heads": ("rewards", "goes_on"),
    "actor": ("actor",),
    "critic": ("critic",),
}
"""The modules of each part, by the names for `--init` and `--freeze`."""

MAX_ROWS = 1024
"""Rows per prediction call; the activations of the networks are about 100 times as large."""


@dataclass
class DreamerTrainer(DreamerOptions, Trainer):
    """DreamerV3 of torchrl: latent states, imagined rollouts, and its own actor."""

    requires: ClassVar[tuple[str, ...]] = ("torch", "torchrl")
    extra: ClassVar[str] = EXTRA
    agent: ClassVar[str] = ""

    def begin(self, task: TrainingTask) -> DreamerTraining:
        """Return an untrained model, for observations of numbers or images."""
        return DreamerTraining(self, task)


class DreamerTraining(Training):
    """World model, actor and critic, trained together with one optimiser."""

    def __init__(self, options: DreamerTrainer, task: TrainingTask) -> None:
        options.check()
        from torchrl.trainers.algorithms import DreamerV3Optimizer

        from cwm_neural.dreamer_parts import Coding, DreamerNetworks

        coding = Coding(task.observation_space, task.action_space, task.device)
        with drawing(task.seed):
            self._networks = DreamerNetworks(options, coding).to(task.device)
        self._optimiser = DreamerV3Optimizer(
            self._networks.trained_parameters(), lr=options.rate, warmup_steps=options.warmup
        )
        self._options, self._task = options, task
        self._updates, self._due = 0, 0.0
        self._frozen: list[Tensor] = []
        self.model = DreamerModel(self._networks, options.length)

    @property
    def agent(self) -> Agent:
        """The actor, which is trained in imagined rollouts of the model."""
        return DreamerAgent(self._networks)

    @property
    def parameters(self) -> Mapping[str, int]:
        """The number of parameters of each part."""
        return {name: sum(each.numel() for each in self._of(name)) for name in PARTS}

    def adopt(self, part: str, folder: Path) -> None:
        """Copy a part, or the whole `model`, from a saved training."""
        names = [""] if part == "model" else [f"{name}." for name in self._modules(part)]
        with saved_state(folder, "dreamer", self._shape) as state:
            known = state["networks"]
            for start in names:
                own = {
                    key.removeprefix(start): known[key] for key in known if key.startswith(start)
                }
                module = self._networks.get_submodule(start.rstrip("."))
                module.load_state_dict(own)

    def freeze(self, part: str) -> None:
        """Stop fitting a part, or the whole `model`."""
        for name in PARTS if part == "model" else [part]:
            self._frozen += self._of(name)

    def _modules(self, part: str) -> tuple[str, ...]:
        if part not in PARTS:
            raise self._no_part(part)
        return PARTS[part]

    def _of(self, part: str) -> list[Tensor]:
        """Return the parameters of a part."""
        modules = [getattr(self._networks, name) for name in self._modules(part)]
        return [each for module in modules for each in module.parameters()]

    def fit(self, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Make `updates` updates for each new step, and return the mean of each loss."""
        self._due += steps * self._options.updates
        sampler = EpisodeSampler(rows, recent=self._options.recent)
        losses: list[dict[str, float]] = []
        while self._due >= 1:
            self._due -= 1
            losses.append(self._update(rows, sampler))
        return mean_losses(losses)

    def _update(self, rows: Dataset, sampler: EpisodeSampler) -> dict[str, float]:
        """Make one gradient step on the sum of all losses."""
        from cwm_neural.dreamer_parts import batch_of

        net, shape = self._networks, (self._options.batch, self._options.length)
        net.set_mean_image(rows)
        key = np.random.SeedSequence([self._task.seed, self._updates])
        batch = batch_of(rows, sampler, np.random.default_rng(key), net, shape)
        if not batch["next", "observation"].isfinite().all():  # torchrl raises unclear errors
            raise Diverged(f"an observation is not a number, at update {self._updates:,}")
        with drawing(int(key.generate_state(1)[0])):
            found = net.losses(batch)
        losses = {
            name.removeprefix("loss_").replace("_", " "): loss
            for name, loss in found.items()
            if name.startswith("loss_")
        }
        found = finite({name: loss.detach() for name, loss in losses.items()}, self._updates)
        self._optimiser.zero_grad()
        sum(losses.values()).backward()
        waiting = self._of("actor") if self._updates < self._options.actor_from else []
        for each in (*self._frozen, *waiting):
            each.grad = None
        gradients = [each.grad.norm() for each in net.trained_parameters() if each.grad is not None]
        finite({"gradient": sum(gradients)}, self._updates)
        if gradients:
            self._optimiser.step()
            net.slow.step()
        self._updates += 1
        return found

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Return the errors of one-step predictions, and the accuracy of predicted ends."""
        found = self.model.predict(rows).columns
        seen = [name for name in found if name.startswith("next_observations")]
        errors = [
            np.abs(found[name].astype(float) - rows.columns[name].astype(float)).mean()
            for name in seen
        ]
        ends = found["terminations"] == rows.columns["terminations"]
        return {
            "observation error": float(np.mean(errors)),
            "reward error": float(np.abs(found["rewards"] - rows.columns["rewards"]).mean()),
            "end accuracy": float(ends.mean()),
        }

    def illustrate(self, rows: Dataset, folder: Path) -> None:
        """Write reconstructed images and imagined episodes."""
        picture = self._networks.coding.picture
        if picture is not None:
            from cwm_neural.reconstructing import illustrate

            illustrate(self.model, rows, folder, frame=min(picture[:2]))

    def save(self, folder: Path) -> None:
        """Write networks, optimiser and counts."""
        state = {
            "networks": self._networks.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "updates": self._updates,
            "owed": self._due,
        }
        save_state(folder, "dreamer", self._shape, state)

    def load(self, folder: Path) -> None:
        """Restore the result of `save`."""
        with saved_state(folder, "dreamer", self._shape) as state:
            self._networks.load_state_dict(state["networks"])
            self._optimiser.load_state_dict(state["optimiser"])
            self._updates, self._due = state["updates"], state["owed"]

    @property
    def _shape(self) -> dict[str, Any]:
        """The spaces and the sizes of networks, which a loaded state must share."""
        sizes = ("units", "belief", "categoricals", "classes", "layers", "blocks", "channels")
        return shape_of(self._task, self._options, *sizes)


class DreamerModel(WorldModel):
    """The world model of DreamerV3. For predictions of rows it sees one observation only."""

    kind: ClassVar[str] = "dreamer"

    def __init__(self, networks: DreamerNetworks, length: int) -> None:
        self._networks, self._length = networks, length

    def describe(self) -> str:
        """Return a short description."""
        return "DreamerV3"

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Return the most likely step of each row, or `draws` samples."""
        if draws > 1:
            drawn = [self._predict(rows, np.random.default_rng([seed, n])) for n in range(draws)]
            columns = {name: np.stack([each[name] for each in drawn], axis=1) for name in drawn[0]}
            return Predictions(columns, shape="draws")
        return Predictions(self._predict(rows, None))

    def _predict(self, rows: Dataset, rng: np.random.Generator | None) -> Columns:
        """Return predicted columns; computes `MAX_ROWS` rows per call."""
        parts = [
            self._predict_portion(rows[np.arange(start, min(start + MAX_ROWS, len(rows)))], rng)
            for start in range(0, max(len(rows), 1), MAX_ROWS)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _predict_portion(self, rows: Dataset, rng: np.random.Generator | None) -> Columns:
        net, count = self._networks, len(rows)
        with net.evaluating():
            nothing, seen = net.coding.no_actions(count), net.coding.encode(rows.columns)
            latent = net.filter(net.reset(count), nothing, seen, net.noise(rng, count))
            actions = net.coding.encode_actions(rows.columns["actions"])
            found, rewards, over = net.decode_step(
                net.imagine(latent, actions, net.noise(rng, count))
            )
            columns = net.coding.decode(found, "next_observations")
        return columns | {"rewards": rewards, "terminations": over}

    def seen(self, observations: Columns) -> Columns:
        """Return the model's reconstruction of observations."""
        net = self._networks
        with net.evaluating():
            seen = net.coding.encode(observations)
            nothing = net.coding.no_actions(len(seen))
            latent = net.filter(net.reset(len(seen)), nothing, seen, None)
            return net.coding.decode(net.decoder(latent.state, latent.belief))

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> DreamtEpisodes:
        """Return episodes that continue histories, with the memory of earlier observations."""
        return DreamtEpisodes(self._networks, starts, self._length, seed)

    def open(self, planners: Sequence[Planning], task: Task) -> PlanningSession:
        """Return a planning session in latent space, which starts at the last observation."""
        model = DreamtPlanning(self._networks)
        return TrustedSession(model, planners, task.seed, form="latent states")


class DreamtPlanning(Model):
    """Latent planning that starts at one observation, and continues with the likeliest states."""

    deterministic = hides = True

    def __init__(self, networks: DreamerNetworks) -> None:
        self._networks, self.action_space = networks, networks.coding.actions
        self.counter = [0]
        self._observation: Any = None
        self._latent = networks.reset(1)

    def stand(self, state: Any) -> None:
        """Set the current observation, or the result of `here`."""
        if not isinstance(state, Here):
            state = Here(state, self._seen([state]))
        self._observation, self._latent = state

    def here(self) -> Here:
        """Return the current observation and latent state."""
        return Here(self._observation, self._latent)

    def step(self, action: Any) -> Step:
        """Take an action, and return the most likely step."""
        net = self._networks
        self.counter[0] += 1
        with net.evaluating():
            done = net.coding.encode_actions(self.action_space.pack("actions", [action])["actions"])
            self._latent = net.imagine(self._latent, done, None)
            found, rewards, over = net.decode_step(self._latent)
            columns = net.coding.decode(found)
        self._observation = net.coding.observations.unpack("observations", columns, 0)
        return Step(self._observation, float(rewards[0]), bool(over[0]))

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the values of plans from each state, computed in parallel."""
        net, (count, each, length) = self._networks, plans.shape[:3]
        latents = [s.state if isinstance(s, Here) else self._seen([s]) for s in states]
        latent = self._latent.stack(latents).select(np.repeat(np.arange(count), each))
        flat = plans.reshape(count * each, length, *plans.shape[3:])
        total, alive = np.zeros(len(flat)), np.ones(len(flat), np.bool_)
        with net.evaluating():
            for number in range(length):
                latent = net.imagine(latent, net.coding.encode_actions(flat[:, number]), None)
                rewards, over = net.rewards_and_ends(latent)
                total += rewards * alive
                self.counter[0] += int(alive.sum())
                alive &= ~over
        return total.reshape(count, each)

    def _seen(self, observations: Sequence[Any]) -> Latent:
        """Return the latent states of observations without earlier observations."""
        net, count = self._networks, len(observations)
        return net.observe(net.reset(count), [None] * count, observations, None)


class DreamtEpisodes(ImaginedEpisodes):
    """Imagined episodes in latent space; the decoder computes their observations."""

    def __init__(
        self, networks: DreamerNetworks, starts: Sequence[EpisodeHistory], length: int, seed: int
    ) -> None:
        self.count, self._networks = len(starts), networks
        self._rng = np.random.default_rng(seed)
        self._latent = networks.reset(self.count)
        most = min(max(len(start.observations) for start in starts), length)
        for back in range(most, 0, -1):  # the last records of each, aligned at the end
            places = [max(len(start.observations) - back, 0) for start in starts]
            pairs = list(zip(starts, places, strict=True))
            self._latent = networks.observe(
                self._latent,
                [start.actions[n - 1] if n and back < most else None for start, n in pairs],
                [start.observations[n] for start, n in pairs],
                networks.noise(self._rng, self.count),
            )

    def step(self, actions: Columns) -> ImaginedStep:
        """Take an action in each episode."""
        net = self._networks
        with net.evaluating():
            done = net.coding.encode_actions(actions["actions"])
            self._latent = net.imagine(self._latent, done, net.noise(self._rng, self.count))
            found, rewards, over = net.decode_step(self._latent)
            return ImaginedStep(net.coding.decode(found), rewards, over)

    def keep(self, places: np.ndarray) -> None:
        """Keep the episodes at some indices, in that order."""
        self._latent = self._latent.select(places)
        self.count = len(self._latent.belief)


class DreamerAgent(Untrained):
    """The actor of DreamerV3, with the memory of its world model.

    The training of the model also fits, saves and loads the actor.
    """

    def __init__(self, networks: DreamerNetworks) -> None:
        self._networks = networks

    def open(self, task: Task, *, greedy: bool = False, seed: int = 0) -> DreamerSession:
        """Return a session; `greedy` takes the most likely state and action."""
        return DreamerSession(self._networks, seed, greedy=greedy)


class DreamerSession(PlanningSession):
    """Acts in episodes; the random seed of a decision is the seed, the episode and its number."""

    def __init__(self, networks: DreamerNetworks, seed: int, *, greedy: bool) -> None:
        self._networks, self._seed, self._greedy = networks, seed, greedy
        self._memories: dict[int, Latent] = {}

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Return the last action, None at the start, and the last observation."""
        return (history.actions or (None,))[-1], history.observations[-1]

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return an action for each moment."""
        net, fresh = self._networks, self._networks.reset(1)
        keys = [[self._seed, moment.episode, moment.decision] for moment in moments]
        rngs = [np.random.default_rng(key) for key in keys]
        draws = None if self._greedy else np.concatenate([net.noise(rng, 1) for rng in rngs])
        before = [self._memories.get(moment.episode, fresh) for moment in moments]
        latent = net.observe(
            fresh.stack(before),
            [moment.state[0] if moment.decision else None for moment in moments],
            [moment.state[1] for moment in moments],
            draws,
        )
        plans = []
        for place, (moment, rng) in enumerate(zip(moments, rngs, strict=True)):
            self._memories[moment.episode] = latent.select(np.array([place]))
            chances = net.policy(self._memories[moment.episode])
            action = net.coding.choose(chances, None if self._greedy else rng, moment.valid)
            plans.append(Plan([action], None))
        return plans
