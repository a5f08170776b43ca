"""Orthonormal bases of columns, and of what columns add to a basis."""

import numpy as np

from cwm_induction.continuous.samples import Array

SHORT = 1e-7
"""How long a direction of unit columns has to be to count."""


def orthonormal(matrix: Array, least: float = 1e-10) -> Array:
    """Return an orthonormal basis of the columns, without directions that are too short."""
    if least < 1e-9:
        matrix = matrix / (np.linalg.norm(matrix, axis=0) + 1e-300)
    left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    basis: Array = left[:, sizes > least]
    return basis


def beside(basis: Array, group: Array) -> Array:
    """Return an orthonormal basis of what some columns add to a basis."""
    return orthonormal(_apart(basis, group), SHORT)


def left_by(basis: Array, rest: Array, groups: Array) -> Array:
    """Return the size of what each group of columns leaves of the rest, infinite for no numbers."""
    sizes, finite = np.full(len(groups), np.inf), np.isfinite(groups).all((1, 2))
    apart = _apart(basis, groups[finite])
    left, lengths, _ = np.linalg.svd(apart, full_matrices=False)
    found = [own[:, length > SHORT] for own, length in zip(left, lengths, strict=True)]
    sizes[finite] = [np.linalg.norm(rest - group @ (group.T @ rest)) for group in found]
    return sizes


def _apart(basis: Array, group: Array) -> Array:
    """Return columns of unit length, also of several groups, without their part in a basis."""
    group = group / (np.linalg.norm(group, axis=-2, keepdims=True) + 1e-300)
    group = group - basis @ (basis.T @ group)
    apart: Array = group - basis @ (basis.T @ group)
    return apart
