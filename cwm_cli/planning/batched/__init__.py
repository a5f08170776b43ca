"""Programs on many states at once: translated to numpy, with the last axis for the lanes.

`batched` makes a `Batch` of a program, `verified` compares it with the program
and `returns` scores plans with it. A program is translated (`translation` and
below) to statements that are done under a mask of lanes, on values that are
the same in all lanes (plain Python) or arrays with a lane axis (`lanes`).
Whatever cannot be done just as the program does it is refused: `Unbatched`,
for a construct when the program is translated, for a value when it comes up.

What runs is Python on numpy arrays, so it can be run on other things that
behave as arrays: `Transformed.make` returns an object with `set_state` and
`step` and the program's attributes. All that depends on the numbers in the
lanes is in four functions of `lanes`, which `lanes.replaced` puts others in the
place of: `settled` (which blocks are skipped), `none_left` (when a `while` loop
ends), `demand` (what must hold in lanes that are alive) and `select` (one value
in some lanes, another in others). `tables.gather` looks constants up, with
`np.take`; types of numbers are asked for with `lanes.kind`.
"""

from typing import Any

from cwm_cli.data.spaces import Space
from cwm_cli.planning.batched.batch import LaneBatch
from cwm_cli.planning.batched.returns import Returns, returns
from cwm_cli.planning.batched.transformed import Transformed
from cwm_cli.planning.batched.verifying import verified
from cwm_cli.planning.model import Batch, Unbatched

__all__ = ["Returns", "Transformed", "batched", "returns", "verified"]


def batched(
    program: str, environment: Any, *, observation_space: Space, action_space: Space
) -> Batch:
    """Return a program, whose `environment` has been made, as a batch.

    The program has to be a function of observation and action but for hidden
    attributes: use `verified` before the batch is trusted.
    """
    for space, what in ((observation_space, "observations"), (action_space, "actions")):
        vector = space.is_float and len(space.shape) == 1
        if space.kind != "discrete" and not vector:
            raise Unbatched(f"{what} are neither one integer nor a vector of real numbers")
    try:
        return LaneBatch(Transformed(program, environment), observation_space)
    except (RecursionError, SyntaxError, ValueError, TypeError) as error:
        raise Unbatched(f"it cannot be translated: {error}") from None
