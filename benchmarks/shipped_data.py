"""Record the shipped datasets in `data/`, as `cwm collect` does with its defaults.

With the package versions in the metadata, a second run writes the same bytes. Episodes of an
existing file are kept if this version of the collector would record the same ones; `--anew`
records all episodes again.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from cwm_cli.commands.collect import shipped_name
from cwm_cli.commands.recording import COLLECTOR_VERSION, Recording
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.tasks import SUITES
from cwm_cli.registry import environment

FOLDER = Path(__file__).parents[1] / "data" / "cwm_data"

SAME_EPISODES = (6, COLLECTOR_VERSION)
"""Versions of the collector that record equal episodes, unless they try all actions (coverage)."""


def load_episodes(file: Path, versions: dict[str, str]) -> Dataset | None:
    """Return the episodes of a file that this collector would record, with these packages."""
    if not file.exists():
        return None
    dataset = Dataset.load(file)
    known = dataset.metadata
    same = known["collector"] in SAME_EPISODES and known["versions"] == versions
    current = known["collector"] == COLLECTOR_VERSION or "coverage" not in known["policies"]
    return dataset if same and current else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Record each environment and print the size of its file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="*", help="ids; default: all shipped datasets")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--anew", action="store_true", help="record all episodes again")
    chosen = parser.parse_args(arguments)
    for env in chosen.envs or SUITES["cwmb"]:
        file = chosen.folder / shipped_name(env)
        began = time.monotonic()
        spec = environment(env)
        existing = None if chosen.anew else load_episodes(file, dict(spec.versions()))
        recording = Recording(spec, begun=existing)
        kept = recording.done
        recording.play()
        dataset = recording.dataset()
        dataset.save(file)
        rows, seconds = f"{len(dataset.train)} + {len(dataset.test)} rows", time.monotonic() - began
        size = f"{file.stat().st_size / 1e6:5.2f} MB"
        print(f"{env:26} {size} {rows:>18} {kept:3} kept {seconds:5.0f} s", flush=True)


if __name__ == "__main__":
    main()
