"""What all that is trained here shares: torch when it is used, devices, seeds, and saved states."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cwm_cli.errors import CwmError
from cwm_neural.training.trainer import Diverged, TrainingTask

EXTRA = "cwm-cli[neural]"
"""What brings the packages of this plugin."""

SHAPE = "shape.json"
"""The file that says what a state is of."""

TOLD = 80  # characters of what differs: a space of a board has thousands


def save_state(folder: Path, name: str, shape: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write tensors and plain data to `NAME.pt`, and beside it what they are of."""
    import torch

    buffer = io.BytesIO()  # torch reports a full disk as an unknown error of its own
    torch.save(dict(state), buffer)
    (folder / f"{name}.pt").write_bytes(buffer.getbuffer())
    (folder / f"{name}-{SHAPE}").write_text(json.dumps(shape, sort_keys=True))


def load_state(folder: Path, name: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Read what `save_state` wrote; what is of another shape, or no state at all, is refused.

    Nothing in the file is ever run.
    """
    import torch

    file = folder / f"{name}.pt"
    try:
        known = json.loads((folder / f"{name}-{SHAPE}").read_text())
        differing = [key for key in shape if known.get(key) != json.loads(json.dumps(shape[key]))]
        if differing:
            there, here = (str(each.get(differing[0])) for each in (known, shape))
            words = f"{differing[0]} is {there} in the file, but {here} here"
            if len(words) > TOLD:  # spaces
                words = f"{differing[0]} differ"
            raise CwmError(f"{file} has a different shape ({words}): choose another state")
        found: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except CwmError:
        raise
    except Exception as error:  # whatever a damaged file makes torch raise
        reason = " ".join(str(error).split())[:120]
        raise CwmError(f"{file} is not a saved state ({reason}): choose another one") from error
    return found


@contextmanager
def restoring(folder: Path) -> Iterator[None]:
    """Refuse in a line a state whose networks are made otherwise here, as by another version."""
    try:
        yield
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:  # torch's
        reason = " ".join(str(error).split())[:200]
        words = "was saved by another version, or is damaged"
        raise CwmError(
            f"{folder} {words} ({reason}): train again, or choose another one"
        ) from error


def shape_of(task: TrainingTask, **more: Any) -> dict[str, Any]:
    """Return what a state is of: the spaces, and what else has to agree."""
    return {
        "observations": task.observation_space.to_json(),
        "actions": task.action_space.to_json(),
    } | more


@contextmanager
def drawing(seed: int) -> Iterator[Any]:
    """Draw initial weights from a seed; what was drawn elsewhere goes on undisturbed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield torch


def finite(losses: Mapping[str, Any], update: int) -> dict[str, float]:
    """Return losses as numbers; `Diverged`, naming the update, where one is none."""
    found = {name: float(loss) for name, loss in losses.items()}
    for name, loss in found.items():
        if loss != loss or loss in (float("inf"), float("-inf")):
            raise Diverged(f"the loss {name} is {loss} at update {update:,}")
    return found
