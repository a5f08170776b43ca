"""DreamerV3 (Hafner et al., 2023): a recurrent world model, and an actor trained in its dreams.

It is here to be compared with, as torchrl has it: its networks, losses and optimiser. What it
remembers of an episode is a vector (the belief); what that does not tell is drawn from categories
(the state). The actor sees these two and no observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
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
from cwm_neural.states import EXTRA, drawing, finite, load_state, restoring, save_state, shape_of
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
"""What it is made of, as `--init` and `--freeze` name it."""

MOST_ROWS = 1024
"""Rows that are predicted at a time: what networks hold of them is a hundred times as large."""


@dataclass
class DreamerTrainer(DreamerOptions, Trainer):
    """DreamerV3 by torchrl: latent states, dreams, and an actor of its own."""

    requires: ClassVar[tuple[str, ...]] = ("torch", "torchrl")
    extra: ClassVar[str] = EXTRA
    agent: ClassVar[str] = ""

    def begin(self, task: TrainingTask) -> DreamerTraining:
        """Make one that has learned nothing; for numbers and pictures."""
        return DreamerTraining(self, task)


class DreamerTraining(Training):
    """World model, actor and critic, trained together by one optimiser."""

    def __init__(self, options: DreamerTrainer, task: TrainingTask) -> None:
        options.check()
        from torchrl.trainers.algorithms import DreamerV3Optimizer

        from cwm_neural.dreamer_parts import Coding, DreamerNetworks

        coding = Coding(task.observation_space, task.action_space, task.device)
        with drawing(task.seed):
            self._networks = DreamerNetworks(options, coding).to(task.device)
        self._optimiser = DreamerV3Optimizer(
            self._networks.trained(), lr=options.rate, warmup_steps=options.warmup
        )
        self._options, self._task = options, task
        self._updates, self._owed = 0, 0.0
        self._frozen: list[Tensor] = []
        self.model = DreamerModel(self._networks, options.length)

    @property
    def agent(self) -> Agent:
        """The actor, which is trained in dreams of the model."""
        return DreamerAgent(self._networks)

    @property
    def parameters(self) -> Mapping[str, int]:
        """How many parameters each part has."""
        return {name: sum(each.numel() for each in self._of(name)) for name in PARTS}

    def adopt(self, part: str, folder: Path) -> None:
        """Take over a part that another training saved, or all of it (`model`)."""
        known = load_state(folder, "dreamer", self._shape)["networks"]
        names = [""] if part == "model" else [f"{name}." for name in self._modules(part)]
        with restoring(folder):
            for start in names:
                own = {
                    key.removeprefix(start): known[key] for key in known if key.startswith(start)
                }
                module = self._networks.get_submodule(start.rstrip("."))
                module.load_state_dict(own)

    def freeze(self, part: str) -> None:
        """Fit a part, or all of it (`model`), no more."""
        for name in PARTS if part == "model" else [part]:
            self._frozen += self._of(name)

    def _modules(self, part: str) -> tuple[str, ...]:
        """Return what a part consists of."""
        if part not in PARTS:
            raise self._no_part(part)
        return PARTS[part]

    def _of(self, part: str) -> list[Tensor]:
        """Return the parameters of a part."""
        modules = [getattr(self._networks, name) for name in self._modules(part)]
        return [each for module in modules for each in module.parameters()]

    def fit(self, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Make as many updates as so many steps are worth; return the mean of each loss."""
        self._owed += steps * self._options.updates
        sampler = EpisodeSampler(rows, recent=self._options.recent)
        losses: list[dict[str, float]] = []
        while self._owed >= 1:
            self._owed -= 1
            losses.append(self._update(rows, sampler))
        names = losses[0] if losses else {}
        return {name: sum(each[name] for each in losses) / len(losses) for name in names}

    def _update(self, rows: Dataset, sampler: EpisodeSampler) -> dict[str, float]:
        """Take one gradient step on all losses together."""
        from cwm_neural.dreamer_parts import batch_of

        net, shape = self._networks, (self._options.batch, self._options.length)
        net.see(rows)
        key = np.random.SeedSequence([self._task.seed, self._updates])
        batch = batch_of(rows, sampler, np.random.default_rng(key), net, shape)
        if not batch["next", "observation"].isfinite().all():  # torchrl fails on it in many ways
            raise Diverged(f"an observation is not a number, at update {self._updates:,}")
        with drawing(int(key.generate_state(1)[0])):
            told = net.losses(batch)
        losses = {
            name.removeprefix("loss_").replace("_", " "): loss
            for name, loss in told.items()
            if name.startswith("loss_")
        }
        found = finite({name: loss.detach() for name, loss in losses.items()}, self._updates)
        self._optimiser.zero_grad()
        sum(losses.values()).backward()
        waiting = self._of("actor") if self._updates < self._options.actor_from else []
        for each in (*self._frozen, *waiting):
            each.grad = None
        slopes = [each.grad.norm() for each in net.trained() if each.grad is not None]
        finite({"gradient": sum(slopes)}, self._updates)
        if slopes:
            self._optimiser.step()
            net.slow.step()
        self._updates += 1
        return found

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Say how far off predictions of one step are, and how often ends are told rightly."""
        found = self.model.predict(rows).columns
        seen = [name for name in found if name.startswith("next_observations")]
        off = [
            np.abs(found[name].astype(float) - rows.columns[name].astype(float)).mean()
            for name in seen
        ]
        ends = found["terminations"] == rows.columns["terminations"]
        return {
            "observation error": float(np.mean(off)),
            "reward error": float(np.abs(found["rewards"] - rows.columns["rewards"]).mean()),
            "end accuracy": float(ends.mean()),
        }

    def illustrate(self, rows: Dataset, folder: Path) -> None:
        """Show pictures as it sees them, and episodes as it imagines them."""
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
            "owed": self._owed,
        }
        save_state(folder, "dreamer", self._shape, state)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        state = load_state(folder, "dreamer", self._shape)
        with restoring(folder):
            self._networks.load_state_dict(state["networks"])
            self._optimiser.load_state_dict(state["optimiser"])
            self._updates, self._owed = state["updates"], state["owed"]

    @property
    def _shape(self) -> dict[str, Any]:
        """What a state is of: the spaces, and the sizes of networks."""
        sizes = ("units", "belief", "categoricals", "classes", "layers", "blocks", "channels")
        own = {each.name: getattr(self._options, each.name) for each in fields(self._options)}
        return shape_of(self._task, **{name: own[name] for name in sizes})


class DreamerModel(WorldModel):
    """What DreamerV3 holds the world to be: asked for a row, it sees one observation only."""

    kind: ClassVar[str] = "dreamer"

    def __init__(self, networks: DreamerNetworks, length: int) -> None:
        self._networks, self._length = networks, length

    def describe(self) -> str:
        """Say what it is, in a few words."""
        return "DreamerV3"

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Say what follows each row: the likeliest of each choice, or draws."""
        if draws > 1:
            drawn = [self._predicted(rows, np.random.default_rng([seed, n])) for n in range(draws)]
            columns = {name: np.stack([each[name] for each in drawn], axis=1) for name in drawn[0]}
            return Predictions(columns, shape="draws")
        return Predictions(self._predicted(rows, None))

    def _predicted(self, rows: Dataset, rng: np.random.Generator | None) -> Columns:
        """Return columns of what follows, a portion of the rows after the other."""
        parts = [
            self._portion(rows[np.arange(start, min(start + MOST_ROWS, len(rows)))], rng)
            for start in range(0, max(len(rows), 1), MOST_ROWS)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _portion(self, rows: Dataset, rng: np.random.Generator | None) -> Columns:
        net, count = self._networks, len(rows)
        with net.asked():
            nothing, seen = net.coding.nothing(count), net.coding.seen(rows.columns)
            latent = net.filtered(net.reset(count), nothing, seen, net.uniform(rng, count))
            actions = net.coding.done(rows.columns["actions"])
            told, rewards, over = net.said(net.imagined(latent, actions, net.uniform(rng, count)))
            columns = net.coding.told(told, "next_observations")
        return columns | {"rewards": rewards, "terminations": over}

    def seen(self, observations: Columns) -> Columns:
        """Return observations as the model sees them: told again from their latent states."""
        net = self._networks
        with net.asked():
            seen = net.coding.seen(observations)
            nothing = net.coding.nothing(len(seen))
            latent = net.filtered(net.reset(len(seen)), nothing, seen, None)
            return net.coding.told(net.decoder(latent.state, latent.belief))

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> DreamtEpisodes:
        """Go on from what was seen last, with what is remembered of what was seen before."""
        return DreamtEpisodes(self._networks, starts, self._length, seed)

    def open(self, planners: Sequence[Planning], task: Task) -> PlanningSession:
        """Begin to plan in latent space, from what was seen last."""
        model = DreamtPlanning(self._networks)
        return TrustedSession(model, planners, task.seed, form="latent states")


class DreamtPlanning(Model):
    """Plans begin where one observation is seen, and go on by the likeliest states."""

    deterministic = hides = True

    def __init__(self, networks: DreamerNetworks) -> None:
        self._networks, self.action_space = networks, networks.coding.actions
        self.counter = [0]
        self._observation: Any = None
        self._latent = networks.reset(1)

    def stand(self, state: Any) -> None:
        """Stand at what was observed, or where `here` was."""
        if not isinstance(state, Here):
            state = Here(state, self._seen([state]))
        self._observation, self._latent = state

    def here(self) -> Here:
        """Return what is observed, and the latent state."""
        return Here(self._observation, self._latent)

    def step(self, action: Any) -> Step:
        """Take an action."""
        net = self._networks
        self.counter[0] += 1
        with net.asked():
            done = net.coding.done(self.action_space.pack("actions", [action])["actions"])
            self._latent = net.imagined(self._latent, done, None)
            told, rewards, over = net.said(self._latent)
            columns = net.coding.told(told)
        self._observation = net.coding.observations.unpack("observations", columns, 0)
        return Step(self._observation, float(rewards[0]), bool(over[0]))

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return what plans are worth from each state, all of them side by side."""
        net, (count, each, length) = self._networks, plans.shape[:3]
        begun = [s.state if isinstance(s, Here) else self._seen([s]) for s in states]
        latent = self._latent.stacked(begun).at(np.repeat(np.arange(count), each))
        flat = plans.reshape(count * each, length, *plans.shape[3:])
        total, alive = np.zeros(len(flat)), np.ones(len(flat), np.bool_)
        with net.asked():
            for number in range(length):
                latent = net.imagined(latent, net.coding.done(flat[:, number]), None)
                rewards, over = net.worth(latent)
                total += rewards * alive
                self.counter[0] += int(alive.sum())
                alive &= ~over
        return total.reshape(count, each)

    def _seen(self, observations: Sequence[Any]) -> Latent:
        """Return where observations are, of which nothing was seen before."""
        net, count = self._networks, len(observations)
        return net.followed(net.reset(count), [None] * count, observations, None)


class DreamtEpisodes(ImaginedEpisodes):
    """Episodes that go on in latent space; observations are what the decoder makes of it."""

    def __init__(
        self, networks: DreamerNetworks, starts: Sequence[EpisodeHistory], length: int, seed: int
    ) -> None:
        self.count, self._networks = len(starts), networks
        self._rng = np.random.default_rng(seed)
        self._latent = networks.reset(self.count)
        most = min(max(len(start.observations) for start in starts), length)
        for back in range(most, 0, -1):  # the last records of each, so that all end together
            places = [max(len(start.observations) - back, 0) for start in starts]
            pairs = list(zip(starts, places, strict=True))
            self._latent = networks.followed(
                self._latent,
                [start.actions[n - 1] if n and back < most else None for start, n in pairs],
                [start.observations[n] for start, n in pairs],
                networks.uniform(self._rng, self.count),
            )

    def step(self, actions: Columns) -> ImaginedStep:
        """Take an action in each."""
        net = self._networks
        with net.asked():
            done = net.coding.done(actions["actions"])
            self._latent = net.imagined(self._latent, done, net.uniform(self._rng, self.count))
            told, rewards, over = net.said(self._latent)
            return ImaginedStep(net.coding.told(told), rewards, over)

    def keep(self, places: np.ndarray) -> None:
        """Go on with the episodes at some places only, in that order."""
        self._latent = self._latent.at(places)
        self.count = len(self._latent.belief)


class DreamerAgent(Agent):
    """The actor of DreamerV3, which remembers the episode as its world model does.

    It is fitted and kept with the model, so that there is nothing to do for it here.
    """

    def __init__(self, networks: DreamerNetworks) -> None:
        self._networks = networks

    def fit(self, model: WorldModel | None, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Do nothing: the model's `fit` trains it."""
        return {}

    def open(self, task: Task, *, greedy: bool = False, seed: int = 0) -> DreamerSession:
        """Begin to act; `greedy` takes the likeliest of all choices."""
        return DreamerSession(self._networks, seed, greedy=greedy)

    def save(self, folder: Path) -> None:
        """Do nothing: it is kept with the model."""

    def load(self, folder: Path) -> None:
        """Do nothing: it is kept with the model."""


class DreamerSession(PlanningSession):
    """Acts in episodes; what it draws follows from the seed, the episode and the decision."""

    def __init__(self, networks: DreamerNetworks, seed: int, *, greedy: bool) -> None:
        self._networks, self._seed, self._greedy = networks, seed, greedy
        self._remembered: dict[int, Latent] = {}

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Return what was done last, if anything was, and what was observed."""
        return (history.actions or (None,))[-1], history.observations[-1]

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return an action for each moment."""
        net, fresh = self._networks, self._networks.reset(1)
        keys = [[self._seed, moment.episode, moment.decision] for moment in moments]
        rngs = [np.random.default_rng(key) for key in keys]
        draws = None if self._greedy else np.concatenate([net.uniform(rng, 1) for rng in rngs])
        before = [self._remembered.get(moment.episode, fresh) for moment in moments]
        latent = net.followed(
            fresh.stacked(before),
            [moment.state[0] if moment.decision else None for moment in moments],
            [moment.state[1] for moment in moments],
            draws,
        )
        plans = []
        for place, (moment, rng) in enumerate(zip(moments, rngs, strict=True)):
            self._remembered[moment.episode] = latent.at(np.array([place]))
            chances = net.policy(self._remembered[moment.episode])
            action = net.coding.chosen(chances, None if self._greedy else rng, moment.valid)
            plans.append(Plan([action], None))
        return plans
