"""Tokenizer for images: an autoencoder with discrete latents (VQ-VAE, van den Oord et al., 2017).

Losses and architecture follow Micheli et al. (2023). Their perceptual network needs files with its
weights (`perceptual.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cwm_cli.errors import CwmError
from cwm_neural.perceptual import MIN_SIDE, Lpips
from cwm_neural.sampling import EpisodeSampler
from cwm_neural.states import drawing, finite
from cwm_neural.tokens import Tokenizer, around
from cwm_neural.vq_options import VqOptions

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset
    from cwm_cli.data.spaces import Columns, Space

NORM_GROUPS, CLIP = 32, 10.0
"""Groups of the group normalisation, and maximum norm of a gradient, as published."""


CHUNK, MAX_MEASURED = 256, 1024
"""Images per call of the network, and images that are measured; they limit memory and time."""

CRITIC_WIDTH = 512


class VqTokenizer(Tokenizer):
    """Encodes images as the nearest codes of the latents of their patches."""

    def __init__(
        self,
        space: Space,
        options: VqOptions,
        *,
        seed: int = 0,
        device: str = "cpu",
        trains: bool = True,
    ) -> None:
        if not space.is_picture:
            raise CwmError("the tokenizer vq needs pictures: use --tokenizer grid")
        self._options, self._device = options, device
        self._height, self._width, channels = space.shape
        with drawing(seed):
            self.network = Autoencoder(options, channels).to(device)
        self._optimiser = torch.optim.Adam(self.network.parameters(), lr=options.vq_rate)
        self._rng = np.random.default_rng(seed)
        self._updates = 0
        self._used = torch.zeros(options.vq_codes, device=device)
        self.count, self.vocabulary = options.vq_side**2, options.vq_codes
        self._lpips: Lpips | None = None
        if options.vq_lpips and trains:
            if options.vq_frame < MIN_SIDE:
                raise CwmError(f"LPIPS needs images of {MIN_SIDE} pixels: choose a larger vq_frame")
            self._lpips = Lpips(Path(options.vq_lpips), device)

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(weights.numel() for weights in self.network.parameters())

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that must be equal in a saved state."""
        # besides the number of codes
        names = ("vq_frame", "vq_side", "vq_width", "vq_channels", "vq_blocks")
        options = {name: getattr(self._options, name) for name in names}
        return super().sizes | options | {"critic": self._options.vq_critic > 0}

    @property
    def near(self) -> Tensor:
        """Neighbours of each patch of an image."""
        return around(self._options.vq_side, self._options.vq_side)

    def fit(self, rows: Dataset, updates: int) -> Mapping[str, float]:
        """Make `updates` gradient steps on images of rows, and return the mean losses."""
        if updates <= 0:
            return {}
        sampler, options = EpisodeSampler(rows), self._options
        returns = _returns(rows, options.vq_discount) if options.vq_critic else None
        sums: dict[str, float] = {}
        self.network.train()
        for _ in range(updates):
            places = sampler.draw(self._rng, options.vq_batch, 1).rows[:, 0]
            after = self._rng.random(len(places)) < 0.5  # else final images would never occur
            pictures = np.where(
                after[:, None, None, None],
                rows.columns["next_observations"][places],
                rows.columns["observations"][places],
            )
            aim = None if returns is None else torch.from_numpy(returns[after * 1, places])
            for name, loss in self._update(self._frames(pictures), aim).items():
                sums[name] = sums.get(name, 0.0) + loss
        return {name: total / updates for name, total in sums.items()}

    def _update(self, frames: Tensor, returns: Tensor | None) -> dict[str, float]:
        """Make one gradient step; unknown `returns` are NaN."""
        options, self._updates = self._options, self._updates + 1
        seen = self.network(frames)
        losses = {
            "reconstruction": (frames - seen.frames).abs().mean(),
            "codebook": functional.mse_loss(seen.codes, seen.latents.detach()),
        }
        commitment = functional.mse_loss(seen.latents, seen.codes.detach())
        total = sum(losses.values()) + options.vq_commitment * commitment
        total = total + options.vq_squared * functional.mse_loss(seen.frames, frames)
        if options.vq_perceptual:
            losses["perceptual"] = perceptual_loss(frames, seen.frames)
            total = total + options.vq_perceptual * losses["perceptual"]
        if self._lpips is not None:
            losses["lpips"] = self._lpips(frames, seen.frames)
            total = total + losses["lpips"]
        if returns is not None and (known := torch.isfinite(returns)).any():
            predicted = self.network.critic(seen.passed.flatten(1))[:, 0]
            known, returns = known.to(predicted.device), returns.to(predicted)
            losses["critic"] = functional.mse_loss(predicted[known], returns[known])
            total = total + options.vq_critic * losses["critic"]
        numbers = finite({name: loss.detach() for name, loss in losses.items()}, self._updates)
        self._optimiser.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
        self._optimiser.step()
        self._restart(seen)
        return numbers

    def _restart(self, seen: EncodedFrames) -> None:
        """Reset codes without recent use to random latents of the current batch."""
        young = self._options.vq_restart
        if self._updates > young:
            return
        self._used += torch.bincount(seen.tokens.flatten(), minlength=self.vocabulary)
        # number of resets of unused codes; after each reset some of the new codes stay in use
        restarts = 10
        if self._updates > 1 and self._updates % max(young // restarts, 1):
            return
        unused = (self._used == 0).nonzero()[:, 0]
        latents = seen.latents.detach().movedim(1, -1).flatten(0, 2)
        drawn = torch.from_numpy(self._rng.integers(len(latents), size=len(unused)))
        with torch.no_grad():
            self.network.codebook.weight[unused] = latents[drawn.to(latents.device)]
        self._used.zero_()

    def encode(self, observations: Columns) -> Tensor:
        """Return the tokens (n, count) of images."""
        self.network.eval()
        with torch.no_grad():
            parts = [
                self.network.encode(self._frames(each)).tokens.flatten(1)
                for each in _chunks(observations["observations"])
            ]
        return torch.cat(parts) if parts else torch.zeros((0, self.count), dtype=torch.int64)

    def decode(self, tokens: Tensor, before: Columns | None = None) -> Columns:
        """Return the images of tokens, in the size of the space."""
        self.network.eval()
        with torch.no_grad():
            parts = [self._pictures(self.network.decode_tokens(each)) for each in _chunks(tokens)]
        empty = np.zeros((0, self._height, self._width, self.network.channels), np.uint8)
        return {"observations": np.concatenate(parts) if parts else empty}

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Compare images with reconstructions, with their mean, and with the images before."""
        if not len(rows):
            return {}
        some = np.unique(np.linspace(0, len(rows) - 1, MAX_MEASURED).astype(int))
        before, pictures = (
            rows.columns[name][some].astype(np.float32) / 255
            for name in ("observations", "next_observations")
        )
        tokens = self.encode({"observations": rows.columns["next_observations"][some]})
        made = self.decode(tokens)["observations"].astype(np.float32) / 255
        used = torch.bincount(tokens.flatten(), minlength=self.vocabulary).double()
        shares = used[used > 0] / used.sum()
        return {
            "reconstruction L1": float(np.abs(made - pictures).mean()),
            "reconstruction PSNR": _psnr(made, pictures),
            "mean picture L1": float(np.abs(pictures.mean(axis=0) - pictures).mean()),
            "mean picture PSNR": _psnr(pictures.mean(axis=0), pictures),
            "copy-last L1": float(np.abs(before - pictures).mean()),
            "code perplexity": float((-(shares * shares.log()).sum()).exp()),
            "codes used": float((used > 0).double().mean()),
        }

    def state(self) -> dict[str, Any]:
        """Return networks, optimiser, random generator and counts."""
        return {
            "network": self.network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "rng": self._rng.bit_generator.state,
            "updates": self._updates,
            "used": self._used,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.network.load_state_dict(state["network"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._rng.bit_generator.state = state["rng"]
        self._updates = state["updates"]
        self._used = state["used"].to(self._device)

    def _frames(self, pictures: np.ndarray) -> Tensor:
        """Scale images to the size of the network, and their values to [-1, 1]."""
        found = torch.from_numpy(np.ascontiguousarray(pictures)).to(self._device)
        found, side = found.movedim(-1, 1).float() / 127.5 - 1, self._options.vq_frame
        if found.shape[-2:] == (side, side):
            return found
        return functional.interpolate(found, size=(side, side), mode="area")

    def _pictures(self, frames: Tensor) -> np.ndarray:
        """Return frames as bytes, enlarged to the size of the space."""
        size = (self._height, self._width)
        if frames.shape[-2:] != size:
            frames = functional.interpolate(frames, size=size, mode="nearest-exact")
        bytes_ = ((frames.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        found: np.ndarray = bytes_.movedim(1, -1).cpu().numpy()
        return found


class EncodedFrames(NamedTuple):
    """Results of the network for frames; grids are (n, width, side, side).

    `passed` are the codes with straight-through gradients to the latents.
    """

    latents: Tensor
    tokens: Tensor
    codes: Tensor
    passed: Tensor
    frames: Tensor | None = None


class Autoencoder(nn.Module):
    """An encoder, a codebook, a decoder, and optionally a critic."""

    def __init__(self, options: VqOptions, channels: int) -> None:
        super().__init__()
        halvings = log2(options.vq_frame / options.vq_side)
        if halvings < 1 or not halvings.is_integer():
            words = f"{options.vq_side} tokens cannot be made by halving {options.vq_frame} pixels"
            raise CwmError(f"{words}: choose another vq_frame or vq_side")
        if options.vq_blocks and options.vq_channels % NORM_GROUPS:
            raise CwmError(f"vq_channels must be a multiple of {NORM_GROUPS}")
        self.channels, width = channels, options.vq_width
        parts = _plain if options.vq_blocks == 0 else _residual
        self.encoder, self.decoder = parts(options, channels, int(halvings))
        self.before, self.after = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.codebook = nn.Embedding(options.vq_codes, width)
        self.codebook.weight.data.uniform_(-1 / options.vq_codes, 1 / options.vq_codes)
        if options.vq_critic:
            self.critic = nn.Sequential(
                nn.Linear(width * options.vq_side**2, CRITIC_WIDTH),
                nn.ReLU(),
                nn.Linear(CRITIC_WIDTH, CRITIC_WIDTH),
                nn.ReLU(),
                nn.Linear(CRITIC_WIDTH, 1),
            )

    def encode(self, frames: Tensor) -> EncodedFrames:
        """Return the latents and their nearest codes by squared distance."""
        latents = self.before(self.encoder(frames))
        flat, table = latents.movedim(1, -1), self.codebook.weight
        distances = table.square().sum(1) - 2 * flat.detach() @ table.detach().T
        tokens = distances.argmin(-1)
        codes = self.codebook(tokens).movedim(-1, 1)
        return EncodedFrames(latents, tokens, codes, latents + (codes - latents).detach())

    def decode(self, codes: Tensor) -> Tensor:
        """Return the frames (n, channels, side, side) of a grid of codes."""
        found: Tensor = self.decoder(self.after(codes))
        return found

    def decode_tokens(self, tokens: Tensor) -> Tensor:
        """Return the frames of tokens (n, count)."""
        side = round(tokens.shape[1] ** 0.5)
        codes = self.codebook(tokens.to(self.codebook.weight.device))
        return self.decode(codes.view(-1, side, side, codes.shape[-1]).movedim(-1, 1))

    def forward(self, frames: Tensor) -> EncodedFrames:
        """Encode and decode frames."""
        seen = self.encode(frames)
        return seen._replace(frames=self.decode(seen.passed))


def _plain(options: VqOptions, channels: int, halvings: int) -> tuple[nn.Module, nn.Module]:
    """Return plain convolutions with stride 2; those next to the image have half the channels."""
    between = [options.vq_channels // 2, *[options.vq_channels] * (halvings - 2)]
    widths = [channels, *between[: halvings - 1], options.vq_width]
    down: list[nn.Module] = []
    up: list[nn.Module] = []
    for outer, inner in pairwise(widths):
        down += [nn.Conv2d(outer, inner, 4, 2, 1), nn.ReLU()]
        up = [nn.ReLU(), nn.ConvTranspose2d(inner, outer, 4, 2, 1), *up]
    return nn.Sequential(*down), nn.Sequential(*up)


def _residual(options: VqOptions, channels: int, halvings: int) -> tuple[nn.Module, nn.Module]:
    """Return the published encoder and decoder for any number of blocks and levels."""
    width, blocks = options.vq_channels, options.vq_blocks
    sides = [options.vq_frame >> level for level in range(halvings + 1)]
    down: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1)]
    for side in sides:
        down += _level(width, blocks, side)
        if side != sides[-1]:
            down.append(nn.Conv2d(width, width, 3, 2, 1))
    down += [*_middle(width), *_ending(width, options.vq_width)]
    up: list[nn.Module] = [nn.Conv2d(options.vq_width, width, 3, 1, 1), *_middle(width)]
    for side in reversed(sides):
        up += _level(width, blocks + 1, side)
        if side != sides[0]:
            up += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, 1, 1)]
    up += _ending(width, channels)
    return nn.Sequential(*down), nn.Sequential(*up)


def _level(width: int, blocks: int, side: int) -> list[nn.Module]:
    """Return the blocks of one resolution, with attention at the published resolutions."""
    attended = side in (16, 8)
    found: list[nn.Module] = []
    for _ in range(blocks):
        found += [_Residual(width), *([_Attention(width)] if attended else [])]
    return found


def _middle(width: int) -> list[nn.Module]:
    return [_Residual(width), _Attention(width), _Residual(width)]


def _ending(width: int, out: int) -> list[nn.Module]:
    return [nn.GroupNorm(NORM_GROUPS, width), nn.SiLU(), nn.Conv2d(width, out, 3, 1, 1)]


class _Residual(nn.Module):
    """A residual branch of two convolutions, each after a norm and a swish."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_ending(width, width), *_ending(width, width))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = inputs + self.body(inputs)
        return found


class _Attention(nn.Module):
    """Self-attention of the places of a grid, with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(NORM_GROUPS, width)
        self.asked, self.joined = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        parts = self.asked(self.norm(inputs)).flatten(2).transpose(1, 2).chunk(3, dim=-1)
        found = functional.scaled_dot_product_attention(*parts)
        return inputs + self.joined(found.transpose(1, 2).view_as(inputs))


WINDOW, MEAN_CONSTANT, VARIANCE_CONSTANT = 7, 0.01**2, 0.03**2
"""Side of the SSIM window in pixels, and the standard constants for values from 0 to 1 (Wang et
al., 2004). The window is uniform."""


def perceptual_loss(frames: Tensor, made: Tensor) -> Tensor:
    """Return the L1 error of edges (differences of neighbours) plus 1 - SSIM.

    Args:
        frames: True frames (n, channels, side, side), from -1 to 1.
        made: Reconstructed frames of the same shape.
    """
    edges = sum((frames.diff(dim=axis) - made.diff(dim=axis)).abs().mean() for axis in (-2, -1))
    first, second = (frames + 1) / 2, (made + 1) / 2

    def mean(values: Tensor) -> Tensor:
        return functional.avg_pool2d(values, WINDOW, 1)

    one, other = mean(first), mean(second)
    spread = mean(first * first) - one**2 + mean(second * second) - other**2
    shared = mean(first * second) - one * other
    alike = (2 * one * other + MEAN_CONSTANT) / (one**2 + other**2 + MEAN_CONSTANT)
    alike = alike * (2 * shared + VARIANCE_CONSTANT) / (spread + VARIANCE_CONSTANT)
    found: Tensor = edges + 1 - alike.mean()
    return found


def _returns(rows: Dataset, discount: float) -> np.ndarray:
    """Return the discounted returns (2, rows) of the images before and after each action.

    They are NaN for the last images of episodes that did not terminate.
    """
    rewards, ends = rows.columns["rewards"], rows.columns["terminations"]
    found = np.full((2, len(rows)), np.nan, np.float32)
    order = np.argsort(rows.columns["episodes"], kind="stable")
    cuts = np.flatnonzero(np.diff(rows.columns["episodes"][order])) + 1
    # the returns of this many last images of an episode without an end are unknown, because too
    # many of their rewards are missing
    unknown_returns = 200
    for episode in np.split(order, cuts):
        total = 0.0
        known = len(episode) if ends[episode[-1]] else len(episode) - unknown_returns
        for step, row in reversed(list(enumerate(episode))):
            after, total = total, rewards[row] + discount * total
            if step < known:
                found[:, row] = total, after
    return found


def _psnr(made: np.ndarray, pictures: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB of values from 0 to 1, at most 99."""
    error = float(np.square(made - pictures, dtype=np.float64).mean())
    return float(min(-10 * np.log10(max(error, 1e-30)), 99.0))


def _chunks(values: Any) -> Iterator[Any]:
    for first in range(0, len(values), CHUNK):
        yield values[first : first + CHUNK]
