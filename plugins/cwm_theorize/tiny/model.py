"""A small decoder that reads rules: its words, its file, and what it finds likely.

`read` is the whole network, written once: NumPy reads with it, torch learns with it. A text is
read in stretches, each of which remembers the one before, so that what many texts begin with is
read once: a state for all its actions, a question for all that may follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.reading import UnreadableError, parse_json, read_arrays
from cwm_cli.errors import CwmError

NOTHING, UNKNOWN = 0, 1
"""Tokens that stand for no word (the end of a shorter text in a batch) and for any other word."""

RULES, STATE, ACTION, CHANGE = "<rules>", "<state>", "<action>", "<change>"
MARKS = (STATE, ACTION, RULES, CHANGE)
"""What each part of a question begins with; a question without rules has none of the first."""

HEADS = 4
LAYER = ("before_attention", "qkv", "out", "before_inner", "up", "down")
"""The weights of each layer: gains of what is normalised, and matrices."""

SEEN_BEFORE = 3
"""Words that each word is read with, so that "blue" in "colour is not blue" says all of it."""

LONGEST = 512
"""Places that are told apart: what is further on in a text seems to be at the last of them."""
FORMAT = 1
AT_ONCE = 8192
"""Tokens that are read at once: their activations stay within some tens of megabytes."""

_WORD = re.compile(r"<\w+>|\w+|[^\w\s]")


def question_text(rules: str, state: str, action: str) -> str:
    """Put a question the way the model has learned to read it.

    Rules come last: each word of theirs is then read with the action in mind, and so whether a
    line applies is known where it stands.
    """
    known = f"{RULES} {rules} " if rules.strip() else ""
    return f"{STATE} {state} {ACTION} {action} {known}{CHANGE}"


def words_of(text: str) -> list[str]:
    """Cut a text into words and signs; capital letters make no other word."""
    return _WORD.findall(text.lower())


class Memory(NamedTuple):
    """What was read before: keys and values (m, heads, past, size) of each layer.

    `there` (m, past) says which of it is text, `length` (m,) how much of it that is.
    """

    layers: Sequence[tuple[Any, Any]]
    there: Any
    length: Any


def read(xp: Any, weights: Mapping[str, Any], tokens: Any, past: Memory | None = None) -> Any:
    """Read `windows` of texts (m, c, t), c of them after each of m memories, pads at the end.

    Returns what was understood at each token, (m, c, t, width), and each layer's keys and values,
    (m, heads, c, t, size). `xp` is numpy or torch. Blocks normalise first, and are rectified.
    """
    many, each, long, _ = tokens.shape
    place = xp.arange(long)[None, None] + (0 if past is None else past.length[:, None, None])
    x = weights["embedding"][tokens[..., 0]] + weights["position"][place.clip(max=LONGEST - 1)]
    for n, embedding in enumerate(weights["before"], 1):
        x = x + embedding[tokens[..., n]]
    width = x.shape[-1]
    size = width // HEADS
    hidden = -1e9 * (xp.arange(long)[None, :] > xp.arange(long)[:, None])[None, None, None]
    if past is not None:
        gaps = -1e9 * ~past.there[:, None, None, None, :]
        shape = (many, 1, 1, long)
        hidden = [xp.broadcast_to(part, (*shape, part.shape[-1])) for part in (gaps, hidden)]
        hidden = xp.concatenate(hidden, -1)
    hidden = xp.asarray(hidden, dtype=x.dtype)
    own = []
    layers = zip(*(weights[name] for name in LAYER), strict=True)
    for n, (before_attention, qkv, out, before_inner, up, down) in enumerate(layers):
        parts = (normed(xp, x, before_attention) @ qkv).reshape(many, each, long, 3, HEADS, size)
        q, k, v = xp.moveaxis(parts, (3, 4), (0, 2))
        q = q * size**-0.5
        own.append((k, v))
        weight = q @ xp.swapaxes(k, -1, -2)
        if past is not None:
            keys, values = past.layers[n]
            flat = q.reshape(many, HEADS, each * long, size) @ xp.swapaxes(keys, -1, -2)
            weight = xp.concatenate([flat.reshape(many, HEADS, each, long, -1), weight], -1)
        weight = shares(xp, weight + hidden)
        seen = weight[..., -long:] @ v
        if past is not None:
            flat = weight[..., :-long].reshape(many, HEADS, each * long, -1)
            seen = seen + (flat @ values).reshape(many, HEADS, each, long, size)
        x = x + xp.moveaxis(seen, 1, 3).reshape(many, each, long, width) @ out
        inner = normed(xp, x, before_inner) @ up
        inner = np.maximum(inner, 0) if xp is np else xp.relu(inner)
        x = x + inner @ down
    return normed(xp, x, weights["last"]), own


def shares(xp: Any, weight: Any) -> Any:
    """Return what adds up to 1 in the last axis, the softmax; NumPy does it in place."""
    if xp is not np:
        return xp.softmax(weight, -1)
    weight -= weight.max(-1, keepdims=True)
    np.exp(weight, out=weight)
    weight /= weight.sum(-1, keepdims=True)
    return weight


def normed(xp: Any, x: Any, gain: Any) -> Any:
    """Normalise a layer: torch does it at once, which halves the time of training."""
    if xp is not np:
        return xp.nn.functional.layer_norm(x, gain.shape, gain)
    x = x - x.mean(-1, keepdims=True)
    return x * (gain / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5))


def grown(xp: Any, past: Memory | None, own: Any, tokens: Any) -> Memory:
    """Remember texts (m, c, t) that were read after m memories, as memories of their own (m c)."""
    there = tokens[..., 0].reshape(-1, tokens.shape[2]) != NOTHING
    each = tokens.shape[1]
    layers = [
        tuple(
            xp.swapaxes(part, 1, 2).reshape(-1, HEADS, part.shape[3], part.shape[4])
            for part in pair
        )
        for pair in own
    ]
    length = there.sum(-1)
    if past is not None:
        rows = np.repeat(np.arange(len(past.length)), each)
        layers = [
            tuple(
                xp.concatenate([old[rows], new], 2) for old, new in zip(before, pair, strict=True)
            )
            for before, pair in zip(past.layers, layers, strict=True)
        ]
        length = length + past.length[rows]
        there = xp.concatenate([past.there[rows], there], 1)
    return Memory(layers, there, length)


def windows(before: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Return each token with those just before it, itself first, (tokens, 1 + `SEEN_BEFORE`)."""
    behind = [NOTHING] * SEEN_BEFORE + list(before[-SEEN_BEFORE:])
    seen = np.array([*behind[len(behind) - SEEN_BEFORE :], *tokens])
    back = range(SEEN_BEFORE, -1, -1)
    return np.stack([seen[n : n + len(tokens)] for n in back], axis=-1)


