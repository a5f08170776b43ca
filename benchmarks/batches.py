"""Compare planning in batches of MuJoCo with the C steps alone.

One side is an iteration of a published CEM plan in the true HalfCheetah; the other side takes the
same number of steps in the same number of lanes from C, on all cores, with random actions.
"""

from benchmarks.claims import Claim, Measured
from benchmarks.measuring import calls, in_turn
from benchmarks.script import main
from benchmarks.true_environments import bare_steps, planner_session

ENV = "HalfCheetah-v5"
LANES, FEWER = 1_000, 64


def measure(quick: bool) -> Measured:
    """Take equal numbers of steps on both sides alternately."""
    lanes = FEWER if quick else LANES
    bare = bare_steps(ENV, lanes)
    with planner_session(ENV, "cem", iterations=1, samples=lanes, elites=lanes // 10)() as ours:
        times = in_turn(bare, ours, 2 if quick else 7)
        steps: list[int] = []
        counted = calls(lambda: steps.append(ours(0)))
    counts = {"model steps": steps[0], "calls": counted}
    return Measured(times.gains, times.milliseconds("C", "ours"), counts)


CLAIMS = (
    Claim(
        "mujoco-batches",
        "C steps of HalfCheetah alone against an iteration of a CEM plan with equally many",
        measure,
        goal=0.75,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
