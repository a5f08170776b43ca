"""Run the notebooks of the examples in an empty folder.

`python -m benchmarks.documentation.notebooks` runs each notebook and stores its outputs.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

from benchmarks.documentation.pages import ROOT

EXAMPLES = ROOT / "examples"

SECONDS = 120
"""Time limit of a cell."""


def notebooks() -> list[Path]:
    """Return the notebooks of the examples."""
    return sorted(EXAMPLES.glob("*.ipynb"))


def execute(file: Path, folder: Path, checks: str = "") -> nbformat.NotebookNode:
    """Run a notebook in a folder and return it with its outputs.

    Args:
        file: The notebook.
        folder: Working folder; the cache of datasets is inside it.
        checks: Python code that runs after the last cell.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell or the checks raised an error.
    """
    notebook = nbformat.read(file, as_version=4)
    if checks:
        notebook.cells.append(nbformat.v4.new_code_cell(checks))
    variables = {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=os.environ | variables)
    if checks:
        notebook.cells.pop()
    return notebook


def main() -> None:
    """Run the notebooks and store their outputs."""
    for file in notebooks():
        with TemporaryDirectory(prefix="cwm-notebook-") as folder:
            notebook = execute(file, Path(folder))
        notebook.metadata.pop("language_info", None)  # has the version of Python
        for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
            if "text/html" in output.get("data", ()):
                del output.data["text/plain"]  # whole datasets
        nbformat.write(notebook, file)
        print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
