"""Training, evaluation and saved states of world models of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cwm_cli.errors import CwmError
from cwm_neural.grid import GridTokenizer
from cwm_neural.sampling import EpisodeSampler
from cwm_neural.sequence import FrameSequence, SegmentBatch, TokenSizes
from cwm_neural.states import drawing, finite, save_state, saved_state, shape_of
from cwm_neural.token_options import TokenOptions
from cwm_neural.token_world import (
    SIGNS,
    ActionCodes,
    TokenEpisodes,
    TokenRows,
    TokenWorld,
)
from cwm_neural.tokens import Codes, Tokenizer
from cwm_neural.training.trainer import Training, TrainingTask

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset

MIN_FRAMES = 2
"""Minimum frames of a context: one that the model sees, and the predicted one."""

OPEN_LOOP = 5
"""Steps of the open-loop measure: the model continues from its own predictions."""


class TokenTraining(Training):
    """A tokenizer, and a sequence model of its tokens, which `make_network` returns."""

    model: TokenWorld

    def __init__(
        self,
        options: TokenOptions,
        task: TrainingTask,
        make_network: Callable[[TokenSizes, Tensor], FrameSequence],
    ) -> None:
        self._options, self._task = options, task
        self._tokenizer = _tokenizer(options, task)
        actions = ActionCodes(task.action_space)
        rewards = Codes(len(SIGNS) if options.signs else options.reward_classes)
        rewards.values = np.array(SIGNS) if options.signs else rewards.values
        # without images one observation usually determines the state
        by_default = options.pictures if task.observation_space.is_picture else MIN_FRAMES
        sizes = TokenSizes(
            self._tokenizer.count,
            self._tokenizer.vocabulary,
            actions.count,
            rewards.most,
            max(options.context, MIN_FRAMES) if options.context else by_default,
        )
        with drawing(task.seed):
            network = make_network(sizes, self._tokenizer.near).to(task.device)
        self.model = TokenWorld(
            options.name,
            network,
            self._tokenizer,
            task.observation_space,
            actions,
            rewards,
            min(options.refilled or sizes.context // 2, sizes.context - 1),
        )
        layers = (each for each in network.modules() if isinstance(each, torch.nn.Linear))
        decayed = {id(each.weight) for each in layers}
        trained = [each for each in network.parameters() if each.requires_grad]
        groups = [
            {
                "params": [each for each in trained if id(each) in decayed],
                "weight_decay": options.decay,
            },
            {
                "params": [each for each in trained if id(each) not in decayed],
                "weight_decay": 0.0,
            },
        ]
        self._optimiser = torch.optim.AdamW([g for g in groups if g["params"]], options.rate)
        self._steps = self._updates = self._tokenizer_updates = 0
        self._counts = torch.zeros(sizes.count, sizes.vocabulary, dtype=torch.int64)
        self._frozen: set[str] = set()

    @property
    def parameters(self) -> Mapping[str, int]:
        """The number of parameters of the tokenizer, if any, and of the sequence model."""
        count = sum(each.numel() for each in self.model.network.parameters())
        own = self._tokenizer.parameters
        return ({"tokenizer": own} if own else {}) | {"sequence": count}

    def adopt(self, part: str, folder: Path) -> None:
        """Copy the tokenizer, the sequence model, or both (`model`) from a saved training."""
        if part not in ("model", "tokenizer", "sequence"):
            raise self._unknown(part)
        if part != "sequence":
            with saved_state(folder, "tokenizer", self._shape("tokenizer")) as tokenizer:
                self._tokenizer.restore(tokenizer)
        if part != "tokenizer":
            with saved_state(folder, "sequence", self._shape("sequence")) as state:
                self.model.network.load_state_dict(state["network"])
                self._restore_facts(state)

    def freeze(self, part: str) -> None:
        """Stop fitting the tokenizer, the sequence model, or both (`model`)."""
        if part not in ("model", "tokenizer", "sequence"):
            raise self._unknown(part)
        self._frozen |= {"tokenizer", "sequence"} if part == "model" else {part}

    def fit(self, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Fit the tokenizer, and then the sequence model to its tokens."""
        self._steps += steps
        options, losses = self._options, dict[str, float]()
        if "tokenizer" not in self._frozen:
            due = int(self._steps * options.tokenizer_updates) - self._tokenizer_updates
            self._tokenizer_updates += due
            losses |= self._tokenizer.fit(rows, due)
        due = int((self._steps - options.model_from) * options.updates) - self._updates
        if not options.signs:
            self.model.rewards.fit(rows.columns["rewards"])
        self.model.valid = rows.has_valid_actions
        data = self._data(rows)
        if due <= 0 or "sequence" in self._frozen:
            return losses
        with drawing(self._task.seed * 1_000_003 + self._updates):  # the seed of dropout
            return losses | self._learn(rows, data, due)

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Return the accuracy of tokens, rewards and ends, and of trivial predictions.

        The baseline `copy` predicts no change, `unigram` the most frequent token of each place.
        `exact` is the fraction of frames without a wrong token, `exact_5` after five steps in the
        model itself.
        """
        found = dict(self._tokenizer.measure(rows))
        world = self.model
        data = world.tensors(rows)
        places, skipped = world.contexts(data.follows)
        # number of tokens that `measure` evaluates, which takes about as long as ten updates
        measured_tokens = 1 << 13
        count = max(measured_tokens // (self._sizes.count * places.shape[1]), 64)
        chosen = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))
        after, before = data.after[chosen], data.before[chosen]
        changed = after != before
        episodes = TokenEpisodes(
            world,
            data.before[places[chosen]],
            data.actions[places[chosen]][:, :-1],
            skipped[chosen],
        )
        step = episodes.advance(data.actions[chosen], None)
        logits = self._teacher_forced(data, places[chosen], skipped[chosen])
        loss = functional.cross_entropy(logits.flatten(0, 1), after.flatten(), reduction="none")
        possible = loss.isfinite()
        shares = (self._counts + 1) / (self._counts + 1).sum(1, keepdim=True)
        trivial = -shares.log()[torch.arange(self._sizes.count), after]
        right = logits.argmax(-1) == after
        found |= {
            "token_loss": float(loss[possible].mean()) if possible.any() else 0.0,
            "unigram_loss": float(trivial.mean()),
            "token_accuracy": float(right.float().mean()),
            "copy_accuracy": float((~changed).float().mean()),
            "unigram_accuracy": float((self._counts.argmax(1) == after).float().mean()),
            "exact": float((step.frames == after).all(1).float().mean()),
            "copy_exact": float((~changed).all(1).float().mean()),
        }
        if changed.any():
            found["changed_accuracy"] = float(right[changed].float().mean())
        rewards = data.rewards[chosen]
        common = int(data.rewards.mode().values)
        found |= {
            f"{name}_f1": _f1(predicted, true, usual)
            for name, predicted, true, usual in (
                ("reward", step.rewards, rewards, common),
                ("end", step.ends, data.ends[chosen], 0),
            )
            if (true != usual).any()
        }
        return found | self._open_loop(data)

    def illustrate(self, rows: Dataset, folder: Path) -> None:
        """Write reconstructed images and imagined episodes."""
        if self._task.observation_space.is_picture:
            from cwm_neural.reconstructing import illustrate

            illustrate(self.model, rows, folder, frame=self._options.vq_frame)

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the sequence model to separate files."""
        save_state(folder, "tokenizer", self._shape("tokenizer"), self._tokenizer.state())
        state = {
            "network": self.model.network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "counts": [self._steps, self._updates, self._tokenizer_updates],
            "by_chance": self.model.by_chance,
            "valid": self.model.valid,
            "rewards": self.model.rewards.state(),
            "met": self._counts,
        }
        save_state(folder, "sequence", self._shape("sequence"), state)

    def load(self, folder: Path) -> None:
        """Restore the result of `save`."""
        with (
            saved_state(folder, "tokenizer", self._shape("tokenizer")) as tokenizer,
            saved_state(folder, "sequence", self._shape("sequence")) as state,
        ):
            self._tokenizer.restore(tokenizer)
            self.model.network.load_state_dict(state["network"])
            self._optimiser.load_state_dict(state["optimiser"])
            self._steps, self._updates, self._tokenizer_updates = state["counts"]
            self._restore_facts(state)

    @property
    def _sizes(self) -> TokenSizes:
        return self.model.network.sizes

    def _restore_facts(self, state: Mapping[str, Any]) -> None:
        """Restore the facts about rows that are not parameters of the network."""
        self.model.by_chance, self.model.valid = state["by_chance"], state["valid"]
        self.model.rewards.restore(state["rewards"])
        self._counts = state["met"]

    def _shape(self, part: str) -> dict[str, Any]:
        """Return the shape that a loaded part must have."""
        if part == "tokenizer":
            seen = {"observations": self._task.observation_space.to_json()}
            return seen | self._tokenizer.sizes
        more = {"network": self._options.network(), "sizes": vars(self._sizes)}
        return shape_of(self._task, self._options, **more)

    def _unknown(self, part: str) -> CwmError:
        return CwmError(f"this model has no part {part!r}: choose model, tokenizer or sequence")

    def _data(self, rows: Dataset) -> TokenRows:
        """Return rows as tensors, and update the facts that the model keeps about rows."""
        data = self.model.tensors(rows)
        network = self.model.network
        if (possible := self._tokenizer.possible) is not None:
            network.possible.copy_(possible)
        self._met = torch.stack(
            [each.bincount(minlength=self._sizes.vocabulary) for each in data.after.T]
        )
        after = torch.cat([data.after, data.rewards[:, None], data.ends[:, None]], 1).numpy()
        outcomes: dict[bytes, bytes] = {}
        pairs = zip(rows.situations(), after, strict=True)
        self.model.by_chance = not self.model.remembers and any(
            outcomes.setdefault(situation, each.tobytes()) != each.tobytes()
            for situation, each in pairs
        )
        return data

    def _learn(self, rows: Dataset, data: TokenRows, updates: int) -> dict[str, float]:
        """Make gradient steps on random segments, and return the mean losses."""
        options, network, sizes = self._options, self.model.network, self._sizes
        sampler = EpisodeSampler(rows, recent=options.recent)
        length = sizes.context * (sizes.count + 1)
        max_segments = 256  # maximum segments per update, even if segments are short
        count = min(max(options.batch_tokens // length, 1), max_segments)
        sums: dict[str, float] = defaultdict(float)
        device = self.model.device
        network.train()
        for _ in range(updates):
            rng = np.random.default_rng([self._task.seed, self._updates])
            places, mask = sampler.draw(rng, count, sizes.context - 1)
            losses = network.losses(_segments(data, places, mask, device), first=options.whole)
            self._updates += 1
            for name, loss in finite(
                {name: loss.detach() for name, loss in losses.items()}, self._updates
            ).items():
                sums[name] += loss / updates
            self._optimiser.zero_grad()
            sum(losses.values(), torch.zeros((), device=device)).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), options.clip)
            self._optimiser.step()
        network.eval()
        return dict(sums)

    def _teacher_forced(self, data: TokenRows, places: Tensor, skipped: Tensor) -> Tensor:
        """Return logits of the frames after some rows, given the true previous tokens."""
        network, found = self.model.network, []
        parts = (data.before[places], data.actions[places], skipped, data.after[places[:, -1]])
        with torch.no_grad():
            for part in zip(*(each.split(16) for each in parts), strict=True):
                frames, actions, left, after = (each.to(self.model.device) for each in part)
                state = network.begin(frames, actions[:, :-1], left)
                found.append(network.teacher_forced(state, actions[:, -1], after).cpu())
        return torch.cat(found)

    def _open_loop(self, data: TokenRows) -> dict[str, float]:
        """Return the fraction of exact frames after `OPEN_LOOP` steps in the model itself."""
        goes_on = np.append(data.follows[1:], False)
        runs = goes_on.copy()
        for ahead in range(1, OPEN_LOOP - 1):
            runs[:-ahead] &= goes_on[ahead:]
            runs[-ahead:] = False
        starts = np.flatnonzero(runs)[:: max(int(runs.sum()) // 64, 1)][:64]
        if not len(starts):
            return {}
        places, skipped = self.model.contexts(data.follows)
        found = TokenEpisodes(
            self.model,
            data.before[places[starts]],
            data.actions[places[starts]][:, :-1],
            skipped[starts],
        )
        for ahead in range(OPEN_LOOP):
            step = found.advance(data.actions[starts + ahead], None)
        right = (step.frames == data.after[starts + OPEN_LOOP - 1]).all(1)
        return {f"exact_{OPEN_LOOP}": float(right.float().mean())}


def _tokenizer(options: TokenOptions, task: TrainingTask) -> Tokenizer:
    """Return the chosen tokenizer, or the default for the space."""
    space, kind = task.observation_space, options.tokenizer
    if kind == "auto":
        kind = "vq" if space.is_picture else "grid"
    if kind == "vq":
        if not space.is_picture:
            raise CwmError("--tokenizer vq is for pictures: choose --tokenizer grid here")
        from cwm_neural.vq import VqTokenizer

        return VqTokenizer(
            space, options, seed=task.seed, device=task.device, trains=not task.restores
        )
    if any(leaf.space.is_picture for leaf in space.leaves("")):
        raise CwmError("--tokenizer grid is not for pictures: choose --tokenizer vq")
    return GridTokenizer(space, task.schema, contents=options.contents, codes=options.codes)


def _segments(
    data: TokenRows, places: np.ndarray, mask: np.ndarray, device: torch.device
) -> SegmentBatch:
    """Return sampled segments, masked from the first row that does not follow the one before."""
    goes_on = data.follows[places[:, 1:]] | ~mask[:, 1:]
    whole = np.logical_and.accumulate(goes_on, axis=1)
    mask = mask & np.concatenate([mask[:, :1], whole], axis=1)
    chosen = torch.from_numpy(places)
    frames = torch.cat([data.before[chosen[:, :1]], data.after[chosen]], 1)
    return SegmentBatch(
        frames.to(device),
        data.actions[chosen].to(device),
        data.rewards[chosen].to(device),
        data.ends[chosen].to(device),
        torch.from_numpy(mask).to(device),
        None if data.valid is None else data.valid[chosen].to(device),
    )


def _f1(predicted: Tensor, true: Tensor, usual: int) -> float:
    """Return the F1 score of values other than `usual`."""
    hits = ((predicted == true) & (true != usual)).sum()
    return float(2 * hits / ((predicted != usual).sum() + (true != usual).sum()))