def padded(texts: Sequence[np.ndarray]) -> np.ndarray:
    """Put windows of texts of several lengths into one array, `NOTHING` after their ends."""
    rows = np.full((len(texts), max(map(len, texts)), 1 + SEEN_BEFORE), NOTHING)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return rows


def shapes_of(words: int, width: int = 96, layers: int = 3) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a model that knows so many words."""
    return {
        "embedding": (words, width),
        "before": (SEEN_BEFORE, words, width),
        "position": (LONGEST, width),
        "before_attention": (layers, width),
        "qkv": (layers, width, 3 * width),
        "out": (layers, width, width),
        "before_inner": (layers, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
        "last": (width,),
    }


def _check_weights(words: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Check that words and weights belong together.

    Raises:
        ValueError: Weights are missing, have another shape or are not finite.
    """
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("its words are not a list of texts")
    up = weights.get("up", np.empty(0))
    layers, width = up.shape[:2] if up.ndim == 3 else (0, 0)
    for name, shape in shapes_of(len(words), width, layers).items():
        found = weights.get(name)
        if found is None or found.shape != shape or found.dtype.kind != "f" or width % HEADS:
            raise ValueError(f"the weights {name} are missing or have another shape")
        if not np.isfinite(found).all():
            raise ValueError(f"the weights {name} are not finite")


