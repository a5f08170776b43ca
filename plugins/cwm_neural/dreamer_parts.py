"""The networks of DreamerV3, composed of parts of torchrl; see `dreamer`.

An episode is a sequence of records: the first observation, and then each action with the
observation after it. The first record has no action and no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot, pad
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs.model_based import DreamerEnv
from torchrl.modules import (
    DreamerV3DiscreteActor,
    DreamerV3ImageDecoder,
    DreamerV3ImageEncoder,
    DreamerV3MLP,
    RSSMPosteriorV3,
    RSSMPriorV3,
    RSSMRolloutV3,
    SymExpTwoHot,
    WorldModelWrapper,
)
from torchrl.modules.distributions.continuous import IndependentNormal
from torchrl.objectives import (
    DreamerV3ActorLoss,
    DreamerV3Loss,
    DreamerV3ModelLoss,
    DreamerV3ValueLoss,
    symexp,
    symlog,
)
from torchrl.objectives.utils import SoftUpdate, ValueEstimators

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.errors import CwmError
from cwm_neural.dreamer_options import DreamerOptions

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset
    from cwm_neural.sampling import EpisodeSampler

UNIMIX, BINS = 0.01, 255
"""Share of the uniform distribution in every categorical distribution, and classes of rewards and
values; as published."""

LAMBDA, TARGET_RATE = 0.95, 0.02
"""Lambda of the returns, and update rate of the target critic; as published."""

GREY = 0.5
"""Pixel value that torchrl adds to decoded images."""

MAX_VALUES = 512
"""Discrete observations with more values are refused: their one-hot vectors would dominate."""


class Coding:
    """Converts observations and actions to tensors, and back: images, or one vector."""

    def __init__(self, observations: Space, actions: Space, device: str) -> None:
        self.observations, self.actions, self.device = observations, actions, device
        self._leaves = [leaf.space for leaf in observations.leaves("")]
        self._names = [leaf.name for leaf in observations.leaves("")]
        self.picture = self._leaves[0].shape if observations.is_picture else None
        if any(_width(space) == 0 for space in self._leaves):
            words = f"text observations, or Discrete ones with more than {MAX_VALUES} values"
            raise CwmError(f"DreamerV3 does not support {words}: choose another model")
        self.width = sum(map(_width, self._leaves))
        self.is_discrete = actions.kind == "discrete"
        bounded = actions.is_float and np.isfinite((*actions.low, *actions.high)).all()
        if not (self.is_discrete or bounded):
            raise CwmError("DreamerV3 needs Discrete or bounded Box actions")
        self.action_width = actions.count if self.is_discrete else actions.size

    def encode(self, columns: Columns, prefix: str = "observations") -> Tensor:
        """Return observations as vectors (n, width), or as images (n, channels, height, width)."""
        found = [columns[prefix + name] for name in self._names]
        if self.picture is not None:
            pixels = np.ascontiguousarray(found[0].transpose(0, 3, 1, 2))
            return torch.from_numpy(pixels).to(self.device)
        parts = []
        for space, column in zip(self._leaves, found, strict=True):
            if space.kind == "discrete":
                classes = torch.from_numpy(column.astype(np.int64) - int(space.low[0]))
                parts.append(one_hot(classes, space.count).float())
            else:
                flat = column.reshape(len(column), space.size).astype(np.float32)
                parts.append(torch.from_numpy(flat))
        return torch.cat(parts, 1).to(self.device)

    def decode(self, seen: Tensor, prefix: str = "observations") -> Columns:
        """Return the columns of decoded tensors, rounded to valid values."""
        values = seen.detach().cpu().double().numpy()
        if self.picture is not None:
            pixels = (values.transpose(0, 2, 3, 1) * 255).round().clip(0, 255)
            return {prefix + self._names[0]: pixels.astype(np.uint8)}
        columns, place = {}, 0
        for name, space in zip(self._names, self._leaves, strict=True):
            part = values[:, place : place + _width(space)]
            place += _width(space)
            if space.kind == "discrete":
                column = part.argmax(axis=1) + int(space.low[0])
            else:
                column = part if space.is_float else part.round()
                column = column.clip(space.low, space.high).reshape(len(part), *space.shape)
            columns[prefix + name] = column.astype(space.dtype)
        return columns

    def encode_actions(self, column: np.ndarray) -> Tensor:
        """Return actions (n, width): one-hot, or real numbers from -1 to 1."""
        if self.is_discrete:
            places = torch.from_numpy(column.astype(np.int64) - int(self.actions.low[0]))
            return one_hot(places, self.action_width).float().to(self.device)
        low, high = np.array(self.actions.low), np.array(self.actions.high)
        flat = column.reshape(len(column), -1)
        scaled = 2 * (flat - low) / np.maximum(high - low, 1e-8) - 1
        return torch.from_numpy(scaled.astype(np.float32)).to(self.device)

    def no_actions(self, count: int) -> Tensor:
        """Return the encoding (n, width) of no action."""
        return torch.zeros(count, self.action_width, device=self.device)

    def choose(
        self, policy: np.ndarray, rng: np.random.Generator | None, valid: Sequence[int] | None
    ) -> Any:
        """Return an action that is sampled from a policy; without `rng` the most likely one."""
        low, high = np.array(self.actions.low), np.array(self.actions.high)
        if self.is_discrete:
            chances = policy if valid is None else policy * self.actions.mask(valid)
            place = int(chances.argmax())
            if rng is not None:
                place = int(rng.choice(len(chances), p=chances / chances.sum()))
            return place + int(low[0])
        mean, spread = policy
        drawn = mean if rng is None else rng.normal(mean, spread)
        value = low + (drawn.clip(-1, 1) + 1) / 2 * (high - low)
        return value.reshape(self.actions.shape).astype(self.actions.dtype)


def _width(space: Space) -> int:
    """Return the number of features of a leaf, 0 if it is not supported."""
    if space.kind == "text" or (space.kind == "discrete" and space.count > MAX_VALUES):
        return 0
    return space.count if space.kind == "discrete" else prod(space.shape)


class Latent(NamedTuple):
    """The memory (n, belief), and a sample of the remaining information (n, state)."""

    belief: Tensor
    state: Tensor

    def select(self, places: np.ndarray) -> Latent:
        """Return the latent states at some indices."""
        return Latent(self.belief[places], self.state[places])

    @classmethod
    def stack(cls, parts: Sequence[Latent]) -> Latent:
        """Concatenate latent states."""
        return cls(*(torch.cat(each) for each in zip(*parts, strict=True)))


class DreamerNetworks(nn.Module):
    """World model, actor, critic, and their losses."""

    def __init__(self, options: DreamerOptions, coding: Coding) -> None:
        super().__init__()
        self.coding, self._options = coding, options
        units, layers = options.units, options.layers
        self.states = options.categoricals * options.classes
        latent = self.states + options.belief
        self.encoder, self.decoder, embedded = _encoder_and_decoder(options, coding, latent)
        self.prior = RSSMPriorV3(
            action_shape=(coding.action_width,),
            action_dim=coding.action_width,
            hidden_dim=units,
            rnn_hidden_dim=options.belief,
            num_categoricals=options.categoricals,
            num_classes=options.classes,
            recurrent_model="block_gru",
            num_blocks=options.blocks,
            unimix=UNIMIX,
        )
        self.posterior = RSSMPosteriorV3(
            hidden_dim=units,
            rnn_hidden_dim=options.belief,
            obs_embed_dim=embedded,
            num_categoricals=options.categoricals,
            num_classes=options.classes,
            use_rms_norm=True,
            unimix=UNIMIX,
        )
        self.rewards = DreamerV3MLP(latent, BINS, layers, units, outscale=0.0)
        self.goes_on = DreamerV3MLP(latent, 1, layers, units)
        self.actor = _actor(options, coding, latent)
        self.scale = SymExpTwoHot(BINS)
        self.critic = DreamerV3MLP(latent, BINS, layers, units, outscale=0.0)
        self.losses = self._losses()
        self.slow = SoftUpdate(self.losses.value_loss, tau=TARGET_RATE)

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return all parameters with gradients; the target critic has none."""
        unique = {id(each): each for each in self.parameters() if each.requires_grad}
        return list(unique.values())

    def set_mean_image(self, rows: Dataset) -> None:
        """Set the decoder's mean image to the mean of the first rows, once."""
        if isinstance(self.decoder, _ImageDecoder) and (self.decoder.mean == GREY).all():
            pixels = rows.columns["next_observations"].mean(axis=0).transpose(2, 0, 1) / 255
            self.decoder.mean.copy_(torch.from_numpy(pixels))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Disable gradients, and restore the random state of torch afterwards."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield

    def noise(self, rng: np.random.Generator | None, count: int) -> np.ndarray | None:
        """Return uniform noise that samples states; None without `rng` for the likeliest."""
        return None if rng is None else rng.random((count, self._options.categoricals))

    def reset(self, count: int) -> Latent:
        """Return the latent states before an episode."""
        empty = torch.zeros(count, self._options.belief + self.states, device=self.coding.device)
        return Latent(empty[:, : self._options.belief], empty[:, self._options.belief :])

    def filter(
        self, before: Latent, actions: Tensor, seen: Tensor, draws: np.ndarray | None
    ) -> Latent:
        """Return the latent states after actions and new observations."""
        _, _, belief = self.prior(before.state, before.belief, actions)
        logits, _ = self.posterior(belief, self.encoder(seen))
        return Latent(belief, _sample(logits, draws))

    def observe(
        self,
        before: Latent,
        actions: Sequence[Any],
        observations: Sequence[Any],
        draws: np.ndarray | None,
    ) -> Latent:
        """Return the latent states after actions (None: a new episode) and observations."""
        coding = self.coding
        placeholder = coding.actions.low[0] if coding.is_discrete else np.array(coding.actions.low)
        filled = [placeholder if action is None else action for action in actions]
        continues = torch.tensor([[action is not None] for action in actions], device=coding.device)
        with self.evaluating():
            return self.filter(
                Latent(before.belief * continues, before.state * continues),
                coding.encode_actions(coding.actions.pack("actions", filled)["actions"])
                * continues,
                coding.encode(coding.observations.pack("observations", observations)),
                draws,
            )

    def imagine(self, before: Latent, actions: Tensor, draws: np.ndarray | None) -> Latent:
        """Return the latent states after actions, without observations."""
        logits, _, belief = self.prior(before.state, before.belief, actions)
        return Latent(belief, _sample(logits, draws))

    def policy(self, latent: Latent) -> np.ndarray:
        """Return probabilities of discrete actions, or mean and standard deviation."""
        given = TensorDict({"belief": latent.belief, "state": latent.state}, [1])
        with self.evaluating():
            found = self.actor.get_dist(given)
            parts = (
                found.probs if self.coding.is_discrete else torch.cat([found.mean, found.stddev])
            )
            policy: np.ndarray = parts.squeeze(0).double().cpu().numpy()
        return policy

    def decode_step(self, latent: Latent) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """Return decoded observations, rewards, and whether episodes have ended."""
        return self.decoder(latent.state, latent.belief), *self.rewards_and_ends(latent)

    def rewards_and_ends(self, latent: Latent) -> tuple[np.ndarray, np.ndarray]:
        """Return rewards, and whether episodes have ended."""
        features = torch.cat([latent.belief, latent.state], -1)
        rewards = self.scale.decode(self._reward_logits(features)).cpu().numpy()
        over = self.goes_on(features).squeeze(-1).sigmoid().cpu().numpy() < 0.5
        return rewards, over

    def _reward_logits(self, features: Tensor) -> Tensor:
        """Return the logits of reward classes, with the last layer in double precision.

        The outermost classes represent rewards of +5e8 and -5e8. Until both are unlikely, the
        reward is the difference that remains when they cancel. In single precision they do not
        cancel: kernels sum the last columns of a layer in another order than the first, depending
        on the rows and the CPU. A difference of 1e-9 between the logits of two such classes
        changes the reward by 0.6.
        """
        *hidden, last = self.rewards.model
        found = nn.Sequential(*hidden)(features).double()
        return linear(found, last.weight.double(), last.bias.double())

    def _losses(self) -> DreamerV3Loss:
        """Return the sum of all losses, as published."""
        options, belief_after = self._options, ("next", "belief")
        following = [belief_after, ("next", "state")]
        rollout = RSSMRolloutV3(
            TensorDictModule(
                self.prior,
                in_keys=["state", "belief", "action"],
                out_keys=[("next", name) for name in ("prior_logits", "state", "belief")],
            ),
            TensorDictModule(
                self.posterior,
                in_keys=[belief_after, ("next", "encoded_latents")],
                out_keys=[("next", "posterior_logits"), ("next", "state")],
            ),
        )
        world = TensorDictSequential(
            _module(self.encoder, [("next", "observation")], ("next", "encoded_latents")),
            rollout,
            _module(self.decoder, following[::-1], ("next", "reco_pixels")),
            _module(self.rewards, following, ("next", "reward_logits")),
            _module(self.scale, [("next", "reward_logits")], ("next", "reward")),
            _module(self.goes_on, following, ("next", "continue_pred")),
        )
        known = ["belief", "state"]
        value = TensorDictSequential(
            _module(self.critic, known, "state_value_logits"),
            _module(self.scale, ["state_value_logits"], "state_value"),
        )
        continuing = TensorDictSequential(
            _module(self.goes_on, known, "continue_logits"),
            _module(nn.Sigmoid(), ["continue_logits"], "continuation"),
        )
        model = DreamerV3ModelLoss(
            world,
            kl_mode="separate",
            unimix=UNIMIX,
            lambda_continue=1.0,
            continue_target_scale=1 - 1 / options.horizon,
            reco_symlog=self.coding.picture is None,
            num_reward_bins=BINS,
            detach_output=False,
        )
        model.set_keys(pixels="observation")
        acting = DreamerV3ActorLoss(
            self.actor,
            value,
            self._imagination(),
            continuation_model=continuing,
            imagination_horizon=options.imagined,
            entropy_bonus=options.entropy,
            use_reinforce=True,
        )
        # the predicted continuation includes the discount, so there is no other discount
        acting.make_value_estimator(ValueEstimators.TDLambda, gamma=1.0, lmbda=LAMBDA)
        criticising = DreamerV3ValueLoss(
            value, "two_hot", num_value_bins=BINS, actor_loss=acting, slow_critic_regularization=1.0
        )
        return DreamerV3Loss(
            model, acting, criticising, continuation_horizon=options.horizon, lmbda=LAMBDA
        )

    def _imagination(self) -> DreamerEnv:
        """Return the world model as an environment whose observations are latent states."""
        transition = TensorDictModule(
            self.prior, in_keys=["state", "belief", "action"], out_keys=["_", "state", "belief"]
        )
        reward = TensorDictSequential(
            _module(self.rewards, ["belief", "state"], "reward_logits"),
            _module(self.scale, ["reward_logits"], "reward"),
        )
        belief = self._options.belief
        env = DreamerEnv(
            WorldModelWrapper(transition, reward),
            (self.states,),
            (belief,),
            device=self.coding.device,
        )
        env.observation_spec = Composite(state=Unbounded(self.states), belief=Unbounded(belief))
        env.state_spec = env.observation_spec.clone()
        env.action_spec = Bounded(-1, 1, (self.coding.action_width,))
        env.reward_spec = Unbounded((1,))
        return env


