"""Actor-critic agent that learns in episodes imagined by a world model (IRIS, 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.envs.tasks import Task
from cwm_cli.errors import CwmError
from cwm_cli.planning import Moment
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.presets import FROM_PRESET
from cwm_cli.worlds.model import Confirmation, Plan, PlannedWith, PlanningSession, WorldModel
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
from cwm_neural.training.trainer import Agent, AgentTrainer, TrainingTask

if TYPE_CHECKING:
    from torch import Tensor

    from cwm_neural.actor_networks import ActorCriticNetwork


@dataclass
class ActorCriticTrainer(AgentTrainer):
    """REINFORCE with a learned baseline and lambda-returns, in episodes that a model imagines.

    Imagined episodes begin at recorded rows and end after `horizon` steps. No gradient passes
    through the world model, which may be of any kind. Micheli et al. (2023).
    """

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    extra: ClassVar[str] = EXTRA

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {
            "updates": 0.5,
            "starts": 64,
            "horizon": 15,
            "memory": False,
            "burn_in": 5,
            "width": 64,
            "layers": 1,
            "channels": 16,
            "rate": 1e-3,
            "discount": 0.98,
            "entropy": 0.01,
            "normalise": True,
            "temperature": 0.0,
        },
        "small": {
            "updates": 0.5,
            "starts": 64,
            "horizon": 15,
            "memory": True,
            "burn_in": 5,
            "width": 256,
            "layers": 1,
            "channels": 32,
            "rate": 3e-4,
            "discount": 0.98,
            "entropy": 0.01,
            "normalise": True,
            "temperature": 0.0,
        },
        "iris": {
            "updates": 1.0,
            "starts": 64,
            "horizon": 20,
            "memory": True,
            "burn_in": 20,
            "width": 512,
            "layers": 0,
            "channels": 32,
            "rate": 1e-4,
            "discount": 0.995,
            "entropy": 0.001,
            "normalise": False,
            "temperature": 0.5,
        },
    }

    preset: Literal["tiny", "small", "iris"] = "tiny"
    """Preset: tiny for vectors and small boards, small for images, iris as published."""
    updates: float = FROM_PRESET
    """Updates per environment step."""
    starts: int = FROM_PRESET
    """Number of imagined episodes per update."""
    horizon: int = FROM_PRESET
    """Steps of each imagined episode."""
    memory: bool = FROM_PRESET
    """Use an LSTM cell, so that the policy remembers earlier observations of the episode."""
    burn_in: int = FROM_PRESET
    """Steps before a start that only fill the memory, without a gradient."""
    width: int = FROM_PRESET
    """Units of each layer and of the memory."""
    layers: int = FROM_PRESET
    """Number of layers above the encoder of observations."""
    channels: int = FROM_PRESET
    """Channels of the first two convolutions for images; later convolutions have twice as many."""
    rate: float = FROM_PRESET
    """Learning rate of Adam."""
    discount: float = FROM_PRESET
    """Discount factor per step."""
    trace: float = 0.95
    """Lambda of the returns: 1 uses imagined rewards up to the horizon, 0 the value after one
    step."""
    entropy: float = FROM_PRESET
    """Weight of the policy's entropy in the loss."""
    clip: float = 10.0
    """Maximum norm of a gradient."""
    normalise: bool = FROM_PRESET
    """Scale returns and advantages by their spread, so that one learning rate and one entropy
    weight fit rewards of any size. Not in the published method."""
    temperature: float = FROM_PRESET
    """Temperature of the policy in tests: 0 takes the most likely action."""

    def begin(self, task: TrainingTask) -> Agent:
        """Return an untrained agent."""
        self.check()
        return ActorCritic(self, task)


