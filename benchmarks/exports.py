"""Steps per second of exported packages: single environments, NumPy and JAX.

    python -m benchmarks.exports [ENV ...] [--rounds 5] [--folder runs/exports]

For each environment, `cwm synthesize` finds a program, which is exported in each form. In every
round all forms take steps with random actions, one form after the other; the table shows medians
of the processor time. JAX needs `pip install 'cwm-cli[jax]'`. CartPole, MountainCar and Pendulum
are also compared with JAX code written for this benchmark, with the same resets.
"""

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np

import cwm_cli as cwm
from benchmarks.machine import machine
from cwm_cli.export import export_of, publish
from cwm_cli.export.package import make_names

ENVS = (
    *("CartPole-v1", "MountainCar-v0", "Pendulum-v1", "Acrobot-v1"),
    *("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"),
)
LANES, JAX_LANES, JAX_STEPS = 1024, 16_384, 20

Rates = dict[str, list[float]]


def main() -> None:
    """Measure each environment, and print a row for it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("envs", nargs="*", default=ENVS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/exports"))
    chosen = parser.parse_args()
    columns = ("single", "true", "program x1024", "numpy x1024", "own x1024", "jax", "jax, manual")
    print(f"| steps per second | {' | '.join(columns)} |")
    print(f"|---|{'---:|' * len(columns)}")
    for env in chosen.envs:
        rates = measure(env, chosen.folder / env, chosen.rounds)
        cells = [f"{median(rates[name]):,.0f}" if name in rates else "" for name in columns]
        print(f"| {env} | {' | '.join(cells)} |", flush=True)
    print(machine())


def measure(env: str, folder: Path, rounds: int) -> Rates:
    """Return the steps per second of each form, in every round."""
    module, name = packages(env, folder)
    limit = gymnasium.spec(env).max_episode_steps
    importlib.import_module(module)  # the first import registers its id
    slow = importlib.import_module(f"slow_{module}.vector")
    forms: dict[str, Callable[[], float]] = {
        "single": paced(gymnasium.make(name), 3000),
        "true": paced(gymnasium.make(env), 3000),
        "program x1024": paced(slow.WorldModelVectorEnv(LANES, limit), 3, LANES),
    }
    if importlib.util.find_spec(f"{module}.batched_vector"):
        fast = importlib.import_module(f"{module}.batched_vector")
        forms["numpy x1024"] = paced(fast.BatchedWorldModelEnv(LANES, limit), 100, LANES)
        forms["jax"] = paced_jax(module, None)
        if env in MANUAL:
            forms["jax, manual"] = paced_jax(module, MANUAL[env])
    if gymnasium.spec(env).vector_entry_point is not None:
        own = gymnasium.make_vec(env, LANES, vectorization_mode="vector_entry_point")
        forms["own x1024"] = paced(own, 100, LANES)
    rates: Rates = {form: [] for form in forms}
    for number in range(rounds + 1):
        for form, pace in forms.items():
            rate = pace()
            if number:  # the first round warms up
                rates[form].append(rate)
    return rates


def packages(env: str, folder: Path) -> tuple[str, str]:
    """Find a program and export it twice; return the module and the id of the environment.

    The package that runs the program itself gets the prefix `slow_`.
    """
    if not (folder / "run/result.json").exists():
        cwm.synthesize(env, run=folder / "run", budget=1)
    names = make_names(env)
    slow = export_of(folder / "run", form="python")
    renamed = {f"slow_{name}": text for name, text in slow.files.items() if "/" in name}
    publish(slow._replace(files={"README.md": slow.files["README.md"], **renamed}), folder / "slow")
    try:
        fast = export_of(folder / "run", form="jax")
    except cwm.CwmError as error:
        print(f"{env}: {error}", file=sys.stderr)
        fast = export_of(folder / "run")
    publish(fast, folder / "fast")
    sys.path[:0] = [str(folder / "fast"), str(folder / "slow")]
    return names.module, f"{names.module}:{names.id}"


def paced(env: Any, steps: int, lanes: int = 1) -> Callable[[], float]:
    """Return a function that takes random steps, and returns the steps per second."""
    actions = [env.action_space.sample() for _ in range(100)]

    def pace() -> float:
        env.reset(seed=0)
        began = time.thread_time()
        for step in range(steps):
            _, _, terminated, truncated, _ = env.step(actions[step % 100])
            if lanes == 1 and (terminated or truncated):
                env.reset()
        return steps * lanes / (time.thread_time() - began)

    return pace


def paced_jax(module: str, manual: Callable[..., Any] | None) -> Callable[[], float]:
    """Return a function that steps many environments under `jit` and `lax.scan`."""
    import jax

    world = importlib.import_module(f"{module}.jax_environment")
    if manual is not None:
        world = importlib.reload(world)
        world.take_step = manual
    space = gymnasium.make(f"{module}:{importlib.import_module(module).ID}").action_space
    actions = jax.numpy.array([space.sample() for _ in range(JAX_LANES)])
    step, reset = world.step, world.reset

    @jax.jit
    def play(states: Any, key: Any) -> Any:
        def advance(states: Any, key: Any) -> Any:
            keys = jax.random.split(key, JAX_LANES)
            _, states, rewards, _, _ = jax.vmap(step)(keys, states, actions)
            return states, rewards.sum()

        return jax.lax.scan(advance, states, jax.random.split(key, JAX_STEPS))

    key = jax.random.key(0)
    _, states = jax.vmap(reset)(jax.random.split(key, JAX_LANES))
    jax.block_until_ready(play(states, key))

    def pace() -> float:
        began = time.perf_counter()
        jax.block_until_ready(play(states, key))
        return JAX_LANES * JAX_STEPS / (time.perf_counter() - began)

    return pace


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