def _sample(logits: Tensor, draws: np.ndarray | None) -> Tensor:
    """Return one-hot states (n, categoricals * classes): sampled, or the most likely."""
    chances = (1 - UNIMIX) * logits.softmax(-1) + UNIMIX / logits.shape[-1]
    classes = chances.argmax(-1)
    if draws is not None:
        uniform = torch.from_numpy(draws).to(chances)
        classes = (uniform[..., None] > chances.cumsum(-1)).sum(-1)
        classes = classes.clamp_max(logits.shape[-1] - 1)
    return one_hot(classes, logits.shape[-1]).flatten(-2).float()


def _module(net: nn.Module, given: Sequence[Any], gives: Any) -> TensorDictModule:
    """Return a network that reads and writes named tensors."""
    return TensorDictModule(net, in_keys=list(given), out_keys=[gives])


class _Symlog(nn.Module):
    """Applies symlog to the inputs of a network, or symexp to its outputs (`decodes`)."""

    def __init__(self, inner: nn.Module, *, decodes: bool) -> None:
        super().__init__()
        self.inner, self._decodes = inner, decodes

    def forward(self, *inputs: Tensor) -> Tensor:
        if self._decodes:
            return symexp(self.inner(*inputs))
        return self.inner(symlog(*inputs))


class _ImageEncoder(nn.Module):
    """Pads images so that their sides are divisible by the stride of the encoder."""

    def __init__(self, inner: nn.Module, margin: tuple[int, int]) -> None:
        super().__init__()
        self.inner, self._margin = inner, margin

    def forward(self, pictures: Tensor) -> Tensor:
        down, right = self._margin
        return self.inner(pad(pictures, (0, right, 0, down)))


