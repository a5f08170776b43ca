"""Common parts of all trainings: devices, seeds, saved states and losses."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cwm_cli.errors import CwmError
from cwm_neural.training.trainer import Diverged, TrainingTask

EXTRA = "cwm-cli[neural]"
"""The extra that installs the packages of this plugin."""

SHAPE = "shape.json"
"""Suffix of the file that describes a saved state: spaces and sizes."""


def save_state(folder: Path, name: str, shape: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write tensors and plain data to `NAME.pt`, and their shape to `NAME-shape.json`."""
    import torch

    buffer = io.BytesIO()  # torch raises an unspecific error of its own if the disk is full
    torch.save(dict(state), buffer)
    (folder / f"{name}.pt").write_bytes(buffer.getbuffer())
    (folder / f"{name}-{SHAPE}").write_text(json.dumps(shape, sort_keys=True))


@contextmanager
def saved_state(folder: Path, name: str, shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a state that `save_state` wrote, without running any code from the file.

    Raises:
        CwmError: If the state has another shape, or the file is missing or damaged, or if the
            block fails because the state does not fit the networks, e.g. of an older version.
    """
    import torch

    file = folder / f"{name}.pt"
    try:
        known = json.loads((folder / f"{name}-{SHAPE}").read_text())
        differing = [key for key in shape if known.get(key) != json.loads(json.dumps(shape[key]))]
        if differing:
            there, here = (str(each.get(differing[0])) for each in (known, shape))
            words = f"{differing[0]} is {there} in the file, but {here} here"
            if len(words) > 80:  # longer differences, e.g. the spaces of a board, are left out
                words = f"{differing[0]} differ"
            raise CwmError(f"{file} has a different shape ({words}): choose another state")
        found: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except CwmError:
        raise
    except Exception as error:  # torch raises many types for damaged files
        reason = " ".join(str(error).split())[:120]
        raise CwmError(f"{file} is not a saved state ({reason}): choose another one") from error
    try:
        yield found
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        words = "was saved by another version, or is damaged"
        raise CwmError(
            f"{folder} {words} ({reason}): train again, or choose another one"
        ) from error


def shape_of(task: TrainingTask, options: object, *names: str, **more: Any) -> dict[str, Any]:
    """Return the shape of a state: the spaces, and options and values that must be equal."""
    return {
        "observations": task.observation_space.to_json(),
        "actions": task.action_space.to_json(),
        **{name: getattr(options, name) for name in names},
        **more,
    }


@contextmanager
def drawing(seed: int) -> Iterator[Any]:
    """Seed torch in this block; the global random state is restored afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield torch


def finite(losses: Mapping[str, Any], update: int) -> dict[str, float]:
    """Return losses as numbers; raise `Diverged`, which names the update, if one is not finite."""
    found = {name: float(loss) for name, loss in losses.items()}
    for name, loss in found.items():
        if loss != loss or loss in (float("inf"), float("-inf")):
            raise Diverged(f"the loss {name} is {loss} at update {update:,}")
    return found


def mean_losses(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each loss over updates; empty without updates."""
    names = updates[0] if updates else ()
    return {name: float(np.mean([losses[name] for losses in updates])) for name in names}
