"""The prompts of a search are stored in a file that the journal does not depend on."""

import json
from pathlib import Path

import pytest

from cwm_cli.errors import CwmError
from cwm_cli.runs.nodes import PROMPTS, PromptFile, pieces, tree_data
from cwm_cli.runs.searches import JOURNAL, SearchConfig, SearchHeader, SearchRun
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import Message, Node, Record, Usage, Verdict, prompt_hash

LONG = "This is how the environment works, and it takes some words to say so.\n\n" * 20


def asked(number: int) -> tuple[Message, ...]:
    return (
        Message(role="system", content="You write programs."),
        Message(role="user", content=f"{LONG}Question number {number}?\n\nAnswer: \u2028 äöü"),
    )


def found(number: int, parent: int = -1) -> Record:
    messages = asked(number)
    failure = Failure("step_error", "NameError: x\nat line 1: x", 1) if number == 1 else None
    node = Node(
        number,
        number,
        parent,
        "generate" if parent < 0 else "improve",
        f"a = {number}\nb = 2\n",
        Verdict(score=0.1 * number, failure=failure, findings="rows 3 and 4"),
        prompt_hash(messages),
        Usage(10, 5, None, 1.0),
    )
    return Record(node, f"Here:\n\n```python\na = {number}\nb = 2\n```", messages=messages)


def started(folder: Path, count: int = 3) -> SearchRun:
    config = SearchConfig(env="CartPole-v1", dataset="0", strategy="s", backend="b")
    header = SearchHeader(config=config, description="d", source="s")
    with SearchRun.begin(folder, header) as run:
        for number in range(count):
            run.learn(found(number, number - 1))
    return run


def test_shared_parts_of_prompts_are_written_once(tmp_path: Path) -> None:
    run = started(tmp_path / "run", 10)
    assert PromptFile(run.folder).read() == {prompt_hash(asked(n)): asked(n) for n in range(10)}
    assert (run.folder / PROMPTS).stat().st_size < 2 * len(LONG) + 10 * 500
    with run:
        run.learn(found(3))
    lines = (run.folder / PROMPTS).read_text().splitlines()
    assert sum("prompt" in json.loads(line) for line in lines) == 10


def test_pieces_add_up_to_the_text() -> None:
    for text in ("", "a", "\n\n\n", LONG, f"{LONG}x\n\n\n\ny" * 3, "x\n\n" * 100):
        assert "".join(pieces(text)) == text


def test_continued_run_repairs_a_truncated_or_damaged_prompt_file(
    tmp_path: Path,
) -> None:
    run = started(tmp_path / "run", 3)
    file = run.folder / PROMPTS
    whole = file.read_bytes()
    for cut in range(0, len(whole), 97):
        file.write_bytes(whole[:cut])
        known = PromptFile(run.folder).read()
        assert set(known.values()) <= {asked(n) for n in range(3)}
        for number in range(3):
            PromptFile(run.folder).keep(prompt_hash(asked(number)), asked(number))
        assert len(PromptFile(run.folder).read()) == 3
    lines = whole.splitlines(keepends=True)
    for place, line in enumerate(lines):
        changed = line.replace(b"words", b"lies").replace(b"Question", b"?").replace(b"user", b"u")
        for other in (changed, b"?\n", b'{"piece": null}\n', b'{"messages": 3}\n', b"[]\n"):
            file.write_bytes(b"".join([*lines[:place], other, *lines[place + 1 :]]))
            assert set(PromptFile(run.folder).read().values()) <= {asked(n) for n in range(3)}


def test_run_does_not_need_its_prompt_file(tmp_path: Path) -> None:
    run = started(tmp_path / "run", 3)
    journal = (run.folder / JOURNAL).read_bytes()
    (run.folder / PROMPTS).unlink()
    again = SearchRun.load(run.folder)
    assert [one.prompt for one in again.node_details()] == [None] * 3
    assert {one.prompt_words for one in again.node_details()} == {"prompt not saved"}
    assert b"environment works" not in journal


def test_node_has_its_prompt_and_the_difference_to_its_parent(tmp_path: Path) -> None:
    run = started(tmp_path / "run", 3)
    node = run.node_detail(1)
    assert node.prompt == asked(1) and node.completion.startswith("Here:")
    assert node.difference() == [
        "--- #0",
        "+++ #1",
        "@@ -1,2 +1,2 @@",
        "-a = 0",
        "+a = 1",
        " b = 2",
    ]
    assert node.state == "bug" and run.node_detail(2).is_best
    assert run.node_detail(0).difference() is None
    assert node.figures()["cost in US dollars"] == "unknown"
    assert node.as_json()["prompt"][1]["content"] == asked(1)[1].content
    with pytest.raises(CwmError, match="has no node 3: choose 0 to 2"):
        run.node_detail(3)


def test_tree_contains_each_text_once(tmp_path: Path) -> None:
    data = tree_data(started(tmp_path / "run", 3).node_details())
    texts = data["texts"]
    assert len(texts) == len(set(texts)) and sum("it takes some words" in t for t in texts) == 1
    for number, node in enumerate(data["nodes"]):
        assert "".join(texts[place] for place in node["prompt"][1][1]) == asked(number)[1].content
        assert "".join(texts[place] for place in node["program"]) == f"a = {number}\nb = 2\n"


def test_search_continues_if_prompts_cannot_be_saved(tmp_path: Path) -> None:
    run = started(tmp_path / "run", 1)
    (run.folder / PROMPTS).unlink()
    (run.folder / PROMPTS).mkdir()
    with SearchRun.load(run.folder) as again:
        again.learn(found(1, 0))
    assert "the prompt of node 1 was not saved" in (run.folder / "log.txt").read_text()
    assert [one.node.id for one in again.node_details()] == [0, 1]
