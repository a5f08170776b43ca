"""Training of ensembles, and their world model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory, Model, PossibleStep, Step
from cwm_cli.worlds.model import (
    ImaginedEpisodes,
    ImaginedStep,
    Planning,
    PlanningSession,
    Predictions,
    TrustedSession,
    WorldModel,
)
from cwm_neural.ensemble_options import EnsembleOptions
from cwm_neural.features import RowFeatures
from cwm_neural.networks import Forecast, MemberNetworks, NoiseSource, RowBatch
from cwm_neural.states import drawing, finite, save_state, saved_state, shape_of
from cwm_neural.training.trainer import Training, TrainingTask

if TYPE_CHECKING:
    from cwm_cli.envs.tasks import Task

END_PROBABILITY = 0.5
"""A step is predicted as terminal above this probability."""

MIN_PROBABILITY, MAX_OUTCOMES = 1e-3, 8
"""Limits of the outcomes that are listed, because untrained members give every outcome some
probability."""


class EnsembleTraining(Training):
    """Fits every member to its own bootstrap sample of the rows."""

    def __init__(self, options: EnsembleOptions, task: TrainingTask) -> None:
        for leaf in task.observation_space.leaves("observations"):
            if leaf.space.is_picture:
                instead = "use --model transformer --tokenizer vq"
                raise CwmError(f"{leaf.name} are pictures, which an ensemble cannot use: {instead}")
        self._options, self._task = options, task
        seen = RowFeatures("observations", task.observation_space)
        done = RowFeatures("actions", task.action_space)
        if not seen.size or not done.size:
            raise CwmError("an ensemble needs numbers, but the observations are text only")
        with drawing(task.seed):
            self.networks = MemberNetworks(
                seen,
                done,
                members=options.members,
                width=options.width,
                layers=options.layers,
                discount=options.discount,
            ).to(task.device)
        self._optimiser = torch.optim.AdamW(
            self.networks.parameters(), lr=options.rate, weight_decay=options.decay
        )
        self._rng = np.random.default_rng(task.seed)
        self._updates, self._due, self._measured = 0, 0.0, 0
        self._is_frozen = False
        self.model: EnsembleModel = EnsembleModel(self.networks, task, noise=options.noise)

    @property
    def parameters(self) -> Mapping[str, int]:
        """The number of parameters of all members."""
        learned = (each for each in self.networks.parameters() if each.requires_grad)
        return {"ensemble": sum(each.numel() for each in learned)}

    def adopt(self, part: str, folder: Path) -> None:
        """Copy all members, which are one part, from a saved training."""
        if part not in ("model", "ensemble"):
            raise self._no_part(part)
        with saved_state(folder, "ensemble", self._shape) as state:
            self.networks.load_state_dict(state["networks"])
            self._measured = state["measured"]
        self.model.reset_digest()

    def freeze(self, part: str) -> None:
        """Stop fitting the members."""
        if part not in ("model", "ensemble"):
            raise self._no_part(part)
        self._is_frozen = True

    def fit(self, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Fit the members to rows, with `ratio` updates for each new step.

        The units of features are measured again each time the number of rows has doubled, not
        more often, because parameters that were learned in other units become wrong.
        """
        if not len(rows):
            raise CwmError("there are no rows to fit to: record some with `cwm collect`")
        if self._is_frozen:
            return {}
        data = self.model.tensors(rows)
        if len(rows) >= 2 * self._measured:
            self.networks.standardise(data)
            self._measured = len(rows)
        self.networks.bound(data)
        members, count = self._options.members, len(rows)
        own = self._rng.integers(count, size=(members, count))
        ending = np.flatnonzero(rows.columns["terminations"])
        self._due += steps * self._options.ratio
        sums: dict[str, float] = {}
        updates, values_ends = 0, self.model.values_ends
        # Fraction of terminal rows in each batch, if there are any. They are rare, and a plan must
        # predict each end.
        end_fraction = 0.125
        actions_per_state = 4  # for the value target: the own action, and actions of other rows
        while self._due >= 1:
            within = self._rng.integers(count, size=(members, self._options.batch))
            chosen = np.take_along_axis(own, within, axis=1)
            if len(ending):
                some = chosen[:, : max(int(end_fraction * self._options.batch), 1)]
                some[:] = ending[self._rng.integers(len(ending), size=some.shape)]
            places = torch.as_tensor(chosen)
            batch, others = RowBatch(*(each[places] for each in data)), None
            if values_ends:
                drawn = self._rng.integers(count, size=(*within.shape, actions_per_state - 1))
                others = data.actions[torch.as_tensor(drawn)]
            for name, loss in self._update(batch, others).items():
                sums[name] = sums.get(name, 0.0) + loss
            self._due -= 1
            updates += 1
        self.networks.measure_vagueness(data)
        self.model.reset_digest()
        return {name: total / updates for name, total in sums.items()}

    def _update(self, rows: RowBatch, others: Tensor | None) -> dict[str, float]:
        """Make one gradient step, and return the losses."""
        losses = self.networks.losses(rows, others)
        measures = finite({name: loss.detach() for name, loss in losses.items()}, self._updates + 1)
        # the bounds of variances are kept close together, with the published weight
        bounds_loss = 0.01 * (self.networks.highest - self.networks.lowest).sum()
        total: Tensor = sum(losses.values(), bounds_loss)
        self._optimiser.zero_grad()
        total.backward()
        self._optimiser.step()
        if others is not None:
            self.networks.update_targets()
        self._updates += 1
        return measures

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Return one-step errors: of numbers and rewards in the units of rows, and of ends."""
        if not len(rows):
            return {}
        data, nets = self.model.tensors(rows), self.networks
        found, numbers = self.model.predict_all(data.states, data.actions), nets.seen.numbers
        ends = found.ends.mean(0) > END_PROBABILITY
        measures = {
            "reward_error": _rms((found.rewards.mean(0) - data.rewards) / nets.reward_scale),
            "end_error": float((ends.float() - data.ends).abs().mean()),
        }
        predicted = found.states.mean(0)
        if numbers:
            errors = predicted[:, :numbers] - data.following[:, :numbers]
            measures["number_error"] = _rms(errors / nets.change_scale)
        if nets.seen.groups:
            pairs = [(predicted[:, a:b], data.following[:, a:b]) for a, b in nets.seen.groups]
            wrong = [(one.argmax(1) != other.argmax(1)).float() for one, other in pairs]
            measures["symbol_error"] = float(torch.stack(wrong).mean())
        return measures

    def save(self, folder: Path) -> None:
        """Write networks, optimiser and random generator."""
        state = {
            "networks": self.networks.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "rng": self._rng.bit_generator.state,
            "updates": self._updates,
            "due": self._due,
            "measured": self._measured,
        }
        save_state(folder, "ensemble", self._shape, state)

    def load(self, folder: Path) -> None:
        """Restore the result of `save`."""
        with saved_state(folder, "ensemble", self._shape) as state:
            self.networks.load_state_dict(state["networks"])
            self._optimiser.load_state_dict(state["optimiser"])
            self._rng.bit_generator.state = state["rng"]
            self._updates, self._due = state["updates"], state["due"]
            self._measured = state["measured"]
        self.model.reset_digest()

    @property
    def _shape(self) -> dict[str, Any]:
        names = ("members", "width", "layers", "discount")
        return shape_of(self._task, self._options, *names, model="ensemble")


class EnsembleModel(WorldModel):
    """The world model of an ensemble: the mean of its members, or samples of random members."""

    kind: ClassVar[str] = "ensemble"

    def __init__(self, networks: MemberNetworks, task: TrainingTask, *, noise: bool) -> None:
        self.networks, self.task, self.noise = networks, task, noise
        self._digest = ""

    @property
    def digest(self) -> str:
        """The hash of all parameters and units."""
        if not self._digest:
            state = self.networks.state_dict()
            parts = [state[name].cpu().numpy().tobytes() for name in sorted(state)]
            self._digest = sha256(b"".join(parts)).hexdigest()
        return self._digest

    @property
    def planners(self) -> Sequence[str]:
        """The planner iCEM; none is preferred if the only observation is one symbol."""
        return ("icem",) if self.planning.deterministic else ()

    @property
    def planning(self) -> EnsemblePlanning:
        """The model in the interface of planners."""
        return EnsemblePlanning(self)

    @property
    def values_ends(self) -> bool:
        """Whether the value of a plan's last state is added to its return.

        Without terminal rows this value is the same after all plans, and only adds errors.
        """
        return bool(self.networks.discount) and not self.networks.endless

    def reset_digest(self) -> None:
        """Drop the cached hash after a change of the networks."""
        self._digest = ""

    def describe(self) -> str:
        """Return a short description."""
        return f"an ensemble of {self.networks.members} networks"

    def tensors(self, rows: Dataset) -> RowBatch:
        """Return rows as features on the device."""
        seen, done, columns = self.networks.seen, self.networks.done, rows.columns
        arrays = (
            seen.encode(columns),
            done.encode(columns),
            seen.encode(columns, "next_"),
            columns["rewards"].astype(np.float32),
            columns["terminations"].astype(np.float32),
        )
        return RowBatch(*(torch.as_tensor(each, device=self.task.device) for each in arrays))

    @torch.inference_mode()
    def predict_all(self, states: Tensor, actions: Tensor) -> Forecast:
        """Return the most likely step of each member, (members, rows, ...)."""
        members = self.networks.members
        max_rows = 100_000  # rows per prediction call, which limits the memory
        parts = [
            self.networks.step(here.expand(members, -1, -1), done.expand(members, -1, -1))
            for here, done in zip(states.split(max_rows), actions.split(max_rows), strict=True)
        ]
        return Forecast(*(torch.cat(each, 1) for each in zip(*parts, strict=True)))

    @torch.inference_mode()
    def sample(
        self, states: Tensor, actions: Tensor, which: np.ndarray, noise: NoiseSource
    ) -> Forecast:
        """Return a sample of the member `which` of each row, (rows, ...)."""
        place = np.zeros_like(which)
        for member in range(self.networks.members):
            own = which == member
            place[own] = np.arange(own.sum())
        shape = (self.networks.members, int(place.max(initial=0)) + 1)
        here, done = (each.new_zeros(*shape, each.shape[1]) for each in (states, actions))
        here[which, place], done[which, place] = states, actions
        found = self.networks.step(here, done, noise)
        return Forecast(*(each[which, place] for each in found))

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Return the mean prediction of the members, or `draws` samples of random members."""
        data, seen = self.tensors(rows), self.networks.seen
        before = rows.select("observations")
        if draws == 1:
            found = self.predict_all(data.states, data.actions)
            found = Forecast(*(each.mean(0) for each in found))
            ends = found.ends > END_PROBABILITY
            return Predictions(self._columns(found, seen, before, rows, ends))
        noise, rng = noise_of(seed), np.random.default_rng(seed)
        answers = []
        for _ in range(draws):
            which = rng.integers(self.networks.members, size=len(rows))
            found = self.sample(data.states, data.actions, which, noise)
            ends = torch.rand(len(rows), generator=noise.generator) < found.ends.cpu()
            answers.append(self._columns(found, seen, before, rows, ends))
        columns = {name: np.stack([each[name] for each in answers], 1) for name in answers[0]}
        return Predictions(columns, shape="draws")

    def _columns(
        self,
        found: Forecast,
        seen: RowFeatures,
        before: Columns,
        rows: Dataset,
        ends: Tensor,
    ) -> Columns:
        """Return predictions as columns of a dataset."""
        after = seen.decode(found.states.cpu().numpy(), before)
        columns = {f"next_{name}": column for name, column in after.items()}
        columns["rewards"] = found.rewards.cpu().numpy().astype(np.float64)
        columns["terminations"] = ends.cpu().numpy()
        if rows.has_valid_actions:
            columns[VALID] = np.ones_like(rows.columns[VALID])
        return columns

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedEpisodes:
        """Return episodes that each continue in one random member."""
        return EnsembleEpisodes(self, starts, rows, seed)

    def open(self, planners: Sequence[Planning], task: Task) -> PlanningSession:
        """Return a planning session, which tries each plan in all members."""
        return TrustedSession(self.planning, planners, task.seed, form="ensemble")