class _ImageDecoder(nn.Module):
    """Decodes images as differences from their mean; initially the differences are 0.

    The published decoder predicts differences from grey, initially as noise. The gradients that
    remove this noise are the largest for a long time, and the optimiser scales all other gradients
    relative to them. Small networks then learn nothing else for thousands of updates.
    """

    def __init__(self, inner: DreamerV3ImageDecoder, shape: Sequence[int]) -> None:
        super().__init__()
        nn.init.zeros_(inner.layers[-1].weight)
        self.inner, self._sides = inner, shape[1:]
        self.register_buffer("mean", torch.full(tuple(shape), GREY))

    def forward(self, *inputs: Tensor) -> Tensor:
        height, width = self._sides
        return self.inner(*inputs)[..., :height, :width] - GREY + self.mean


def _encoder_and_decoder(
    options: DreamerOptions, coding: Coding, latent: int
) -> tuple[nn.Module, nn.Module, int]:
    """Return the encoder and decoder of observations, and the size of the encoder's output."""
    units, layers = options.units, options.layers
    if coding.picture is None:
        encoder = DreamerV3MLP(coding.width, None, layers, units)
        decoder = DreamerV3MLP(latent, coding.width, layers, units)
        return _Symlog(encoder, decodes=False), _Symlog(decoder, decodes=True), units
    height, width, channels = coding.picture
    stages = 1
    min_map_side = 4  # side of a feature map at which convolutions stop halving it; as published
    while stages < len(options.MULTIPLIERS) and min(height, width) >> (stages + 1) >= min_map_side:
        stages += 1
    margin = -height % 2**stages, -width % 2**stages
    shape = channels, height + margin[0], width + margin[1]
    multipliers = options.MULTIPLIERS[:stages]
    encoder = DreamerV3ImageEncoder(channels, options.channels, multipliers)
    decoder = DreamerV3ImageDecoder(
        latent, shape, options.channels, multipliers, num_blocks=options.blocks
    )
    return (
        _ImageEncoder(encoder, margin),
        _ImageDecoder(decoder, (channels, height, width)),
        encoder.output_features(shape),
    )