class ActorCritic(Agent):
    """A policy and a value function that are trained in imagined episodes."""

    def __init__(self, options: ActorCriticTrainer, task: TrainingTask) -> None:
        from cwm_neural.actor_networks import ActorCriticNetwork, ObservationEncoder, policy_of

        self._options, self._task = options, task
        policy = policy_of(task.action_space)
        with drawing(task.seed) as torch:
            encoder = ObservationEncoder(
                task.observation_space,
                width=options.width,
                channels=options.channels,
                layers=options.layers,
            )
            remembers = options.width if options.memory else 0
            network = ActorCriticNetwork(encoder, policy, remembers=remembers)
        self.network: ActorCriticNetwork = network.to(task.device)
        self._optimiser = torch.optim.Adam(self.network.parameters(), lr=options.rate)
        self._updates, self._due, self._spread = 0, 0.0, 0.0

    @property
    def parameters(self) -> Mapping[str, int]:
        """The number of parameters."""
        return {"actor-critic": sum(each.numel() for each in self.network.parameters())}

    def fit(self, model: WorldModel | None, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Train in the model, in episodes that begin at rows.

        Args:
            model: The world model.
            rows: Recorded rows; the initial states are sampled from them.
            steps: Number of new environment steps, each worth `updates` updates.

        Returns:
            The means of the losses, of the entropy, of the value at the starts, and of the
            imagined return up to the horizon; empty if no update was due.

        Raises:
            CwmError: If there is no model.
        """
        if model is None:
            raise CwmError("actor-critic needs a world model: add --model or --world")
        self.model = model
        self.network.encoder.normalise(rows)
        starts = StartSampler(rows, self._options.burn_in if self._options.memory else 0)
        found: list[dict[str, float]] = []
        self._due += steps * self._options.updates
        while self._due >= 1:
            self._due -= 1
            found.append(self._update(model, starts))
            self._updates += 1
        return mean_losses(found)

    def open(self, task: Task, *, greedy: bool = False, seed: int = 0) -> PlanningSession:
        """Return a session that acts in episodes of a task.

        Greedy sessions use `temperature` of the options, other sessions temperature 1.
        """
        temperature = self._options.temperature if greedy else 1.0
        return ActingSession(self.network, self.model, seed=seed, temperature=temperature)

    def save(self, folder: Path) -> None:
        """Write the networks, the optimiser and the counts to an existing folder."""
        state = {
            "network": self.network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "updates": [self._updates, self._due, self._spread],
        }
        save_state(folder, "actor-critic", self._shape, state)

    def load(self, folder: Path) -> None:
        """Restore a saved state; raise `CwmError` if it has another kind or shape."""
        with saved_state(folder, "actor-critic", self._shape) as state:
            self.network.load_state_dict(state["network"])
            self._optimiser.load_state_dict(state["optimiser"])
            self._updates, self._due, self._spread = state["updates"]

    @property
    def _shape(self) -> dict[str, Any]:
        return shape_of(self._task, self._options, "memory", "width", "layers", "channels")

    def _update(self, model: WorldModel, starts: StartSampler) -> dict[str, float]:
        """Imagine episodes, and make one gradient step."""
        import torch

        options, network = self._options, self.network
        rng = np.random.default_rng([self._task.seed, self._updates])
        batch = starts.draw(rng, options.starts, whole=model.remembers)
        imagined = imagine(network, model, batch, rng, options.horizon)
        returns = imagined.returns(options.discount, options.trace)
        steps = imagined.decided
        targets = np.concatenate([returns[t, each.places] for t, each in enumerate(steps)])
        values, logs, entropies = (torch.cat(each) for each in list(zip(*steps, strict=True))[1:])
        off = (torch.as_tensor(targets).to(values) - values) / network.unit
        better = off.detach()
        if options.normalise and float(better.std()) > 0:
            better = better / better.std()
        actor, critic, entropy = -(logs * better).mean(), (off**2).mean(), entropies.mean()
        losses = {"actor": actor.detach(), "critic": critic.detach(), "entropy": entropy.detach()}
        found = finite(losses | imagined.measures(), self._updates)
        self._optimiser.zero_grad()
        (actor + critic - options.entropy * entropy).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), options.clip)
        self._optimiser.step()
        if options.normalise:
            self._update_unit(targets)
        return found

    def _update_unit(self, returns: np.ndarray) -> None:
        """Update the unit of values with a moving average of the spread of returns."""
        # outliers barely affect the distance between percentiles (Hafner et al., 2023)
        low, high = np.percentile(returns, (5, 95))
        if high > low:
            unit_decay = 0.99  # weight of the previous unit in the moving average of units
            kept = unit_decay if self._spread else 0.0
            self._spread = kept * self._spread + (1 - kept) * float(high - low)
            self.network.set_unit(self._spread)


class StartSampler:
    """Samples initial states of imagined episodes from rows, with the steps before them."""

    def __init__(self, rows: Dataset, before: int) -> None:
        self.rows, self._before = rows, before
        self._sampler = EpisodeSampler(rows)
        _, lengths = np.unique(rows.columns["episodes"], return_counts=True)
        self._longest = int(lengths.max())
        self._known: dict[int, tuple[Any, Any, float]] = {}

    def draw(self, rng: np.random.Generator, count: int, *, whole: bool) -> StartBatch:
        """Sample starts; `whole` includes the whole prior episode, for models with a memory."""
        length = 1 + max(self._before, self._longest - 1 if whole else 0)
        places, mask = self._sampler.draw(rng, count, max(length, 2), anchor="end")
        histories = [
            self._history(own[there][-length:]) for own, there in zip(places, mask, strict=True)
        ]
        shown = slice(-self._before - 1, None)
        return StartBatch(
            self.rows, histories, places[:, shown], mask[:, shown], self._valid(places, mask)
        )

    def _history(self, places: np.ndarray) -> EpisodeHistory:
        """Return the history of successive rows; it ends with the last row's observation."""
        seen, done, rewards = zip(*(self._read(int(place)) for place in places), strict=True)
        return EpisodeHistory(seen, done[:-1], rewards[:-1])

    def _read(self, place: int) -> tuple[Any, Any, float]:
        """Return the observation, action and reward of a row."""
        if place not in self._known:
            rows = self.rows
            seen = rows.observation_space.unpack("observations", rows.columns, place)
            done = rows.action_space.unpack("actions", rows.columns, place)
            self._known[place] = seen, done, float(rows.columns["rewards"][place])
        return self._known[place]

    def _valid(self, places: np.ndarray, mask: np.ndarray) -> np.ndarray | None:
        """Return the mask of valid actions at the starts, None if rows have no valid actions.

        The row before a start names them. The first row of an episode has no row before it, so
        only its recorded action is known to be valid.
        """
        rows = self.rows
        if not rows.has_valid_actions:
            return None
        choices = np.arange(rows.action_space.count) + int(rows.action_space.low[0])
        done = rows.columns["actions"][places[:, -1], None] == choices
        allowed: np.ndarray = rows.columns[VALID][places[:, -2]]
        return np.where(mask[:, -2, None], allowed, done)


class StartBatch(NamedTuple):
    """Sampled starts: histories, and rows (n, steps) that end with the start itself.

    `mask` is False for steps before the episode began. `valid` is the mask of valid actions at
    the starts.
    """

    rows: Dataset
    histories: list[EpisodeHistory]
    places: np.ndarray
    mask: np.ndarray
    valid: np.ndarray | None

    def observed(self, step: int) -> Columns:
        """Return the observations at a step."""
        return {
            name: column[self.places[:, step]]
            for name, column in self.rows.select("observations").items()
        }


class DecidedStep(NamedTuple):
    """The decisions of one step, for the episodes (indices `places`) that have not ended."""

    places: np.ndarray
    values: Tensor
    logs: Tensor
    entropies: Tensor


class ActedStep(NamedTuple):
    """The observations, chosen actions and valid actions of one step."""

    seen: Columns
    chosen: Tensor
    valid: np.ndarray | None


@dataclass(frozen=True)
class ImaginedBatch:
    """Decisions and outcomes of episodes that were imagined in parallel.

    `rewards` and `terminated` are (steps, episodes), 0 and True after the end of an episode.
    `last` (episodes,) are the values of the last states, 0 if an episode has ended.
    """

    decided: list[DecidedStep]
    rewards: np.ndarray
    terminated: np.ndarray
    last: np.ndarray

    def returns(self, discount: float, trace: float) -> np.ndarray:
        """Return lambda-returns (steps, episodes).

        G_t = r_t + discount (1 - d_t) ((1 - trace) V_{t+1} + trace G_{t+1}), and G_T = V_T.
        """
        values = np.zeros((len(self.rewards) + 1, len(self.last)))
        for step, each in enumerate(self.decided):
            values[step, each.places] = each.values.detach().cpu().numpy()
        values[-1] = self.last
        returns = values.copy()
        for step in reversed(range(len(self.rewards))):
            ahead = (1 - trace) * values[step + 1] + trace * returns[step + 1]
            running = discount * ~self.terminated[step]
            returns[step] = self.rewards[step] + running * ahead
        return returns[:-1]

    def measures(self) -> dict[str, float]:
        """Return means of the predicted value and the imagined return, and the number of steps."""
        return {
            "value": float(self.decided[0].values.detach().mean()),
            "imagined_return": float(self.rewards.sum(axis=0).mean()),
            "imagined_steps": float(sum(len(each.places) for each in self.decided)),
        }


def imagine(
    network: ActorCriticNetwork,
    model: WorldModel,
    starts: StartBatch,
    rng: np.random.Generator,
    horizon: int,
) -> ImaginedBatch:
    """Act with a network in episodes that a model imagines, without the ended episodes."""
    import torch

    count = len(starts.histories)
    rewards, terminated = np.zeros((horizon, count)), np.ones((horizon, count), bool)
    places, decided, acted = np.arange(count), list[DecidedStep](), list[ActedStep]()
    episodes = model.imagine(starts.histories, starts.rows, seed=int(rng.integers(1 << 31)))
    memory = fill_memory(network, model, starts)
    seen, valid, policy = model.seen(starts.observed(-1)), starts.valid, network.policy
    with torch.set_grad_enabled(network.cell is not None):
        heads = network(seen, memory)
        for step in range(horizon):
            choice = policy.choose(heads.outputs, policy.noise(rng, len(places)), valid)
            logs, entropies = policy.weigh(heads.outputs, choice.chosen, valid)
            decided.append(DecidedStep(places, heads.values, logs, entropies))
            acted.append(ActedStep(seen, choice.chosen, valid))
            after = episodes.step(choice.actions)
            rewards[step, places], terminated[step, places] = after.rewards, after.terminated
            running = np.flatnonzero(~after.terminated)
            places, seen, valid = places[running], after.observations, after.valid
            memory = heads.memory
            if not len(running):
                break
            if len(running) < len(after.terminated):
                episodes.keep(running)
                seen = {name: column[running] for name, column in seen.items()}
                valid = None if valid is None else valid[running]
                memory = memory and tuple(each[running] for each in memory)
            heads = network(seen, memory)
    last, steps_taken = np.zeros(count), len(decided)
    if len(places):
        last[places] = heads.values.detach().cpu().numpy()
    if network.cell is None:
        decided = evaluate_together(network, decided, acted)
    return ImaginedBatch(decided, rewards[:steps_taken], terminated[:steps_taken], last)


def evaluate_together(
    network: ActorCriticNetwork, decided: Sequence[DecidedStep], acted: Sequence[ActedStep]
) -> list[DecidedStep]:
    """Return all steps with gradients, in one pass, for a network without memory."""
    import torch

    seen = {name: np.concatenate([each.seen[name] for each in acted]) for name in acted[0].seen}
    all_valid, heads = np.ones(network.policy.size, np.bool_), network(seen)
    masks = [
        np.tile(all_valid, (len(each.chosen), 1)) if each.valid is None else each.valid
        for each in acted
        if any(other.valid is not None for other in acted)
    ]
    logs, entropies = network.policy.weigh(
        heads.outputs,
        torch.cat([each.chosen for each in acted]),
        np.concatenate(masks) if masks else None,
    )
    sizes = [len(each.places) for each in decided]
    parts = (each.split(sizes) for each in (heads.values, logs, entropies))
    return [
        DecidedStep(each.places, *part)
        for each, part in zip(decided, zip(*parts, strict=True), strict=True)
    ]


def fill_memory(network: ActorCriticNetwork, model: WorldModel, starts: StartBatch) -> Any:
    """Return the network's memory of the steps before the starts, without a gradient."""
    import torch

    memory = None
    with torch.no_grad():
        for step in range(starts.places.shape[1] - 1):
            memory = network(model.seen(starts.observed(step)), memory).memory
            inside = torch.as_tensor(starts.mask[:, step, None]).to(memory[0])
            memory = tuple(each * inside for each in memory)
    return memory


class ActingSession(PlanningSession):
    """Acts with a network in several parallel episodes, each with its own memory.

    The network sees observations as the `model` encodes them, because it was trained on these.
    """

    def __init__(
        self,
        network: ActorCriticNetwork,
        model: WorldModel | None,
        *,
        seed: int,
        temperature: float,
    ) -> None:
        self._network, self._seed, self._temperature = network, seed, temperature
        self._model = model
        self._memories: dict[int, tuple[Tensor, ...]] = {}
        self.report = PlannedWith("actor-critic", (), "")

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return an action for each moment; its random seed is its episode and decision."""
        import torch

        network, policy = self._network, self._network.policy
        space = network.encoder.space
        seen = space.pack("observations", [each.state for each in moments])
        with torch.no_grad():
            heads = network(self._model.seen(seen) if self._model else seen, self._memory(moments))
        if heads.memory is not None:
            for place, moment in enumerate(moments):
                self._memories[moment.episode] = tuple(each[place] for each in heads.memory)
        keys = [[self._seed, each.episode, each.decision] for each in moments]
        noise = [policy.noise(np.random.default_rng(key), 1) for key in keys]
        chosen = policy.choose(
            heads.outputs,
            np.concatenate(noise),
            self._valid(moments),
            temperature=self._temperature,
        ).actions
        actions = [policy.space.unpack("actions", chosen, row) for row in range(len(moments))]
        return [Plan([action], None) for action in actions]

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Delete the memories of the episodes, which have ended."""
        for episode in seconds:
            self._memories.pop(episode, None)
        return super().confirm(seconds)

    def _memory(self, moments: Sequence[Moment]) -> tuple[Tensor, ...] | None:
        """Return the memory of each episode: zeros at its first decision."""
        import torch

        if (cell := self._network.cell) is None:
            return None
        nothing = torch.zeros(2, cell.hidden_size, device=cell.weight_hh.device)
        each = [
            self._memories.get(moment.episode, (*nothing,)) if moment.decision else (*nothing,)
            for moment in moments
        ]
        return tuple(torch.stack(part) for part in zip(*each, strict=True))

    def _valid(self, moments: Sequence[Moment]) -> np.ndarray | None:
        """Return the mask of valid actions at each moment, None if all actions are valid."""
        space = self._network.policy.space
        if all(moment.valid is None for moment in moments):
            return None
        all_valid = np.ones(space.count, np.bool_)
        return np.array([all_valid if m.valid is None else space.mask(m.valid) for m in moments])
