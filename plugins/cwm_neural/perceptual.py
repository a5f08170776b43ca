"""LPIPS: the distance of images in the features of VGG-16 (Zhang et al., 2018).

The weights are read from files in the published formats, and nothing is downloaded. The library
`lpips` computes the same, but needs torchvision and its deprecated arguments.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from cwm_cli.errors import CwmError

STAGES = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
"""Numbers of the convolutions of torchvision's VGG-16, between the poolings."""

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
"""Published normalisation of the colour channels, for values from -1 to 1."""

MIN_SIDE = 16
"""Smallest side of an image: four poolings halve it."""

FEATURES, LINEAR = "vgg16*.pth", "vgg.pth"
"""Files with the weights of VGG-16 (torchvision) and of the linear layers (lpips)."""


class Lpips:
    """The distance of images, without trained parameters.

    Args:
        folder: A folder with the files `vgg16-397923af.pth` of torchvision and `vgg.pth` of lpips.
        device: The device of the weights.

    Raises:
        CwmError: A file is missing, or has other weights.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        features, linear = _read(folder, FEATURES, device), _read(folder, LINEAR, device)
        wanted = "give vgg16-397923af.pth of torchvision and vgg.pth of lpips"
        try:
            self._convolutions = [
                [(features[f"features.{n}.weight"], features[f"features.{n}.bias"]) for n in stage]
                for stage in STAGES
            ]
            self._linear = [linear[f"lin{n}.model.1.weight"] for n in range(len(STAGES))]
        except (KeyError, TypeError) as error:
            raise CwmError(f"the weights {error} are missing in {folder}: {wanted}") from error
        self._shift = torch.tensor(SHIFT, device=device).view(1, 3, 1, 1)
        self._scale = torch.tensor(SCALE, device=device).view(1, 3, 1, 1)
        try:
            self(*torch.zeros(2, 1, 3, MIN_SIDE, MIN_SIDE, device=device))
        except (RuntimeError, TypeError) as error:
            raise CwmError(f"the weights in {folder} do not fit together: {wanted}") from error

    def __call__(self, frames: Tensor, made: Tensor) -> Tensor:
        """Return the mean distance of images.

        Args:
            frames: Images (n, channels, height, width) with values from -1 to 1, whose sides have
                at least `MIN_SIDE` pixels.
            made: Other images of the same shape.
        """
        total = torch.zeros((), device=frames.device)
        first, second = self._normalise(frames), self._normalise(made)
        for number, (stage, weights) in enumerate(
            zip(self._convolutions, self._linear, strict=True)
        ):
            if number:
                first, second = (functional.max_pool2d(each, 2) for each in (first, second))
            for weight, bias in stage:
                first, second = (
                    functional.conv2d(each, weight, bias, padding=1).relu()
                    for each in (first, second)
                )
            # `normalize` has a gradient for features that are all zero, unlike a square root.
            one, other = (functional.normalize(each, eps=1e-10) for each in (first, second))
            total = total + functional.conv2d((one - other).square(), weights).mean()
        return total

    def _normalise(self, frames: Tensor) -> Tensor:
        """Return images with three normalised colour channels."""
        colors = frames[:, :3] if frames.shape[1] >= 3 else frames[:, :1].expand(-1, 3, -1, -1)
        return (colors - self._shift) / self._scale


def _read(folder: Path, pattern: str, device: str) -> dict[str, Tensor]:
    """Return the weights of the file of a folder that fits a pattern."""
    files = sorted(folder.glob(pattern))
    if not files:
        raise CwmError(f"there is no {pattern} in {folder}: copy the weights of LPIPS to it")
    try:
        found: dict[str, Tensor] = torch.load(files[0], map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CwmError(f"{files[0]} has no weights of torch: copy it again") from error
    return found
