"""Training of the tiny language model with torch.

Only the words of the change contribute to the cross-entropy loss, not the question.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.errors import CwmError, install_command
from cwm_cli.search.contracts import unheard
from cwm_theorize.tiny.model import TinyModel, extended_memory, pad, read, shapes_of, windows


class Lesson(NamedTuple):
    """Questions with a common prefix, as tokens.

    Attributes:
        known: The common prefix.
        asked: For each question, the rest of the question and the answer.
        least: Minimum total loss of the answers, in nats, for a reader that follows the rules.
    """

    known: Sequence[int]
    asked: Sequence[tuple[Sequence[int], Sequence[int]]]
    least: float = 0.0


class Course(NamedTuple):
    """Training settings; training stops after `steps` steps or `seconds` seconds."""

    steps: int = 2000
    seconds: float = 600.0
    width: int = 96
    layers: int = 3
    rate: float = 5e-4
    seed: int = 0


def require_torch() -> Any:
    """Import torch, or raise `CwmError` with the command to install it."""
    try:
        import torch
    except ImportError:
        raise CwmError(
            f"training a tiny language model needs torch: {install_command('cwm-cli[neural]')}"
        ) from None
    return torch


def train(
    words: Sequence[str],
    lessons: Callable[[float], list[Lesson]],
    course: Course,
    tell: Callable[[str], None] = unheard,
) -> TinyModel:
    """Train a model with this vocabulary.

    Args:
        words: Vocabulary.
        lessons: Returns a batch, given the running mean of the excess loss per answer, in nats.
        course: Training settings.
        tell: Receives progress messages.
    """
    torch = require_torch()
    torch.manual_seed(course.seed)
    weights = _initial_weights(torch, len(words), course)
    optimizer = torch.optim.AdamW(
        weights.values(), lr=course.rate, betas=(0.9, 0.999), weight_decay=0.0
    )
    start, excess, step, reported = time.monotonic(), math.inf, 0, 0
    for step in range(1, course.steps + 1):
        done = max(step / course.steps, (time.monotonic() - start) / course.seconds)
        for group in optimizer.param_groups:
            group["lr"] = course.rate * min(1.0, step / 100) * min(1.0, max(0.02, 2 - 2 * done))
        batch = lessons(excess)
        loss = _loss(torch, weights, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        answers = [answer for lesson in batch for _, answer in lesson.asked]
        lost = loss.item() * sum(map(len, answers)) - sum(lesson.least for lesson in batch)
        excess = lost / len(answers) * 0.05 + (excess * 0.95 if step > 1 else 0.0)
        if int(20 * done) > reported:
            reported = int(20 * done)
            tell(f"the tiny model: step {step} of {course.steps}, {excess:.3f} nats off an answer")
        if done >= 1:
            break
    taken = time.monotonic() - start
    about = {
        **course._asdict(),
        "trained": step,
        "taken": round(taken, 1),
        "excess": round(excess, 4),
        "capped": step < course.steps,
    }
    return TinyModel(words, {name: each.detach().numpy() for name, each in weights.items()}, about)


def _initial_weights(torch: Any, words: int, course: Course) -> dict[str, Any]:
    """Draw initial weights.

    Key weights start equal to query weights, so that a word first attends to its own occurrences.
    Otherwise, learning this takes most of the training (Trockman and Kolter, 2023).
    """
    weights, deep = {}, (2 * course.layers) ** -0.5
    for name, shape in shapes_of(words, course.width, course.layers).items():
        if name in ("embedding", "before", "position"):
            drawn = torch.randn(*shape) * 0.1
        elif name in ("qkv", "out", "up", "down"):  # smaller outputs into the residual stream
            drawn = (
                torch.randn(*shape) * shape[1] ** -0.5 * (deep if name in ("out", "down") else 1)
            )
        else:
            drawn = torch.ones(*shape)
        if name == "qkv":
            drawn[..., course.width : 2 * course.width] = drawn[..., : course.width]
        weights[name] = drawn.requires_grad_()
    return weights


def _loss(torch: Any, weights: dict[str, Any], lessons: list[Lesson]) -> Any:
    """Return the mean cross-entropy of the words of the answers."""
    known = torch.from_numpy(pad([windows((), each.known) for each in lessons]))[:, None]
    past = extended_memory(torch, None, read(torch, weights, known)[1], known)
    asked = [(each.known, *pair) for each in lessons for pair in each.asked]
    rest = pad([windows(before, (*text, *answer)) for before, text, answer in asked])
    is_answer = np.zeros(rest.shape[:-1], dtype=bool)
    for row, (_, text, answer) in zip(is_answer, asked, strict=True):
        row[len(text) : len(text) + len(answer)] = True
    shape = (len(lessons), -1, rest.shape[1])
    windowed = torch.from_numpy(rest.reshape(*shape, rest.shape[-1]))
    tokens, chosen = windowed[..., 0], torch.from_numpy(is_answer.reshape(shape))[..., 1:]
    activations, _ = read(torch, weights, windowed[..., :-1, :], past)
    logits = activations[chosen] @ weights["embedding"].T
    return torch.nn.functional.cross_entropy(logits, tokens[..., 1:][chosen])