class TinyModel:
    """A decoder over whole words, read with NumPy; `about` tells how it was trained.

    It reads in single precision, several times as fast as in double: a score is the same to about
    five digits in whatever batch it is computed.
    """

    def __init__(
        self, words: Sequence[str], weights: Mapping[str, np.ndarray], about: Mapping[str, Any]
    ) -> None:
        self.words, self.about = tuple(words), dict(about)
        self.weights = {name: np.asarray(each, np.float32) for name, each in weights.items()}
        number = {word: n for n, word in enumerate(self.words)}
        self._number = {**number, "": UNKNOWN}
        self.tokens = lru_cache(100_000)(self._tokens)

    @classmethod
    def load(cls, path: str | Path) -> TinyModel:
        """Read a model from its file."""
        file = Path(path)
        try:
            arrays = read_arrays(file)
            about, words = (
                parse_json(str(arrays.pop(name, "null"))) for name in ("about", "words")
            )
            if not isinstance(about, dict) or "format" not in about:
                raise ValueError("it has no version")
            if about["format"] != FORMAT:
                raise CwmError(f"{file} has another version: train it again")
            _check_weights(words, arrays)
        except (UnreadableError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise CwmError(
                f"{file} is not a tiny language model ({reason}): restore it or choose another"
            ) from error
        return cls(words, arrays, about)

    def save(self, path: Path) -> None:
        """Write the model down, whole or not at all; weights in half precision."""
        partial = path.with_name(f".{path.name}.part")
        about = {**self.about, "format": FORMAT}
        halves = {name: each.astype(np.float16) for name, each in self.weights.items()}
        texts = {"about": json.dumps(about), "words": json.dumps(self.words)}
        arrays: dict[str, Any] = {**halves, **{key: np.array(texts[key]) for key in texts}}
        try:
            with partial.open("wb") as file:
                np.savez_compressed(file, **arrays)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._number.get(word, UNKNOWN) for word in words_of(text))

    def log_probabilities(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the log-probability of each token after those before it; of the first, 0."""
        if len(tokens) < 2:
            return np.zeros(len(tokens))
        return np.concatenate([[0.0], self.of_answers([tokens[:1]], [[tokens[1:]]])[0][0]])

    def of_answers(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[np.ndarray]]:
        """Return, for each prompt, of each answer to it the log-probability of each token."""
        found: list[list[np.ndarray]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda n: tuple(prompts[n]))
        for these in _shares(order, prompts, answers):
            texts = [tuple(prompts[n]) for n in these]
            for n, scores in zip(these, self._of(texts, [answers[n] for n in these]), strict=True):
                found[n] = scores
        return found

    def _of(
        self, prompts: list[tuple[int, ...]], answers: Sequence[Sequence[Sequence[int]]]
    ) -> Iterable[list[np.ndarray]]:
        """Read what all prompts begin with, then the rest of each, then the answers to each."""
        pairs = zip(prompts[0], prompts[-1], strict=False)  # the first and the last in order
        same = next((n for n, (one, other) in enumerate(pairs) if one != other), len(prompts[0]))
        shared = prompts[0][: min(same, min(map(len, prompts)) - 1)]
        past = None
        if shared:
            tokens = windows((), shared)[None, None]
            past = grown(np, None, read(np, self.weights, tokens)[1], tokens)
        rest = padded([windows(shared, prompt[len(shared) :]) for prompt in prompts])[None]
        understood, own = read(np, self.weights, rest, past)
        last = [len(prompt) - len(shared) - 1 for prompt in prompts]
        end = understood[0, np.arange(len(prompts)), last]
        most, long = max(map(len, answers)), max(len(text) for each in answers for text in each)
        asked = np.full((len(prompts), most, long, 1 + SEEN_BEFORE), NOTHING)
        for row, prompt, each in zip(asked, prompts, answers, strict=True):
            row[: len(each), : max(map(len, each))] = padded([windows(prompt, a) for a in each])
        before = np.broadcast_to(end[:, None, None], (len(prompts), most, 1, end.shape[-1]))
        if long > 1:
            memory = grown(np, past, own, rest)
            within, _ = read(np, self.weights, asked[..., :-1, :], memory)
            before = np.concatenate([before, within], 2)
        tokens = asked[..., 0]
        logits = (before @ self.weights["embedding"].T).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        chosen = np.take_along_axis(logits, tokens[..., None], -1)[..., 0]
        scores = chosen - np.log(np.exp(logits).sum(-1))
        for n, each in enumerate(answers):
            yield [scores[n, i, : len(answer)] for i, answer in enumerate(each)]


def _shares(
    order: Sequence[int],
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
) -> Iterable[list[int]]:
    """Cut prompts, in an order in which neighbours begin alike, into what is read at once."""
    share: list[int] = []
    size = 0
    for n in order:
        cost = len(prompts[n]) + sum(map(len, answers[n]))
        if share and size + cost > AT_ONCE:
            yield share
            share, size = [], 0
        share.append(n)
        size += cost
    if share:
        yield share
