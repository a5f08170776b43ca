"""What the README shows in Python runs as it stands there."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(heading: str) -> list[str]:
    """Return the Python blocks of a section."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)


@pytest.mark.slow
def test_the_library_does_in_ten_lines_what_the_commands_do(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (example,) = blocks("In Python")
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["found"].solved
    assert names["found"].scores.test.exact == 1.0
    assert names["scores"].scores.test == names["found"].scores.test
    assert len(names["scores"].rollouts) > 0
    assert names["played"].mean > names["played"].sides["random"].mean.mean
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("True 1.0\n")


def test_the_strategy_of_the_readme_is_one():
    from cwm_cli.search.contracts import GENERATE, Strategy

    (example,) = blocks("Write a plugin")
    names = {"__name__": "greedy"}
    exec(compile(example, "README.md", "exec"), names)
    assert issubclass(names["cwm_strategies"]()["greedy"], Strategy)
    assert names["Greedy"](seeds=2).select(None, ()).action == GENERATE
