"""Training of the tiny language model, with torch: rules, a question, and what follows from both.

Only the change is learned, not the question: the loss is the cross-entropy of its words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import unheard
from cwm_tiny.model import LONGEST, TinyModel, grown, padded, read


class Lesson(NamedTuple):
    """One text with rules, and what is asked of it: tokens of each question's rest and answer."""

    known: Sequence[int]
    asked: Sequence[tuple[Sequence[int], Sequence[int]]]


class Course(NamedTuple):
    """How a model is trained: for so many steps, or seconds if those are over first."""

    steps: int = 2000
    seconds: float = 600.0
    width: int = 96
    layers: int = 3
    rate: float = 2e-3
    seed: int = 0


def train(
    words: Sequence[str],
    lessons: Callable[[], list[Lesson]],
    course: Course,
    tell: Callable[[str], None] = unheard,
) -> TinyModel:
    """Train a model that knows these words on batches of lessons."""
    try:
        import torch
    except ImportError:
        raise CwmError(
            "training a tiny language model needs torch: pip install 'cwm-cli[neural]'"
        ) from None
    torch.manual_seed(course.seed)
    weights = _first(torch, len(words), course)
    optimizer = torch.optim.AdamW(
        weights.values(), lr=course.rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    start, loss, step, told = time.monotonic(), math.nan, 0, 0
    for step in range(1, course.steps + 1):
        done = max(step / course.steps, (time.monotonic() - start) / course.seconds)
        for group in optimizer.param_groups:
            group["lr"] = course.rate * min(1.0, step / 100) * max(0.02, 1 - done)
        batch = _loss(torch, weights, lessons())
        optimizer.zero_grad(set_to_none=True)
        batch.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        loss = batch.item() if math.isnan(loss) else 0.98 * loss + 0.02 * batch.item()
        if int(10 * done) > told:
            told = int(10 * done)
            tell(f"the tiny model: step {step} of {course.steps}, loss {loss:.3f}")
        if done >= 1:
            break
    taken = time.monotonic() - start
    about = {
        **course._asdict(),
        "trained": step,
        "taken": round(taken, 1),
        "loss": round(loss, 4),
        "capped": step < course.steps,
    }
    return TinyModel(words, {name: each.detach().numpy() for name, each in weights.items()}, about)


def _first(torch: Any, words: int, course: Course) -> dict[str, Any]:
    """Draw the weights that training begins with."""
    width, layers, inner = course.width, course.layers, 4 * course.width

    def normal(*shape: int, scale: float) -> Any:
        return (torch.randn(*shape) * scale).requires_grad_()

    def ones(*shape: int) -> Any:
        return torch.ones(*shape).requires_grad_()

    deep = (2 * layers) ** -0.5
    return {
        "embedding": normal(words, width, scale=0.1),
        "position": normal(LONGEST, width, scale=0.1),
        "qkv": normal(layers, width, 3 * width, scale=width**-0.5),
        "out": normal(layers, width, width, scale=deep * width**-0.5),
        "up": normal(layers, width, inner, scale=width**-0.5),
        "down": normal(layers, inner, width, scale=deep * inner**-0.5),
        "before_attention": ones(layers, width),
        "before_inner": ones(layers, width),
        "last": ones(width),
    }


def _loss(torch: Any, weights: dict[str, Any], lessons: list[Lesson]) -> Any:
    known = torch.from_numpy(padded([each.known for each in lessons]))[:, None]
    past = grown(torch, None, read(torch, weights, known)[1], known)
    each = len(lessons[0].asked)
    rest = padded([(*asked, *answer) for lesson in lessons for asked, answer in lesson.asked])
    tokens = torch.from_numpy(rest.reshape(len(lessons), each, -1))
    learned = np.zeros_like(rest, dtype=bool)
    rows = (pair for lesson in lessons for pair in lesson.asked)
    for row, (asked, answer) in zip(learned, rows, strict=True):
        row[len(asked) : len(asked) + len(answer)] = True
    chosen = torch.from_numpy(learned.reshape(tokens.shape))[..., 1:]
    understood, _ = read(torch, weights, tokens[..., :-1], past)
    logits = understood[chosen] @ weights["embedding"].T
    return torch.nn.functional.cross_entropy(logits, tokens[..., 1:][chosen])
