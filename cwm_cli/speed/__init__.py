"""How long a transition takes: predicted by a world model, by a language model, or taken for real.

The comparison of appendix C of Dainese et al. (2024), each side also scored on the same rows.
"""

from cwm_cli.speed.comparison import Comparison, Measured, Ratio
from cwm_cli.speed.environment import ALONE, MANY
from cwm_cli.speed.language_model import INTERRUPTED, Asked, Inquiry
from cwm_cli.speed.measuring import World
from cwm_cli.speed.pace import Pace, paces
from cwm_cli.speed.question import Questioner
from cwm_cli.speed.world_model import Stepped

__all__ = [
    "ALONE",
    "INTERRUPTED",
    "MANY",
    "Asked",
    "Comparison",
    "Inquiry",
    "Measured",
    "Pace",
    "Questioner",
    "Ratio",
    "Stepped",
    "World",
    "paces",
]
