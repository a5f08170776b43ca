"""Killed runs of an older version can be continued with equal results."""

import ast
import json
import shutil
import tarfile

import pytest

from folders import SUPPORT

OLD_RUNS = SUPPORT / "old_runs"
FINISHED = json.loads((OLD_RUNS / "finished.json").read_text())


def without_docstrings(text: str) -> str:
    """Return a program without comments and docstrings, whose wording may change; or the text."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


@pytest.mark.parametrize(
    "name",
    [
        "synthesize",
        "theorize",
        pytest.param("learn", marks=pytest.mark.slow),
        pytest.param("train", marks=pytest.mark.slow),
        pytest.param("benchmark", marks=pytest.mark.slow),
    ],
)
def test_run_of_an_older_version_ends_with_the_same_result(name, cwm):
    if name == "train":
        pytest.importorskip("torch")
    with tarfile.open(OLD_RUNS / f"{name}.tar.gz") as archive:
        # Python 3.11.2 of Debian 12 has no filters.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(cwm.folder, **safe)
    shutil.copy(OLD_RUNS / "cliff.txt", cwm.folder / "cliff.py")
    run = cwm.folder / name
    (journal,) = (run / file for file in ("nodes.jsonl", "journal.jsonl") if (run / file).exists())
    written = journal.read_text()

    done = cwm.inside(*json.loads((run / "run.json").read_text())["command"])

    assert done.returncode == 0, done.stderr
    expected = FINISHED[name]
    assert journal.read_text().startswith(written)
    assert len(journal.read_text().splitlines()) == expected["records"]
    result = json.loads((run / "result.json").read_text())
    assert {key: result[key] for key in expected["result"]} == expected["result"]
    best = [file.read_text() for file in sorted(run.rglob("best.*"))]
    assert list(map(without_docstrings, best)) == list(map(without_docstrings, expected["best"]))
