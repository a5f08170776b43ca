"""An answer without a program is no bug: the question is asked again, once, with the reason."""

import json

import pytest

from cwm_cli.runs.searches import SearchRun
from recordings import cartpole

ANSWER = f"```python\n{cartpole()}```"


@pytest.fixture
def asked(cwm):
    """Return what asks CartPole's questions, answered by texts; it returns result and prompts."""

    def search(*texts):
        folder = cwm.folder / "answers"
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"{number}.md").write_text(text)
        about = ("--env", "CartPole-v1", "--backend", "replay", "--model", "answers")
        limit = ("--budget", str(len(texts)), "--run", "run", "--json")
        newest = ("--strategy", "worldcoder", "-o", "sequential=True")
        done = cwm.inside("synthesize", *about, *newest, *limit)
        run = SearchRun.load(cwm.folder / "run")
        prompts = run.prompts.read()
        nodes = list(run.nodes())
        return json.loads(done.stdout), nodes, [prompts[node.prompt][-1].content for node in nodes]

    return search


@pytest.mark.slow
def test_a_completion_without_a_program_is_requested_again_with_the_reason(asked):
    result, nodes, prompts = asked("I would rather think about it.", ANSWER)
    assert (result["solved"], result["completions"]) == (True, 2)
    assert nodes[0].verdict.failure.kind == "no_answer"
    first, second = prompts
    assert second.startswith(first)
    said = second.removeprefix(first)
    assert "held no whole program: there is no program in it." in said
    assert "the whole program in one ```python block" in said


@pytest.mark.slow
def test_a_prompt_that_fails_twice_is_replaced(asked):
    _, _, prompts = asked("No.", "No, again.", ANSWER)
    assert "held no whole program" in prompts[1]
    assert "held no whole program" not in prompts[2]
    assert "This was asked before" in prompts[2]


@pytest.mark.slow
def test_an_improvement_without_a_program_is_requested_again(asked):
    wrong = cartpole(gravity=5)
    _, nodes, prompts = asked(f"```python\n{wrong}```", "It is fine.", ANSWER)
    assert [node.parent for node in nodes] == [-1, 0, 1]
    assert prompts[2].startswith(prompts[1])
    assert wrong.strip() in prompts[2]
