"""Sequence models of tokens and actions.

A frame is an observation as tokens. A block is a frame and the action after it. Each token
is predicted from all previous tokens and actions; the reward and the end from everything up to
the action.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cwm_neural.backbones import Backbone, Circuit


@dataclass(frozen=True)
class TokenSizes:
    """Numbers of tokens per frame, of different tokens, of actions, and of reward classes.

    `context` is the maximum number of frames that the model sees.
    """

    count: int
    vocabulary: int
    actions: int
    rewards: int
    context: int


class SegmentBatch(NamedTuple):
    """Segments of frames (batch, context, count), with actions and outcomes between the frames.

    All others are (batch, context - 1). `valid` (batch, context - 1, actions) is None if the
    environment names no valid actions. `mask` is False for padding.
    """

    frames: Tensor
    actions: Tensor
    rewards: Tensor
    ends: Tensor
    mask: Tensor
    valid: Tensor | None = None


class OutcomeLogits(NamedTuple):
    """Logits of reward classes, of the end of the episode, and of the validity of each action."""

    rewards: Tensor
    ends: Tensor
    valid: Tensor


class SequenceState(NamedTuple):
    """The state of sequences: memory, number of frames, and the last frame (batch, count)."""

    memory: Any
    frames: int
    last: Tensor


class FrameSequence(nn.Module):
    """Base class of sequence models: trained with `losses`, used with `begin` and `step`."""

    def __init__(self, sizes: TokenSizes, width: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.vocabulary, width)
        self.actions = nn.Embedding(sizes.actions, width)
        self.register_buffer("possible", torch.ones(sizes.count, sizes.vocabulary, dtype=bool))

    def logits(self, segments: SegmentBatch) -> tuple[Tensor, OutcomeLogits, Tensor | None]:
        """Return logits of all frames but the first (batch, context - 1, count, vocabulary).

        The second result is the logits of outcomes; the third the logits of the first frame, or
        None if the model does not predict it.
        """
        raise NotImplementedError

    def begin(
        self, frames: Tensor, actions: Tensor, skipped: Tensor | None = None
    ) -> SequenceState:
        """Return the state after frames (batch, n, count) with actions (batch, n - 1) between.

        `skipped` (batch,) is the number of padding frames at the start of each sequence.
        """
        raise NotImplementedError

    def step(
        self, state: SequenceState, actions: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, OutcomeLogits, SequenceState]:
        """Take actions (batch,), and return the next frames (batch, count), outcomes and state.

        With Gumbel `noise` (batch, count, vocabulary) tokens are sampled, else they are the most
        likely ones.
        """
        raise NotImplementedError

    def teacher_forced(self, state: SequenceState, actions: Tensor, after: Tensor) -> Tensor:
        """Return logits (batch, count, vocabulary) of the known next frames `after`."""
        raise NotImplementedError

    def keep(self, state: SequenceState, places: Tensor) -> SequenceState:
        """Return the state of the sequences at some indices."""
        raise NotImplementedError

    def losses(self, segments: SegmentBatch, *, first: bool = False) -> dict[str, Tensor]:
        """Return the cross-entropies of tokens, rewards, ends and valid actions.

        `first` includes the first frames of segments, as published.
        """
        logits, outcome, first_logits = self.logits(segments)
        mask = segments.mask
        parts = [(logits, segments.frames[:, 1:], mask[..., None])]
        if first and first_logits is not None:
            parts.append((first_logits, segments.frames[:, 0, 1:], mask[:, :1]))
        summed, counted = logits.new_zeros(()), logits.new_zeros(())
        for predicted, true, counts in parts:
            possible = predicted.gather(-1, true[..., None])[..., 0].isfinite() & counts
            found = functional.cross_entropy(
                predicted.flatten(0, -2), true.flatten(), reduction="none"
            )
            summed = summed + found[possible.flatten()].sum()
            counted = counted + possible.sum()
        found = {
            "tokens": summed / counted.clamp(min=1),
            "rewards": functional.cross_entropy(outcome.rewards[mask], segments.rewards[mask]),
            "ends": functional.cross_entropy(outcome.ends[mask], segments.ends[mask]),
        }
        if segments.valid is not None:
            found["valid"] = functional.binary_cross_entropy_with_logits(
                outcome.valid[mask], segments.valid[mask]
            )
        return found


class TokenSequence(FrameSequence):
    """Predicts one token after the other with a backbone that sees all previous tokens.

    `step` decodes all tokens of the next frame in parallel, from guesses, which are initially
    the tokens of the last frame. It repeats this from the first wrong guess on. Each pass makes at
    least one more token equal to the result of sequential decoding (Song et al., 2021); two passes
    usually suffice.

    With `near` (count, n), the model also receives, for each predicted token, the action and the
    tokens at these places in the frame before. Initially the token at the first place gets a
    bonus. So attention need not learn that most of a frame stays equal and that the rest
    depends on neighbours. Outcomes are then predicted with the last token instead of the first.
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

    def logits(self, segments: SegmentBatch) -> tuple[Tensor, OutcomeLogits, Tensor | None]:
        """Return logits of the tokens of frames, and of outcomes."""
        batch, steps = segments.actions.shape
        inputs = self._embed(segments.frames, segments.actions)
        found, _ = self.backbone(self._add_positions(inputs, 0, None))
        last = functional.pad(found, (0, 0, 0, 1)).view(batch, steps + 1, -1, found.shape[-1])
        acted = last[:, :-1, -1]
        seen = torch.cat([acted[:, :, None], last[:, 1:, :-2]], 2)
        logits = self._token_logits(seen, segments.frames[:, :-1], 0)
        outcome = self.outcomes(acted if self.earlier is None else seen[:, :, -1])
        return logits, outcome, self._token_logits(last[:, 0, :-2], None, 1)

    def begin(
        self, frames: Tensor, actions: Tensor, skipped: Tensor | None = None
    ) -> SequenceState:
        """Return the state after frames; the last token enters with the next step."""
        batch, count, size = frames.shape
        padding = None if skipped is None else skipped * (size + 1)
        memory = self.backbone.begin(batch, padding)
        inputs = self._embed(frames, actions, skipped)[:, :-1]
        if inputs.shape[1]:
            _, memory = self._run(inputs, 0, memory)
        return SequenceState(memory, count, frames[:, -1])

    def step(
        self, state: SequenceState, actions: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, OutcomeLogits, SequenceState]:
        """Take actions; only tokens after the first wrong guess are computed again."""
        last, memory, size = state.last, state.memory, self.sizes.count
        start = state.frames * (size + 1) - 2
        most = size - 1 if self.backbone.parallel else 0
        hints = None if self.earlier is None else self.earlier(last, self.actions(actions))
        inputs = self._step_inputs(last, actions, last[:, :most], hints)
        found, memory = self._run(inputs, start, memory)
        acted = found[:, 1]
        after = self._choose(found[:, 1:], last, 0, noise)
        while after.shape[1] < size:  # backbones that are not parallel
            place = after.shape[1]
            inputs = self._token_inputs(after[:, -1:], hints, place)
            found, memory = self._run(inputs, start + 1 + place, memory)
            after = torch.cat([after, self._choose(found, last, place, noise)], 1)
        wrong = (after != last)[:, :-1].any(0)
        while self.backbone.parallel and wrong.any():
            place = int(wrong.int().argmax())  # tokens up to here equal sequential decoding
            memory = self.backbone.rewind(memory, start + 2 + place)
            inputs = self._token_inputs(after[:, place:-1], hints, place + 1)
            found, memory = self._run(inputs, start + 2 + place, memory)
            guess, chosen = after, self._choose(found, last, place + 1, noise)
            after = torch.cat([after[:, : place + 1], chosen], 1)
            wrong = (after != guess)[:, :-1].any(0)
        outcome = self.outcomes(acted if hints is None else found[:, -1])
        return after, outcome, SequenceState(memory, state.frames + 1, after)

    def teacher_forced(self, state: SequenceState, actions: Tensor, after: Tensor) -> Tensor:
        """Return logits of the known next frames."""
        start = state.frames * (self.sizes.count + 1) - 2
        last = state.last
        hints = None if self.earlier is None else self.earlier(last, self.actions(actions))
        inputs = self._step_inputs(last, actions, after[:, :-1], hints)
        found, _ = self._run(inputs, start, state.memory)
        return self._token_logits(found[:, 1:], state.last, 0)

    def keep(self, state: SequenceState, places: Tensor) -> SequenceState:
        """Return the state of the sequences at some indices."""
        memory = self.backbone.keep(state.memory, places)
        return SequenceState(memory, state.frames, state.last[places])

    def _embed(self, frames: Tensor, actions: Tensor, skipped: Tensor | None = None) -> Tensor:
        """Return embeddings of frames (batch, n, count) and of actions (batch, n - 1) between."""
        found = self.tokens(frames)
        between = self.actions(actions)
        if self.earlier is not None:
            hints = self.earlier(frames[:, :-1], between)
            if skipped is not None:  # padding gives no hints
                real = torch.arange(actions.shape[1], device=frames.device) >= skipped[:, None]
                hints = hints * real[..., None, None]
            between = between + hints[:, :, 0]
            found = found + functional.pad(hints[:, :, 1:], (0, 0, 0, 1, 1, 0))
        blocks = torch.cat([found[:, :-1], between[:, :, None]], 2).flatten(1, 2)
        return torch.cat([blocks, found[:, -1]], 1)

    def _step_inputs(
        self, last: Tensor, actions: Tensor, after: Tensor, hints: Tensor | None
    ) -> Tensor:
        """Return inputs for the last token of a frame, an action, and the tokens that follow."""
        ended, acted = self.tokens(last[:, -1]), self.actions(actions)
        if hints is not None:
            acted = acted + hints[:, 0]
        return torch.cat([torch.stack([ended, acted], 1), self._token_inputs(after, hints, 1)], 1)

    def _token_inputs(self, tokens: Tensor, hints: Tensor | None, place: int) -> Tensor:
        """Return inputs for tokens; the first one is the input that predicts `place`."""
        found: Tensor = self.tokens(tokens)
        return found if hints is None else found + hints[:, place : place + tokens.shape[1]]

    def _run(self, inputs: Tensor, start: int, memory: Any) -> tuple[Tensor, Any]:
        """Run the backbone on inputs, which begin at position `start`."""
        found: tuple[Tensor, Any] = self.backbone(
            self._add_positions(inputs, start, memory.skipped), memory
        )
        return found

    def _add_positions(self, inputs: Tensor, start: int, padding: Tensor | None) -> Tensor:
        """Add position embeddings; positions count from the start of each sequence."""
        columns = torch.arange(start, start + inputs.shape[1], device=inputs.device)
        if self.backbone.length is None:
            columns = columns % (self.sizes.count + 1)
        elif padding is not None:
            columns = (columns - padding[:, None]).clamp(min=0)
        return inputs + self.positions(columns)

    def _token_logits(self, found: Tensor, last: Tensor | None, start: int) -> Tensor:
        """Return logits (..., n, vocabulary) of the tokens from place `start` on.

        `last` (..., count) are the tokens of the frame before. Impossible tokens get -inf.
        """
        places = slice(start, start + found.shape[-2])
        logits = self.following(found)
        if self.earlier is not None and last is not None:
            stays = self.earlier.stays(found)
            logits = logits.scatter_add(-1, last[..., places, None], stays)
        masked: Tensor = logits.masked_fill(~self.possible[places], float("-inf"))
        return masked

    def _choose(self, found: Tensor, last: Tensor, start: int, noise: Tensor | None) -> Tensor:
        """Return the next tokens from place `start` on."""
        logits = self._token_logits(found, last, start)
        if noise is not None:
            logits = logits + noise[:, start : start + found.shape[1]]
        return logits.argmax(-1)


