"""A small decoder that reads rules: vocabulary, file format and log-probabilities.

`read` defines the network for both NumPy (inference) and torch (training). Texts are read in
segments, and each segment uses the cached keys and values of the previous one. A common prefix is
therefore read once: a state for all its actions, and a question for all candidate changes.
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

PADDING, UNKNOWN = 0, 1
"""Token that pads shorter texts in a batch, and token of unknown words."""

RULES, STATE, ACTION, CHANGE = "<rules>", "<state>", "<action>", "<change>"
MARKS = (STATE, ACTION, RULES, CHANGE)
"""Marks at the start of each part of a question; a question without rules has no rules mark."""

HEADS = 4

CONTEXT_WORDS = 3
"""Number of previous words that are embedded with each word, so that "blue" in "colour is not
blue" includes the negation."""

MAX_POSITIONS = 512
"""Number of position embeddings; later positions use the last one."""

FORMAT = 1
"""Version of the file format."""

MAX_BATCH_TOKENS = 8192
"""Maximum number of tokens per batch: their activations need some tens of megabytes."""

_WORD = re.compile(r"<\w+>|\w+|[^\w\s]")


def question_text(rules: str, state: str, action: str) -> str:
    """Return a question in the form of the training data.

    The rules come last, so that the model reads each word of a rule with the action in its context,
    and knows at the end of a line whether the line applies.
    """
    known = f"{RULES} {rules} " if rules.strip() else ""
    return f"{STATE} {state} {ACTION} {action} {known}{CHANGE}"


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words and signs."""
    return _WORD.findall(text.lower())


class Memory(NamedTuple):
    """Cached attention state: keys and values (m, heads, past, size) of each layer.

    `there` (m, past) marks tokens that are not padding, and `length` (m,) is their number.
    """

    layers: Sequence[tuple[Any, Any]]
    there: Any
    length: Any


def read(xp: Any, weights: Mapping[str, Any], tokens: Any, past: Memory | None = None) -> Any:
    """Run the network on `windows` of tokens.

    Pre-normalised transformer blocks with ReLU.

    Args:
        xp: numpy or torch.
        weights: Weights as in `shapes_of`.
        tokens: Windows (m, c, t, 1 + `CONTEXT_WORDS`): c texts after each of m memories, padded at
            the end.
        past: Memories of the text before `tokens`.

    Returns:
        The final activations (m, c, t, width), and keys and values (m, heads, c, t, size) of each
        layer.
    """
    many, each, long, _ = tokens.shape
    place = xp.arange(long)[None, None] + (0 if past is None else past.length[:, None, None])
    x = (
        weights["embedding"][tokens[..., 0]]
        + weights["position"][place.clip(max=MAX_POSITIONS - 1)]
    )
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
    # weights of each layer: gains of the normalisations, and matrices
    layer = ("before_attention", "qkv", "out", "before_inner", "up", "down")
    layers = zip(*(weights[name] for name in layer), strict=True)
    for n, (before_attention, qkv, out, before_inner, up, down) in enumerate(layers):
        parts = (layer_norm(xp, x, before_attention) @ qkv).reshape(
            many, each, long, 3, HEADS, size
        )
        q, k, v = xp.moveaxis(parts, (3, 4), (0, 2))
        q = q * size**-0.5
        own.append((k, v))
        weight = q @ xp.swapaxes(k, -1, -2)
        if past is not None:
            keys, values = past.layers[n]
            flat = q.reshape(many, HEADS, each * long, size) @ xp.swapaxes(keys, -1, -2)
            weight = xp.concatenate([flat.reshape(many, HEADS, each, long, -1), weight], -1)
        weight = softmax(xp, weight + hidden)
        seen = weight[..., -long:] @ v
        if past is not None:
            flat = weight[..., :-long].reshape(many, HEADS, each * long, -1)
            seen = seen + (flat @ values).reshape(many, HEADS, each, long, size)
        x = x + xp.moveaxis(seen, 1, 3).reshape(many, each, long, width) @ out
        inner = layer_norm(xp, x, before_inner) @ up
        inner = np.maximum(inner, 0) if xp is np else xp.relu(inner)
        x = x + inner @ down
    return layer_norm(xp, x, weights["last"]), own


def softmax(xp: Any, weight: Any) -> Any:
    """Return the softmax over the last axis; in place for NumPy."""
    if xp is not np:
        return xp.softmax(weight, -1)
    weight -= weight.max(-1, keepdims=True)
    np.exp(weight, out=weight)
    weight /= weight.sum(-1, keepdims=True)
    return weight


def layer_norm(xp: Any, x: Any, gain: Any) -> Any:
    """Apply layer normalisation; the fused operation of torch halves the training time."""
    if xp is not np:
        return xp.nn.functional.layer_norm(x, gain.shape, gain)
    x = x - x.mean(-1, keepdims=True)
    return x * (gain / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5))


def extended_memory(xp: Any, past: Memory | None, own: Any, tokens: Any) -> Memory:
    """Extend m memories by the texts (m, c, t) read after them; return m * c memories."""
    there = tokens[..., 0].reshape(-1, tokens.shape[2]) != PADDING
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
    """Return each token with the tokens before it, newest first: (tokens, 1 + `CONTEXT_WORDS`)."""
    behind = [PADDING] * CONTEXT_WORDS + list(before[-CONTEXT_WORDS:])
    seen = np.array([*behind[len(behind) - CONTEXT_WORDS :], *tokens])
    back = range(CONTEXT_WORDS, -1, -1)
    return np.stack([seen[n : n + len(tokens)] for n in back], axis=-1)


def pad(texts: Sequence[np.ndarray]) -> np.ndarray:
    """Return windows of texts as one array, padded with `PADDING` at the end."""
    rows = np.full((len(texts), max(map(len, texts)), 1 + CONTEXT_WORDS), PADDING)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return rows


def shapes_of(words: int, width: int = 96, layers: int = 3) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights for a vocabulary of this size."""
    return {
        "embedding": (words, width),
        "before": (CONTEXT_WORDS, words, width),
        "position": (MAX_POSITIONS, width),
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
    """A decoder over whole words in NumPy; `about` describes its training.

    It uses single precision, which is several times as fast as double precision. Scores agree to
    about five digits between batches.
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
        """Load a model from its file.

        Raises:
            CwmError: The file is unreadable, incomplete, or of another version.
        """
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
        """Save the model atomically, with weights in half precision."""
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
        """Return the log-probability of each token given the tokens before it; 0 for the first."""
        if len(tokens) < 2:
            return np.zeros(len(tokens))
        return np.concatenate([[0.0], self.of_answers([tokens[:1]], [[tokens[1:]]])[0][0]])

    def of_answers(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[np.ndarray]]:
        """Return, for each prompt and each of its answers, the log-probability of each token."""
        found: list[list[np.ndarray]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda n: tuple(prompts[n]))
        for these in _batches(order, prompts, answers):
            texts = [tuple(prompts[n]) for n in these]
            for n, scores in zip(these, self._of(texts, [answers[n] for n in these]), strict=True):
                found[n] = scores
        return found

    def _of(
        self, prompts: list[tuple[int, ...]], answers: Sequence[Sequence[Sequence[int]]]
    ) -> Iterable[list[np.ndarray]]:
        """Read the common prefix of the prompts, then the rest of each, then the answers."""
        pairs = zip(prompts[0], prompts[-1], strict=False)  # the first and the last in order
        same = next((n for n, (one, other) in enumerate(pairs) if one != other), len(prompts[0]))
        shared = prompts[0][: min(same, min(map(len, prompts)) - 1)]
        past = None
        if shared:
            tokens = windows((), shared)[None, None]
            past = extended_memory(np, None, read(np, self.weights, tokens)[1], tokens)
        rest = pad([windows(shared, prompt[len(shared) :]) for prompt in prompts])[None]
        activations, own = read(np, self.weights, rest, past)
        last = [len(prompt) - len(shared) - 1 for prompt in prompts]
        end = activations[0, np.arange(len(prompts)), last]
        most, long = max(map(len, answers)), max(len(text) for each in answers for text in each)
        asked = np.full((len(prompts), most, long, 1 + CONTEXT_WORDS), PADDING)
        for row, prompt, each in zip(asked, prompts, answers, strict=True):
            row[: len(each), : max(map(len, each))] = pad([windows(prompt, a) for a in each])
        before = np.broadcast_to(end[:, None, None], (len(prompts), most, 1, end.shape[-1]))
        if long > 1:
            memory = extended_memory(np, past, own, rest)
            within, _ = read(np, self.weights, asked[..., :-1, :], memory)
            before = np.concatenate([before, within], 2)
        tokens = asked[..., 0]
        logits = (before @ self.weights["embedding"].T).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        chosen = np.take_along_axis(logits, tokens[..., None], -1)[..., 0]
        scores = chosen - np.log(np.exp(logits).sum(-1))
        for n, each in enumerate(answers):
            yield [scores[n, i, : len(answer)] for i, answer in enumerate(each)]


def _batches(
    order: Sequence[int],
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
) -> Iterable[list[int]]:
    """Split prompts into batches of at most `MAX_BATCH_TOKENS` tokens.

    `order` keeps prompts with common prefixes together.
    """
    share: list[int] = []
    size = 0
    for n in order:
        cost = len(prompts[n]) + sum(map(len, answers[n]))
        if share and size + cost > MAX_BATCH_TOKENS:
            yield share
            share, size = [], 0
        share.append(n)
        size += cost
    if share:
        yield share
