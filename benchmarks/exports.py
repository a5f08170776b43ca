"""Steps per second of exported packages: single environments, NumPy and JAX.

    python -m benchmarks.exports [ENV ...] [--folder runs/exports]
    python -m benchmarks.exports CartPole-v1/recalled    # a program as a language model writes it
    python -m benchmarks.exports --known    # only export the programs of known environments

For each environment, `cwm synthesize` finds a program, which is exported in each form. All forms
take turns as in `cwm bench-speed --batch`; the table shows medians. JAX needs
`pip install 'cwm-cli[jax]'`. CartPole, MountainCar and Pendulum are also compared with JAX code
written for this benchmark, with the same resets. An export is written only if it agrees with the
program on all recorded rows and on 10,000 random steps, so `--known` checks this agreement.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import cwm_cli as cwm
from benchmarks.induction import SUITES, Case
from benchmarks.machine import machine
from cwm_benchmark.configuration import slug
from cwm_cli.bench.batches import (
    environment_walks,
    imported,
    translated_export,
    walk_jax,
    walk_vector,
)
from cwm_cli.bench.speed import paces
from cwm_cli.cli.shared import parse_env_args
from cwm_cli.commands.subjects import find_subject
from cwm_cli.export import export_of

ENVS = (
    *("CartPole-v1", "MountainCar-v0", "Pendulum-v1", "Acrobot-v1"),
    *("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"),
)
RECALLED = {
    "CartPole-v1/recalled": "cart_pole.py",
    "MountainCar-v0/recalled": "mountain_car.py",
    "Pendulum-v1/recalled": "pendulum.py",
    "Acrobot-v1/recalled": "acrobot.py",
}
"""Programs of `benchmarks/recalled`, which start a search that finds nothing to improve."""

LANES, JAX_LANES = 1024, 16_384


def main() -> None:
    """Measure each environment, and print a row for it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("envs", nargs="*", default=ENVS)
    parser.add_argument("--folder", type=Path, default=Path("runs/exports"))
    parser.add_argument("--known", action="store_true", help="print which forms agree")
    chosen = parser.parse_args()
    if chosen.known:
        for case in SUITES["known"]:
            name = " ".join([case.env, *case.arguments])
            print(f"{name}: {forms_of(case, chosen.folder / slug(name) / 'run')}", flush=True)
        return
    columns = ("single", "true", "program x1024", "numpy x1024", "own x1024", "jax", "jax, manual")
    print(f"| steps per second | {' | '.join(columns)} |")
    print(f"|---|{'---:|' * len(columns)}")
    for env in chosen.envs:
        rates = measure(env, chosen.folder / slug(env) / "run")
        cells = [f"{rates[name]:,.0f}" if name in rates else "" for name in columns]
        print(f"| {env} | {' | '.join(cells)} |", flush=True)
    print(machine())


def forms_of(case: Case, run: Path) -> str:
    """Export the induced program of a case; return the forms that agree, or a reason."""
    synthesize_once(run, case.env, env_args=parse_env_args([*case.arguments]))
    export, reasons = translated_export(run, export_of(run, form="python"), ())
    if export is None:
        return f"no translation: {reasons['numpy']}"
    return ", ".join(export.facts["forms"])


def synthesize_once(run: Path, env: str, **arguments: Any) -> None:
    """Search for a program, unless the run is finished."""
    if not (run / "result.json").exists():
        cwm.synthesize(env, run=run, budget=1, **arguments)


def measure(env: str, run: Path) -> dict[str, float]:
    """Return the median steps per second of each form of the program of a run.

    The program itself runs without a sandbox here: it comes from induction or from this repository.
    """
    program = RECALLED.get(env)
    start = Path(__file__).parent / "recalled" / program if program else None
    synthesize_once(run, env.removesuffix("/recalled"), start=start)
    plain = export_of(run, form="python")
    translation, reasons = translated_export(run, plain, ())
    for form, reason in reasons.items():
        print(f"{env}: no form {form}: {reason}", file=sys.stderr)
    subject = find_subject(run)
    with ExitStack() as stack:
        slow = stack.enter_context(imported(plain, with_program=True)).module("vector")
        program = slow.WorldModelVectorEnv(LANES, plain.facts["max_episode_steps"])
        walks = {"program x1024": walk_vector(program, 0)}
        walks["true"] = environment_walks(subject, 1, 0, stack, {})["environment"]
        many = environment_walks(subject, LANES, 0, stack, {})
        walks |= {"own x1024": many["vector"]} if "vector" in many else {}
        if translation:
            package = stack.enter_context(imported(translation))
            walks["single"] = package.walks(1, 0)["python"]
            walks["numpy x1024"] = package.walks(LANES, 0)["numpy"]
            if package.has_jax:
                walks["jax"] = package.walks(JAX_LANES, 0)["jax"]
                if env in MANUAL:
                    world, space = package.module("jax_environment"), program.single_action_space
                    walks["jax, manual"] = walk_jax(world, space, JAX_LANES, 0, MANUAL[env])
        return {name: 1 / pace.median for name, pace in paces(walks).items()}


def cart_pole(state: Any, action: Any) -> Any:
    """CartPole in JAX (Barto, Sutton and Anderson, 1983)."""
    import jax.numpy as jnp

    x, speed, angle, spin = state
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    pushed = (jnp.where(action == 1, 10.0, -10.0) + 0.05 * spin**2 * sin) / 1.1
    twist = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    pull = pushed - 0.05 * twist * cos / 1.1
    x, angle, speed, spin = (
        x + 0.02 * speed,
        angle + 0.02 * spin,
        speed + 0.02 * pull,
        spin + 0.02 * twist,
    )
    ended = (jnp.abs(x) > 2.4) | (jnp.abs(angle) > 12 * np.pi / 180)
    return jnp.stack([x, speed, angle, spin]), jnp.asarray(1.0), ended


def mountain_car(state: Any, action: Any) -> Any:
    """MountainCar in JAX (Moore, 1990)."""
    import jax.numpy as jnp

    position, speed = state
    speed = jnp.clip(speed + 0.001 * (action - 1) - 0.0025 * jnp.cos(3 * position), -0.07, 0.07)
    position = jnp.clip(position + speed, -1.2, 0.6)
    speed = jnp.where((position == -1.2) & (speed < 0), 0.0, speed)
    return jnp.stack([position, speed]), jnp.asarray(-1.0), position >= 0.5


def pendulum(state: Any, action: Any) -> Any:
    """Pendulum in JAX."""
    import jax.numpy as jnp

    cos, sin, spin = state
    angle, torque = jnp.arctan2(sin, cos), jnp.clip(action[0], -2.0, 2.0)
    reward = -(angle**2 + 0.1 * spin**2 + 0.001 * torque**2)
    spin = jnp.clip(spin + (15.0 * sin + 3.0 * torque) * 0.05, -8.0, 8.0)
    angle = angle + 0.05 * spin
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), spin]), reward, jnp.asarray(False)


MANUAL = {"CartPole-v1": cart_pole, "MountainCar-v0": mountain_car, "Pendulum-v1": pendulum}


if __name__ == "__main__":
    main()
