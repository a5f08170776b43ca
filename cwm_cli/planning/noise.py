"""Coloured noise: random sequences whose neighbours resemble each other."""

import numpy as np
from numpy.fft import irfft, rfftfreq


def coloured(rng: np.random.Generator, shape: tuple[int, ...], colour: float) -> np.ndarray:
    """Draw sequences, along the last axis, of zero mean and unit variance.

    Their power falls with the frequency f as f**-colour: 0 is white noise, 2 that
    of a random walk (Timmer and Koenig, "On generating power law noise", 1995).
    """
    length = shape[-1]
    if colour == 0 or length == 1:
        return rng.standard_normal(shape)
    amplitudes = _amplitudes(length, colour)
    parts = rng.standard_normal((2, *shape[:-1], len(amplitudes)))
    spectrum = (parts[0] + 1j * parts[1]) * amplitudes
    return irfft(spectrum, n=length, axis=-1)


def _amplitudes(length: int, colour: float) -> np.ndarray:
    """Return the amplitude of each frequency; the lowest also stands for all that are lower.

    Zero and, where the length is even, the highest frequency have real parts only,
    which carry all of their power.
    """
    frequencies = rfftfreq(length)
    frequencies[0] = frequencies[1]
    amplitudes: np.ndarray = frequencies ** (-colour / 2)
    real = np.zeros(len(frequencies), bool)
    real[0], real[-1] = True, length % 2 == 0
    amplitudes[real] *= np.sqrt(2)
    power = np.where(real, 1, 4) * amplitudes**2
    amplitudes *= length / np.sqrt(power.sum())
    return amplitudes