class CircuitSequence(FrameSequence):
    """Predicts all tokens of a frame in one step, with recurrent circuits that read whole frames.

    The embeddings of the tokens of a frame and of its action are concatenated. Their total size is
    the number of inputs and of outputs of each circuit, which has half as many other neurons in
    addition. Tokens are sampled independently, as published.
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

    def logits(self, segments: SegmentBatch) -> tuple[Tensor, OutcomeLogits, Tensor | None]:
        """Return logits of frames and outcomes."""
        frames = segments.frames[:, :-1]
        found, _ = self._run(self._embed(frames, segments.actions), [None] * len(self.circuits))
        return self._token_logits(found, frames, segments.actions), self.outcomes(found), None

    def begin(
        self, frames: Tensor, actions: Tensor, skipped: Tensor | None = None
    ) -> SequenceState:
        """Return the state after frames; the last frame enters with the next action."""
        memory = [each.begin(len(frames), skipped) for each in self.circuits]
        if frames.shape[1] > 1:
            _, memory = self._run(self._embed(frames[:, :-1], actions), memory)
        return SequenceState(memory, frames.shape[1], frames[:, -1])

    def step(
        self, state: SequenceState, actions: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, OutcomeLogits, SequenceState]:
        """Take actions, in one step of the circuits."""
        logits, found, memory = self._advance(state, actions)
        after = (logits if noise is None else logits + noise).argmax(-1)
        state = SequenceState(memory, state.frames + 1, after)
        return after, self.outcomes(found[:, 0]), state

    def teacher_forced(self, state: SequenceState, actions: Tensor, after: Tensor) -> Tensor:
        """Return logits of the next frames, which do not depend on each other."""
        return self._advance(state, actions)[0]

    def keep(self, state: SequenceState, places: Tensor) -> SequenceState:
        """Return the state of the sequences at some indices."""
        pairs = zip(self.circuits, state.memory, strict=True)
        memory = [circuit.keep(each, places) for circuit, each in pairs]
        return SequenceState(memory, state.frames, state.last[places])

    def _advance(self, state: SequenceState, actions: Tensor) -> tuple[Tensor, Tensor, list[Any]]:
        """Return logits of the next frames, the output of the circuits, and the new memory."""
        last = state.last[:, None]
        found, memory = self._run(self._embed(last, actions[:, None]), state.memory)
        return self._token_logits(found, last, actions[:, None])[:, 0], found, memory

    def _embed(self, frames: Tensor, actions: Tensor) -> Tensor:
        """Return concatenated embeddings of frames and actions (batch, n, width)."""
        parts = torch.cat([self.tokens(frames), self.actions(actions)[:, :, None]], 2)
        return parts.flatten(2)

    def _run(self, inputs: Tensor, memory: list[Any]) -> tuple[Tensor, list[Any]]:
        """Run the circuits on inputs."""
        memories = []
        for norm, circuit, known in zip(self.norms, self.circuits, memory, strict=True):
            inputs, after = circuit(norm(inputs), known)
            inputs = self.drop(inputs)
            memories.append(after)
        return inputs, memories

    def _token_logits(self, found: Tensor, frames: Tensor, actions: Tensor) -> Tensor:
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
    """Encodes, for each place, the nearby tokens of the frame before, and the action."""

    def __init__(self, sizes: TokenSizes, near: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("near", near)
        nearby = 16  # size of the embedding of a neighbouring token; a grid has few kinds of cells
        self.tokens = nn.Embedding(sizes.vocabulary, nearby)
        self.joined = nn.Linear(near.shape[1] * nearby, width)
        self.stays = nn.Linear(width, 1)
        nn.init.constant_(self.stays.bias, 4.0)  # the token before is e^4 (about 50) times likelier

    def forward(self, frames: Tensor, actions: Tensor) -> Tensor:
        """Return codes (..., count, width) of frames (..., count) and embedded actions."""
        tokens = self.tokens(frames)[..., self.near.clamp(min=0), :]
        tokens = tokens * (self.near >= 0)[..., None]
        joined: Tensor = self.joined(tokens.flatten(-2)) + actions[..., None, :]
        return joined


class OutcomeHeads(nn.Module):
    """Heads for rewards, ends and valid actions."""

    def __init__(self, width: int, sizes: TokenSizes) -> None:
        super().__init__()
        self.rewards = _head(width, width, sizes.rewards)
        self.ends = _head(width, width, 2)
        self.valid = nn.Linear(width, sizes.actions)

    def forward(self, acted: Tensor) -> OutcomeLogits:
        """Return logits from the features of the token after the action."""
        return OutcomeLogits(self.rewards(acted), self.ends(acted), self.valid(acted))


def _head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def initialise(model: nn.Module) -> None:
    """Draw initial weights of layers and embeddings, as published."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
