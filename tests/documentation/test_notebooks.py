import re

import nbformat
import pytest

from benchmarks.documentation.comparing import matches
from benchmarks.documentation.notebooks import execute, notebooks

CHECKS = {
    "first_program": """
assert found.solved and found.scores.test.exact == 1.0
assert scores.scores.test == found.scores.test and scores.rollouts[-1].error < 0.01
assert played.returns == [100.0, 100.0] and played.random.mean < 50
assert len(recorded) == len(predicted) >= 20 and abs(recorded - predicted).max() < 0.01
"""
}
"""Results that have to hold after the last cell."""


def shown(cell):
    """Return the printed text and the text of the tables of a cell."""
    outputs = cell.get("outputs", [])
    printed = "".join(each.get("text", "") for each in outputs if each.get("name") == "stdout")
    tables = [each.get("data", {}).get("text/html", "") for each in outputs]
    return printed, re.sub("</tr>", "\n", "".join(tables)).replace("<", " <")


def kinds(cell):
    return [sorted({"text/plain", *each.get("data", ())}) for each in cell.get("outputs", [])]


@pytest.mark.slow
@pytest.mark.parametrize("file", notebooks(), ids=lambda file: file.stem)
def test_notebook_runs_and_stores_the_outputs_of_its_cells(file, tmp_path):
    stored = [cell for cell in nbformat.read(file, as_version=4).cells if cell.source]
    ran = execute(file, tmp_path, CHECKS[file.stem]).cells
    assert len(ran) == len(stored)
    for old, new in zip(stored, ran, strict=True):
        assert kinds(old) == kinds(new), old.source
        for one, other in zip(shown(old), shown(new), strict=True):
            texts = (re.sub("<[^>]+>", "", each) for each in (one, other))
            assert matches(*texts, loose="<td" in one), other


@pytest.mark.slow
def test_notebook_with_a_failing_cell_or_check_is_refused(tmp_path):
    from nbclient.exceptions import CellExecutionError

    file = tmp_path / "made.ipynb"
    cells = [nbformat.v4.new_code_cell("half = 5 / 2")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), file)
    assert execute(file, tmp_path, "assert half == 2.5").cells[0].outputs == []
    with pytest.raises(CellExecutionError, match="AssertionError"):
        execute(file, tmp_path, "assert half == 2")
