"""The process of a problem: `python -m cwm_apps.worker FOLDER NUMBER`.

It searches for a program of a problem whose run its parent process has created, and judges the
program. It ends when its parent ends. Before it exits with code 0, the result is in the folder of
the problem. It may be repeated at any time. It does not need the data of the problems.
"""

import os
import sys

from cwm_apps.choices import CodingAccess, coding_parts
from cwm_apps.jobs import ACCESS, job_name
from cwm_apps.runs import CodingRun
from cwm_apps.scripts import ScriptJob
from cwm_apps.work import ProblemSearch
from cwm_cli.bench.executor import job_process
from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.storage import HEADER, bring, located, placed
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.search.spending import SPENDING, CostLimit


def search(coding: CodingRun, number: int, access: CodingAccess) -> None:
    """Finish the search of a problem.

    Raises:
        CwmError: If the search could not be finished.
    """
    config = coding.header.config
    parts = coding_parts(config.strategy, config.backend, config.model, access, judge=config.rules)
    coding.check(config.model_copy(update={"options": parts.options}))
    limits = Limits(**config.options["sandbox"])
    with SearchRun.load(placed(coding.problem_folder(number))) as run:
        limit = CostLimit.shared(job_name(number))  # after locking, so that it is this job's own
        if access.max_cost is not None and limit is None:
            raise CwmError(f"the cost limit is unknown: the executor does not pass on ${SPENDING}")
        # Programs that a job runs at a time. A low number leaves cores for other jobs.
        sandbox_workers = 2
        with Sandbox(limits, sandbox_workers, accepted=access.accepted) as sandbox:
            sandbox.prepare(ScriptJob.handler)
            search = ProblemSearch(coding=coding, parts=parts, sandbox=sandbox, access=access)
            search.solve(run, limit)


def main() -> None:
    """Search for the problem of the command line."""
    with job_process():
        folder, number = sys.argv[1:]
        access = CodingAccess.model_validate_json(os.environ.pop(ACCESS, "{}"))
        place = located(folder)
        bring(place / HEADER)
        search(CodingRun.load(place), int(number), access)


if __name__ == "__main__":
    main()
