"""Record the datasets that ship in `data/`: those of `cwm collect` with its defaults.

Run again, with the versions that the metadata name, it writes the same bytes.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from cwm_cli.agents.collecting import shipped_name
from cwm_cli.agents.recording import record
from cwm_cli.bench.configuration import SUITES
from cwm_cli.registry import environment

FOLDER = Path(__file__).parents[1] / "data" / "cwm_data"

LARGE = ("HumanoidStandup-v5",)
"""Environments whose observations take too much room: their data are collected on first use."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Record each environment and print how large its file is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; all that ship unless any is given")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args(arguments)
    for env in chosen.envs or [env for env in SUITES["cwmb"] if env not in LARGE]:
        file = chosen.folder / shipped_name(env)
        began = time.monotonic()
        record(environment(env)).save(file)
        seconds = time.monotonic() - began
        print(f"{env:26} {file.stat().st_size / 1e6:5.2f} MB {seconds:5.0f} s", flush=True)


if __name__ == "__main__":
    main()
