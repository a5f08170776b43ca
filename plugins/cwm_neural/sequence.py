"""Sequence models of tokens and actions: what they are, how they are taught, how they go on.

A frame is an observation as tokens; a frame and the action that was taken are a block. Each token
is predicted from all that came before it, the reward and the end from all up to the action.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cwm_neural.backbones import Backbone, Circuit

DEVIATION = 0.02
"""Standard deviation of initial weights, as published."""

NEARBY = 16
"""Numbers that stand for a token near by: a grid has few kinds of cells."""

STAYS = 4.0
"""What is added at first to the logit of a token that stays: e to it is about 50 to 1."""


@dataclass(frozen=True)
class TokenSizes:
    """How many tokens a frame has and how many there are; actions, and classes of rewards.

    `context` is how many frames are seen at most.
    """

    count: int
    vocabulary: int
    actions: int
    rewards: int
    context: int


class Taught(NamedTuple):
    """Segments of frames (batch, context, count), and what was done and came about between them.

    The others are (batch, context - 1); `valid` (batch, context - 1, actions) only where the
    environment says so. What is not in the `mask` is padding.
    """

    frames: Tensor
    actions: Tensor
    rewards: Tensor
    ends: Tensor
    mask: Tensor
    valid: Tensor | None = None


class OutcomeLogits(NamedTuple):
    """Logits of what comes with a step: reward classes, no end or an end, each action is valid."""

    rewards: Tensor
    ends: Tensor
    valid: Tensor


class SequenceState(NamedTuple):
    """Where sequences stand: after how many frames, the last of them, and what is remembered."""

    memory: Any
    frames: int
    last: Tensor


class FrameSequence(nn.Module):
    """The face of sequence models: taught by `losses`, asked by `begin` and `step`."""

    def __init__(self, sizes: TokenSizes, width: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.vocabulary, width)
        self.actions = nn.Embedding(sizes.actions, width)
        self.register_buffer("possible", torch.ones(sizes.count, sizes.vocabulary, dtype=bool))

    def logits(self, taught: Taught) -> tuple[Tensor, OutcomeLogits, Tensor | None]:
        """Return logits of all frames but the first (batch, context - 1, count, vocabulary).

        With them come those of outcomes, and of the first frame where it is predicted, too.
        """
        raise NotImplementedError

    def begin(
        self, frames: Tensor, actions: Tensor, skipped: Tensor | None = None
    ) -> SequenceState:
        """Stand behind some frames (batch, n, count), between which actions (batch, n - 1) lie.

        `skipped` (batch,) says how many of the first frames of each are padding.
        """
        raise NotImplementedError

    def step(
        self, standing: SequenceState, actions: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, OutcomeLogits, SequenceState]:
        """Take actions (batch,); return the frames (batch, count) that follow.

        With Gumbel `noise` (batch, count, vocabulary) tokens are drawn, else each is the likeliest.
        """
        raise NotImplementedError

    def told(self, standing: SequenceState, actions: Tensor, after: Tensor) -> Tensor:
        """Return logits (batch, count, vocabulary) of known frames, tokens behind the true ones."""
        raise NotImplementedError

    def keep(self, standing: SequenceState, places: Tensor) -> SequenceState:
        """Return where some of the sequences stand."""
        raise NotImplementedError

    def losses(self, taught: Taught, *, first: bool = False) -> dict[str, Tensor]:
        """Return the cross-entropies: of tokens, of rewards, of ends, of valid actions.

        `first` adds the first frames of segments to the tokens, as published.
        """
        logits, outcome, begun = self.logits(taught)
        mask = taught.mask
        parts = [(logits, taught.frames[:, 1:], mask[..., None])]
        if first and begun is not None:
            parts.append((begun, taught.frames[:, 0, 1:], mask[:, :1]))
        summed, counted = logits.new_zeros(()), logits.new_zeros(())
        for said, true, counts in parts:
            open_to = said.gather(-1, true[..., None])[..., 0].isfinite() & counts
            found = functional.cross_entropy(said.flatten(0, -2), true.flatten(), reduction="none")
            summed = summed + found[open_to.flatten()].sum()
            counted = counted + open_to.sum()
        found = {
            "tokens": summed / counted.clamp(min=1),
            "rewards": functional.cross_entropy(outcome.rewards[mask], taught.rewards[mask]),
            "ends": functional.cross_entropy(outcome.ends[mask], taught.ends[mask]),
        }
        if taught.valid is not None:
            found["valid"] = functional.binary_cross_entropy_with_logits(
                outcome.valid[mask], taught.valid[mask]
            )
        return found


class TokenSequence(FrameSequence):
    """Predicts one token after the other, by a backbone that sees each of them.

    For a step all tokens of the next frame are found at once, behind guesses, the first of which
    are those of the last frame; and again, from the first wrong guess on. Each time one more token
    at least is as it would have been one by one (Song et al., 2021); most often two passes do.

    With `near` (count, n), whatever a token is predicted from comes with the action, and with the
    tokens that these places had in the frame before, of which the first is the likeliest one at
    first: that most of a frame stays as it was, and the rest follows from what is near, need not be
    found by attention. Outcomes are predicted with the last token then, not with the first.
    """

    def __init__(self, sizes: TokenSizes, backbone: Backbone, near: Tensor | None = None) -> None:
        width = backbone.width
        super().__init__(sizes, width)
        self.backbone = backbone
        block = sizes.count + 1
        self.positions = nn.Embedding(backbone.length or block, width)
        self.following = _head(width, width, sizes.vocabulary)
        self.outcomes = OutcomeHeads(width, sizes)
        self.earlier = None if near is None else _Earlier(sizes, near, width)
        if self.earlier is None:
            initialise(self)

    def logits(self, taught: Taught) -> tuple[Tensor, OutcomeLogits, Tensor | None]:
        """Return logits of the tokens of frames, and of outcomes."""
        batch, steps = taught.actions.shape
        inputs = self._embedded(taught.frames, taught.actions)
        found, _ = self.backbone(self._placed(inputs, 0, None))
        last = functional.pad(found, (0, 0, 0, 1)).view(batch, steps + 1, -1, found.shape[-1])
        acted = last[:, :-1, -1]
        seen = torch.cat([acted[:, :, None], last[:, 1:, :-2]], 2)
        logits = self._next(seen, taught.frames[:, :-1], 0)
        outcome = self.outcomes(acted if self.earlier is None else seen[:, :, -1])
        return logits, outcome, self._next(last[:, 0, :-2], None, 1)

    def begin(
        self, frames: Tensor, actions: Tensor, skipped: Tensor | None = None
    ) -> SequenceState:
        """Stand behind frames; the last token is seen with what follows it."""
        batch, count, size = frames.shape
        padding = None if skipped is None else skipped * (size + 1)
        memory = self.backbone.begin(batch, padding)
        inputs = self._embedded(frames, actions, skipped)[:, :-1]
        if inputs.shape[1]:
            _, memory = self._run(inputs, 0, memory)
        return SequenceState(memory, count, frames[:, -1])

    def step(
        self, standing: SequenceState, actions: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, OutcomeLogits, SequenceState]:
        """Take actions; what was guessed right is not asked again."""
        last, memory, size = standing.last, standing.memory, self.sizes.count
        start = standing.frames * (size + 1) - 2
        most = size - 1 if self.backbone.parallel else 0
        hints = None if self.earlier is None else self.earlier(last, self.actions(actions))
        inputs = self._following(last, actions, last[:, :most], hints)
        guess = last
        found, memory = self._run(inputs, start, memory)
        acted = found[:, 1]
        after = self._chosen(found[:, 1:], last, 0, noise)
        if not self.backbone.parallel:
            while after.shape[1] < size:
                place = after.shape[1]
                inputs = self._behind(after[:, -1:], hints, place)
                found, memory = self._run(inputs, start + 1 + place, memory)
                after = torch.cat([after, self._chosen(found, last, place, noise)], 1)
            outcome = self.outcomes(acted if hints is None else found[:, -1])
            return after, outcome, SequenceState(memory, standing.frames + 1, after)
        wrong = (after != guess)[:, :-1].any(0)
        while wrong.any():
            place = int(wrong.int().argmax())  # all tokens up to here are as one by one
            memory = self.backbone.rewind(memory, start + 2 + place)
            inputs = self._behind(after[:, place:-1], hints, place + 1)
            found, memory = self._run(inputs, start + 2 + place, memory)
            guess, chosen = after, self._chosen(found, last, place + 1, noise)
            after = torch.cat([after[:, : place + 1], chosen], 1)
            wrong = (after != guess)[:, :-1].any(0)
        outcome = self.outcomes(acted if hints is None else found[:, -1])
        return after, outcome, SequenceState(memory, standing.frames + 1, after)

    def told(self, standing: SequenceState, actions: Tensor, after: Tensor) -> Tensor:
        """Return logits of known frames."""
        start = standing.frames * (self.sizes.count + 1) - 2
        last = standing.last
        hints = None if self.earlier is None else self.earlier(last, self.actions(actions))
        inputs = self._following(last, actions, after[:, :-1], hints)
        found, _ = self._run(inputs, start, standing.memory)
        return self._next(found[:, 1:], standing.last, 0)

    def keep(self, standing: SequenceState, places: Tensor) -> SequenceState:
        """Return where some of the sequences stand."""
        memory = self.backbone.keep(standing.memory, places)
        return SequenceState(memory, standing.frames, standing.last[places])

    def _embedded(self, frames: Tensor, actions: Tensor, skipped: Tensor | None = None) -> Tensor:
        """Return what stands for frames (batch, n, count) and actions between (batch, n - 1)."""
        found = self.tokens(frames)
        between = self.actions(actions)
        if self.earlier is not None:
            hints = self.earlier(frames[:, :-1], between)
            if skipped is not None:  # what is padding tells nothing
                real = torch.arange(actions.shape[1], device=frames.device) >= skipped[:, None]
                hints = hints * real[..., None, None]
            between = between + hints[:, :, 0]
            found = found + functional.pad(hints[:, :, 1:], (0, 0, 0, 1, 1, 0))
        blocks = torch.cat([found[:, :-1], between[:, :, None]], 2).flatten(1, 2)
        return torch.cat([blocks, found[:, -1]], 1)

    def _following(
        self, last: Tensor, actions: Tensor, after: Tensor, hints: Tensor | None
    ) -> Tensor:
        """Return what stands for the end of a frame, an action, and the tokens that follow."""
        ended, acted = self.tokens(last[:, -1]), self.actions(actions)
        if hints is not None:
            acted = acted + hints[:, 0]
        return torch.cat([torch.stack([ended, acted], 1), self._behind(after, hints, 1)], 1)

    def _behind(self, tokens: Tensor, hints: Tensor | None, place: int) -> Tensor:
        """Return what stands for tokens, from the first of which a place is predicted."""
        found: Tensor = self.tokens(tokens)
        return found if hints is None else found + hints[:, place : place + tokens.shape[1]]

    def _run(self, inputs: Tensor, start: int, memory: Any) -> tuple[Tensor, Any]:
        """Go on with inputs, the first of them at a position."""
        padding = self.backbone.padding(memory)
        found: tuple[Tensor, Any] = self.backbone(self._placed(inputs, start, padding), memory)
        return found

    def _placed(self, inputs: Tensor, start: int, padding: Tensor | None) -> Tensor:
        """Add what stands for positions, counted from where each sequence begins."""
        columns = torch.arange(start, start + inputs.shape[1], device=inputs.device)
        if self.backbone.length is None:
            columns = columns % (self.sizes.count + 1)
        elif padding is not None:
            columns = (columns - padding[:, None]).clamp(min=0)
        return inputs + self.positions(columns)

    def _next(self, found: Tensor, last: Tensor | None, start: int) -> Tensor:
        """Return the logits of tokens (..., n, vocabulary), the first of them at a place.

        `last` (..., count) are the tokens of the frame before; what cannot be at a place is not.
        """
        places = slice(start, start + found.shape[-2])
        logits = self.following(found)
        if self.earlier is not None and last is not None:
            stays = self.earlier.stays(found)
            logits = logits.scatter_add(-1, last[..., places, None], stays)
        masked: Tensor = logits.masked_fill(~self.possible[places], float("-inf"))
        return masked

    def _chosen(self, found: Tensor, last: Tensor, start: int, noise: Tensor | None) -> Tensor:
        """Return the tokens that follow, the first of them at a place of the frame."""
        logits = self._next(found, last, start)
        if noise is not None:
            logits = logits + noise[:, start : start + found.shape[1]]
        return logits.argmax(-1)


class CircuitSequence(FrameSequence):
    """Predicts all tokens of a frame at once, by recurrent circuits that see a frame at a time.

    What stands for the tokens of a frame, and for the action, lies side by side: so many numbers
    are the inputs and the outputs of each circuit, which has half as many neurons more. Tokens are
    drawn each by itself, as published.
    """

    def __init__(
        self,
        sizes: TokenSizes,
        embedding: int,
        *,
        circuits: int,
        dropout: float,
        near: Tensor | None = None,
    ) -> None:
        super().__init__(sizes, embedding)
        width = (sizes.count + 1) * embedding
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(circuits))
        self.circuits = nn.ModuleList(
            Circuit(width=width, units=width * 3 // 2) for _ in range(circuits)
        )
        self.drop = nn.Dropout(dropout)
        self.earlier = None if near is None else _Earlier(sizes, near, embedding)
        self.following = _head(embedding, 4 * embedding, sizes.vocabulary)
        self.outcomes = OutcomeHeads(width, sizes)

    def logits(self, taught: Taught) -> tuple[Tensor, OutcomeLogits, Tensor | None]:
        """Return logits of frames, and of outcomes."""
        frames = taught.frames[:, :-1]
        found, _ = self._run(self._embedded(frames, taught.actions), [None] * len(self.circuits))
        return self._next(found, frames, taught.actions), self.outcomes(found), None

    def begin(
        self, frames: Tensor, actions: Tensor, skipped: Tensor | None = None
    ) -> SequenceState:
        """Stand behind frames, the last of which is seen with the action that follows it."""
        memory = [each.begin(len(frames), skipped) for each in self.circuits]
        if frames.shape[1] > 1:
            _, memory = self._run(self._embedded(frames[:, :-1], actions), memory)
        return SequenceState(memory, frames.shape[1], frames[:, -1])

    def step(
        self, standing: SequenceState, actions: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, OutcomeLogits, SequenceState]:
        """Take actions."""
        logits, found, memory = self._after(standing, actions)
        after = (logits if noise is None else logits + noise).argmax(-1)
        state = SequenceState(memory, standing.frames + 1, after)
        return after, self.outcomes(found[:, 0]), state

    def told(self, standing: SequenceState, actions: Tensor, after: Tensor) -> Tensor:
        """Return logits of known frames."""
        return self._after(standing, actions)[0]

    def keep(self, standing: SequenceState, places: Tensor) -> SequenceState:
        """Return where some of the sequences stand."""
        pairs = zip(self.circuits, standing.memory, strict=True)
        memory = [circuit.keep(each, places) for circuit, each in pairs]
        return SequenceState(memory, standing.frames, standing.last[places])

    def _after(self, standing: SequenceState, actions: Tensor) -> tuple[Tensor, Tensor, list[Any]]:
        """Return logits of what follows, with what they come from, and the memory then."""
        last = standing.last[:, None]
        found, memory = self._run(self._embedded(last, actions[:, None]), standing.memory)
        return self._next(found, last, actions[:, None])[:, 0], found, memory

    def _embedded(self, frames: Tensor, actions: Tensor) -> Tensor:
        """Return frames and actions side by side (batch, n, width)."""
        parts = torch.cat([self.tokens(frames), self.actions(actions)[:, :, None]], 2)
        return parts.flatten(2)

    def _run(self, inputs: Tensor, memory: list[Any]) -> tuple[Tensor, list[Any]]:
        """Go on with inputs."""
        kept = []
        for norm, circuit, known in zip(self.norms, self.circuits, memory, strict=True):
            inputs, after = circuit(norm(inputs), known)
            inputs = self.drop(inputs)
            kept.append(after)
        return inputs, kept

    def _next(self, found: Tensor, frames: Tensor, actions: Tensor) -> Tensor:
        """Return logits of all tokens of the next frames."""
        each = found.unflatten(-1, (self.sizes.count + 1, -1))[:, :, :-1]
        if self.earlier is None:
            logits = self.following(each)
        else:
            each = each + self.earlier(frames, self.actions(actions))
            logits = self.following(each).scatter_add(
                -1, frames[..., None], self.earlier.stays(each)
            )
        masked: Tensor = logits.masked_fill(~self.possible, float("-inf"))
        return masked


class _Earlier(nn.Module):
    """What a place is told of the frame before: the tokens near it, and the action."""

    def __init__(self, sizes: TokenSizes, near: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("near", near)
        self.tokens = nn.Embedding(sizes.vocabulary, NEARBY)
        self.joined = nn.Linear(near.shape[1] * NEARBY, width)
        self.stays = nn.Linear(width, 1)
        nn.init.constant_(self.stays.bias, STAYS)

    def forward(self, frames: Tensor, actions: Tensor) -> Tensor:
        """Return for frames (..., count), and actions as embedded, what is told (..., count, w)."""
        tokens = self.tokens(frames)[..., self.near.clamp(min=0), :]
        tokens = tokens * (self.near >= 0)[..., None]
        joined: Tensor = self.joined(tokens.flatten(-2)) + actions[..., None, :]
        return joined


class OutcomeHeads(nn.Module):
    """The heads of what comes with a step."""

    def __init__(self, width: int, sizes: TokenSizes) -> None:
        super().__init__()
        self.rewards = _head(width, width, sizes.rewards)
        self.ends = _head(width, width, 2)
        self.valid = nn.Linear(width, sizes.actions)

    def forward(self, acted: Tensor) -> OutcomeLogits:
        """Return logits from what is known where an action was taken."""
        return OutcomeLogits(self.rewards(acted), self.ends(acted), self.valid(acted))


def _head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return a network of two layers."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def initialise(model: nn.Module) -> None:
    """Draw the weights of layers and embeddings as published."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=DEVIATION)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def weights_of_layers(model: nn.Module) -> Iterator[Tensor]:
    """Yield what weight decay is for: weights of linear layers, and nothing else."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield module.weight
