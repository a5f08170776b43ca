"""The process of a training in a job: `python -m cwm_neural.worker ARGUMENTS`.

The argument is a JSON object with the arguments of `cwm.train`. The process ends when its parent
process ends.
"""

import json
import sys

from rich.console import Console

from cwm_cli.bench.executor import job_process
from cwm_neural.training.train import train
from cwm_neural.view import TrainingLines


def main() -> None:
    """Train with the arguments of the command line."""
    with job_process():
        train(**json.loads(sys.argv[1]), observer=TrainingLines(Console(stderr=True)))


if __name__ == "__main__":
    main()
