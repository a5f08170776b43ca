"""Keep what Gymnasium and MuJoCo have to say away from the terminal."""

import io
import warnings
from contextlib import redirect_stderr
from types import ModuleType

SILENT = 100


def load() -> ModuleType:
    """Import Gymnasium without its announcements and warnings.

    They are meant for the author of an environment; what its user has to know
    is said by the notes and errors of this package.
    """
    with redirect_stderr(io.StringIO()):
        import gymnasium
    gymnasium.logger.min_level = SILENT
    warnings.filterwarnings("ignore", module=r"(gymnasium|pygame)(\.|$)")
    return gymnasium


def silence_mujoco() -> None:
    """Stop MuJoCo from writing warnings to the terminal and to a log file in the folder."""
    import mujoco

    mujoco.set_mju_user_warning(lambda _: None)
