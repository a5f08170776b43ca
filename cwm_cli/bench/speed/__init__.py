"""How long a transition takes: predicted by a world model, by a language model, or taken for real.

The comparison of appendix C of Dainese et al. (2024), each side also scored on the same rows.
"""

from cwm_cli.bench.speed.comparison import Comparison, Ratio
from cwm_cli.bench.speed.language_model import INTERRUPTED, Asked, Inquiry
from cwm_cli.bench.speed.measuring import World
from cwm_cli.bench.speed.pace import Pace, paces
from cwm_cli.bench.speed.question import Questioner

__all__ = [
    "INTERRUPTED",
    "Asked",
    "Comparison",
    "Inquiry",
    "Pace",
    "Questioner",
    "Ratio",
    "World",
    "paces",
]