class EnsembleEpisodes(ImaginedEpisodes):
    """Imagined episodes; a random member is drawn for each episode at its start."""

    def __init__(
        self, model: EnsembleModel, starts: Sequence[EpisodeHistory], rows: Dataset, seed: int
    ) -> None:
        self.count, self._model = len(starts), model
        self._observations = rows.observation_space.pack(
            "observations", [each.observations[-1] for each in starts]
        )
        rng = np.random.default_rng(seed)
        self._which = rng.integers(model.networks.members, size=self.count)
        self._noise = noise_of(seed)

    def step(self, actions: Columns) -> ImaginedStep:
        """Sample the next step of each episode from its member."""
        nets, device = self._model.networks, self._model.task.device
        pair = nets.seen.encode(self._observations), nets.done.encode(actions)
        states, done = (torch.as_tensor(each, device=device) for each in pair)
        found = self._model.sample(states, done, self._which, self._noise)
        ends = torch.rand(self.count, generator=self._noise.generator) < found.ends.cpu()
        self._observations = nets.seen.decode(found.states.cpu().numpy(), self._observations)
        rewards = found.rewards.cpu().numpy().astype(np.float64)
        return ImaginedStep(dict(self._observations), rewards, ends.numpy())

    def keep(self, places: np.ndarray) -> None:
        """Keep the episodes at some indices, in that order."""
        self._observations = {name: column[places] for name, column in self._observations.items()}
        self._which = self._which[places]
        self.count = len(self._which)


