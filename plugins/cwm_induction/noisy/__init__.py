"""Laws of recorded real numbers that are rounded or noisy.

`series` reads the rows, `inducing` searches a law for every component with `searching` (terms and
limits) and `overriding` (cut-offs), `laws` fits the laws, and `program` writes them.
"""

from cwm_induction.noisy.inducing import induce
from cwm_induction.noisy.program import Writer, lists_errors
from cwm_induction.noisy.series import RecordedSeries, has_noise, has_wide_counts

__all__ = ["RecordedSeries", "Writer", "has_noise", "has_wide_counts", "induce", "lists_errors"]
