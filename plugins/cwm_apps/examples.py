"""An example of a coding problem, for the conformance tests."""

from cwm_apps.problem import CodingProblem
from cwm_apps.reading import read, shipped
from cwm_apps.tasks import CodingTask
from cwm_cli.testing.conftest import Material


def coding_problem(material: Material) -> CodingProblem:
    """Return the first bundled problem."""
    task = next(task for task in read(shipped()) if isinstance(task, CodingTask))
    return CodingProblem(task, material.sandbox)