class EnsemblePlanning(Model):
    """The ensemble in the interface of planners: a plan's value is its mean over all members.

    A member continues from its own predictions. The value of the last state is added if rows show
    ends: otherwise a plan that keeps a cart steady up to its horizon may leave the track soon
    after.

    Rewards after a possible end are weighted by the probability that the episode continues. All
    plans get the same noise. If the only observation is one symbol, all outcomes can be listed,
    so the model is stochastic. Otherwise it is deterministic, and the members represent the
    uncertainty.
    """

    def __init__(self, model: EnsembleModel) -> None:
        self._model, self._nets = model, model.networks
        self._space = model.task.observation_space
        self.action_space = model.task.action_space
        self.deterministic = bool(self._nets.seen.numbers) or len(self._nets.seen.groups) != 1
        self._noisy = model.noise or not self.deterministic
        self.counter = [0]
        self._observation: Any = None

    def stand(self, state: Any) -> None:
        """Set the current observation."""
        self._observation = state

    def here(self) -> Any:
        """Return the current observation."""
        return self._observation

    def step(self, action: Any) -> Step:
        """Take an action: the most likely step, or a random one of the listed outcomes."""
        self.counter[0] += 1
        listed = self.outcomes(action)
        if listed is None:
            before, done = self._features([self._observation], np.asarray(action)[None])
            found = Forecast(*(each.mean(0) for each in self._model.predict_all(before, done)))
            after = self._decode(found.states)
            step = Step(after, float(found.rewards[0]), bool(found.ends[0] > END_PROBABILITY))
        else:
            chances = np.array([each.probability for each in listed])
            step = listed[self._rng.choice(len(listed), p=chances / chances.sum())].step
        self._observation = step.observation
        return step

    def draw_from(self, key: Sequence[int]) -> None:
        """Seed the following random numbers."""
        super().draw_from(key)
        self._rng = np.random.default_rng(list(key))

    @torch.inference_mode()
    def outcomes(self, action: Any) -> Sequence[PossibleStep] | None:
        """Return all outcomes of an action if the only observation is one symbol, else None."""
        if self.deterministic:
            return None
        before, done = self._features([self._observation], np.asarray(action)[None])
        members, size = self._nets.members, self._nets.seen.size
        chances = self._nets.probabilities(*(x.expand(members, 1, -1) for x in (before, done)))[0]
        likely = chances.topk(min(MAX_OUTCOMES, len(chances))).indices
        likely = likely[chances[likely] > min(MIN_PROBABILITY, float(chances.max()) / 2)]
        following = torch.eye(size, device=before.device)[likely].expand(members, -1, -1)
        before, done = (each.expand(members, len(likely), -1) for each in (before, done))
        rewards, ends = (
            each.mean(0) for each in self._nets.rewards_and_ends(before, done, following)
        )
        whole = chances[likely].sum()
        found = []
        for place, chance in enumerate((chances[likely] / whole).tolist()):
            after = self._decode(following[0, place][None])
            step = Step(after, float(rewards[place]), bool(ends[place] > END_PROBABILITY))
            found.append(PossibleStep(chance, step, after))
        return found

    @torch.inference_mode()
    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the values of plans from each state: the mean over members and noise samples."""
        count, each, length = plans.shape[:3]
        flat = plans.reshape(-1, *plans.shape[3:])
        before, done = self._features(states, flat)
        done = done.reshape(count * each, length, -1).transpose(0, 1)
        members, total = self._nets.members, torch.zeros(count * each, device=before.device)
        wide = before.repeat_interleave(each, 0).expand(members, -1, -1)
        # Weight in a plan's value of the return under softened end probabilities. If all plans, or
        # no plans, end the episode within the horizon, this distinguishes plans that come closer to
        # an end.
        vague_weight = 0.05
        for draw in range(max(draws, 1)):
            noise = noise_of(*self.drawn_from, draw, common=True) if self._noisy else None
            here = wide
            lasting = torch.ones(2, *wide.shape[:2], device=before.device)
            shares = lasting.new_tensor([1 - vague_weight, vague_weight])[:, None]
            for actions in done:
                found = self._nets.step(here, actions.expand(members, -1, -1), noise)
                total += (shares * (lasting * found.rewards).mean(1)).sum(0)
                here = found.states
                if not self._nets.endless:
                    ends = torch.stack([found.ends, self._nets.soften_ends(found.ends)])
                    lasting = lasting * (1 - ends)
            if self._model.values_ends:
                total += (shares * (lasting * self._nets.values(here)).mean(1)).sum(0)
        self.counter[0] += count * each * length * max(draws, 1)
        values: np.ndarray = total.reshape(count, each).cpu().numpy().astype(np.float64)
        return values / max(draws, 1)

    def _features(self, states: Sequence[Any], actions: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return observations and actions as features on the device."""
        seen = self._nets.seen.encode(self._space.pack("observations", states))
        done = self._nets.done.encode({"actions": actions})
        device = self._model.task.device
        return torch.as_tensor(seen, device=device), torch.as_tensor(done, device=device)

    def _decode(self, features: Tensor) -> Any:
        """Return the observation of features (1, size)."""
        before = self._space.pack("observations", [self._observation])
        columns = self._nets.seen.decode(features.cpu().numpy(), before)
        return self._space.unpack("observations", columns, 0)


def noise_of(*key: int, common: bool = False) -> NoiseSource:
    """Return a noise source that is seeded by a key."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)
    return NoiseSource(torch.Generator().manual_seed(seed), common)


def _rms(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())