class _Gaussian(nn.Module):
    """Predicts the mean and the standard deviation of actions, as published."""

    def __init__(self, options: DreamerOptions, latent: int, width: int) -> None:
        super().__init__()
        self._net = DreamerV3MLP(latent, 2 * width, options.layers, options.units, outscale=0.01)

    def forward(self, state: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self._net(belief, state).chunk(2, -1)
        return mean.tanh(), 0.9 * torch.sigmoid(spread + 2) + 0.1


def _actor(options: DreamerOptions, coding: Coding, latent: int) -> TensorDictModuleBase:
    """Return the actor for discrete or real actions."""
    if coding.is_discrete:
        return DreamerV3DiscreteActor(
            latent,
            coding.action_width,
            depth=options.layers,
            num_cells=options.units,
            unimix=UNIMIX,
        )
    return ProbabilisticTensorDictSequential(
        TensorDictModule(
            _Gaussian(options, latent, coding.action_width),
            in_keys=["state", "belief"],
            out_keys=["loc", "scale"],
        ),
        ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"],
            out_keys=["action"],
            default_interaction_type=InteractionType.RANDOM,
            distribution_class=IndependentNormal,
            return_log_prob=True,
            log_prob_key="action_log_prob",
        ),
    )


def batch_of(
    rows: Dataset,
    sampler: EpisodeSampler,
    rng: np.random.Generator,
    networks: DreamerNetworks,
    shape: tuple[int, int],
) -> TensorDict:
    """Return records (batch, length): concatenated segments of episodes.

    Each segment begins with its first observation and no action. A segment that is split between
    two lines of the batch starts without memory in the second one.
    """
    batch, length = shape
    coding, remembered = networks.coding, networks.reset(1)
    needed, count = batch * length, 0
    places, begins = [], []
    while count < needed:
        drawn, mask = sampler.draw(rng, batch, length - 1)
        for segment, counted in zip(drawn, mask, strict=True):
            part = segment[counted]
            places.append(np.concatenate([part[:1], part]))
            begins.append(np.arange(len(part) + 1) == 0)
            count += len(part) + 1
    place, begin = np.concatenate(places)[:needed], np.concatenate(begins)[:needed]
    columns = {name: column[place] for name, column in rows.columns.items()}
    seen = coding.encode(columns, "next_observations")
    seen[torch.from_numpy(begin)] = coding.encode({n: c[begin] for n, c in columns.items()})
    ends = columns["terminations"] | columns["truncations"] | np.roll(begin, -1)
    reached = torch.from_numpy(~begin)[:, None]
    found: dict[Any, Tensor] = {
        "action": coding.encode_actions(columns["actions"]) * reached,
        "is_init": torch.from_numpy(begin | (np.arange(needed) % length == 0))[:, None],
        "belief": torch.zeros(needed, remembered.belief.shape[1]),
        "state": torch.zeros(needed, remembered.state.shape[1]),
        ("next", "observation"): seen,
        ("next", "reward"): torch.from_numpy(columns["rewards"]).float()[:, None] * reached,
        ("next", "terminated"): torch.from_numpy(columns["terminations"])[:, None] & reached,
        ("next", "done"): torch.from_numpy(ends)[:, None] & reached,
    }
    device = remembered.belief.device
    return TensorDict(
        {name: value.reshape(batch, length, *value.shape[1:]) for name, value in found.items()},
        [batch, length],
    ).to(device)
