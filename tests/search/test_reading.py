"""Extraction of programs from the answers of language models."""

import json
import subprocess
import sys

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cwm_cli.search.reading import extract_program

PROGRAM = '''\
import math

import numpy as np


class Environment:
    """Two rooms.

    >>> Environment().step(0)
    """

    def __init__(self):
        self.position = 0

    def set_state(self, observation):
        self.position = int(observation)

    def step(self, action):
        self.position = max(0, self.position + 2 * action - 1)

        return self.position, math.exp(-self.position), self.position > 3
'''
LINES = PROGRAM.splitlines(keepends=True)
NESTED = '''\
class Environment:
    """A world.

    ```python
    Environment().step(0)
    ```

~~~
a picture
~~~
    """

    def set_state(self, observation):
        self.state = "```" + observation

    def step(self, action):
        return self.state, 0.0, False
'''
HELPER = "def helper():\n    return 1\n"
SCRIPT = "n = int(input())\nprint(n * 2)\n"
LABELS = ["python", "py", "Python3", "PYTHON", "", " python", "python title=world.py", "{.python}"]
PROSE = ["", "Here is the program:", "It's simple.\n\n- position: 0 to 3\n- `step` moves\n"]


def fenced(program, *, label="python", mark="```", indent="", close=True):
    lines = "".join(indent + line for line in program.splitlines(keepends=True))
    return f"{indent}{mark}{label}\n{lines}" + (f"{indent}{mark}" if close else "")


def unbroken(text):
    """Return the lines that are not blank."""
    return [line.rstrip() for line in text.split("\n") if line.strip()]


programs = st.sampled_from([PROGRAM, NESTED, SCRIPT, "def f(x):\n\treturn x\n"])
NOISE = [
    *LINES,
    *("```\n", "```python\n", "~~~\n", "  ```py\n", '"""\n', "\r", "\ud800", "\ufeff"),
    *("class Environment:\n", "    def step(self, action):\n", "x = 1\n", "Sure.\n", "\t\n"),
]
texts = st.text() | st.lists(st.sampled_from(NOISE), max_size=30).map("".join)


@given(
    programs,
    st.sampled_from(LABELS),
    st.sampled_from(["```", "~~~", "`````"]),
    st.sampled_from(["", "  ", "\t"]),
    st.tuples(st.sampled_from(PROSE), st.sampled_from(PROSE)),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_a_program_is_read_from_any_fence(program, label, mark, indent, around, line_end):
    block = fenced(program, label=label, mark=mark, indent=indent)
    text = f"{around[0]}\n{block}\n{around[1]}".replace("\n", line_end)
    assert extract_program(text) == program


@given(texts, texts)
@example("x = 1\x00", "")
@example("```\n" + "(" * 5000, "")
@example("-" * 20_000 + "1", "x = \\")
def test_any_text_gives_an_encodable_program_or_none(text, prefix):
    program = extract_program(text, prefix)
    json.dumps(program, ensure_ascii=False).encode("utf-8")
    assert "\r" not in program
    assert program == "" or program.endswith("\n")
    assert not program.endswith("\n\n")


@given(texts, texts)
@example("```\n  x = 1\n y\n```", "")
@example("```\n  y = 1\n```", "  x = 1\n")
def test_an_extracted_program_is_extracted_again_from_a_fence(text, prefix):
    program = extract_program(text, prefix)
    mark = "`" * 3
    while mark in program:
        mark += "`"
    assert extract_program(fenced(program, mark=mark)) == program


@given(programs, st.integers(1, 30), st.booleans(), st.sampled_from(PROSE))
def test_the_prefix_is_added_to_a_continuation(program, cut, close, before):
    lines = program.splitlines(keepends=True)
    rest = "".join(lines[cut:])
    assume(rest.strip())
    prefix = "".join(lines[:cut])
    mark = "~~~~" if "```" in program else "```"
    assert extract_program(f"{before}\n{fenced(rest, mark=mark, close=close)}", prefix) == program


@given(st.integers(1, len(LINES) - 1), st.sampled_from(["whole", "spaces", "no blanks"]))
def test_a_completion_that_repeats_the_prefix_is_unchanged(cut, change):
    answer = {
        "whole": PROGRAM,
        "spaces": PROGRAM.replace("\n", "  \n"),
        "no blanks": PROGRAM.replace("\n\n", "\n"),
    }[change]
    found = extract_program(fenced(answer), "".join(LINES[:cut]))
    assert found == answer.rstrip() + "\n"


@pytest.mark.parametrize("cut", [9, 14, 17, 20])
def test_a_continuation_without_a_fence_is_read(cut):
    assert extract_program("".join(LINES[cut:]), "".join(LINES[:cut])) == PROGRAM


@pytest.mark.parametrize("cut", [6, 7, 12, 13, 15, 16, 18, 19])
def test_a_continuation_may_begin_with_the_last_lines_of_the_prefix(cut):
    overlapping = fenced("".join(LINES[cut - 2 :]))
    found = extract_program(overlapping, "".join(LINES[:cut]))
    assert unbroken(found) == unbroken(PROGRAM)


@pytest.mark.parametrize("cut", [6, 12, 13, 20])
def test_a_completion_that_starts_over_is_unchanged(cut):
    other = "import json\n\n\n" + NESTED
    assert extract_program(fenced(other), "".join(LINES[:cut])) == other


def test_a_program_with_another_start_keeps_what_the_prefix_imports():
    prefix = "import numpy as np\n"
    assert extract_program(fenced(NESTED), prefix) == prefix + NESTED


def test_a_completion_whose_fence_was_opened_by_the_prompt_is_read():
    cut = 13
    text = "".join(LINES[cut:]) + "```\nThe agent moves by one."
    assert extract_program(text, "".join(LINES[:cut])) == PROGRAM


def test_a_usage_example_after_a_continuation_is_not_the_program():
    rest, usage = "".join(LINES[13:]), "environment = Environment()\nenvironment.step(1)\n"
    text = f"{fenced(rest)}\nUse it so:\n{fenced(usage)}"
    assert extract_program(text, "".join(LINES[:13])) == PROGRAM


def test_explanations_around_the_program_are_removed():
    snippet = fenced("position = max(0, position - 1)\n" * 40)
    text = f"The bug:\n{snippet}\nCorrected:\n{fenced(PROGRAM)}\nTry it:\n{snippet}"
    assert extract_program(text) == PROGRAM


def test_the_last_of_several_complete_world_models_counts():
    draft = PROGRAM.replace("> 3", "> 33333")
    assert extract_program(f"{fenced(draft)}\nNo, 3:\n{fenced(PROGRAM)}") == PROGRAM


@pytest.mark.parametrize("body", ["        ...", "        pass", '        """As before."""'])
def test_a_shortened_repetition_does_not_count_as_complete(body):
    short = (
        f"class Environment:\n    def set_state(self, o):\n{body}\n    def step(self, a):\n{body}"
    )
    assert extract_program(f"{fenced(PROGRAM)}\nIn short:\n{fenced(short)}") == PROGRAM


def test_a_program_in_several_blocks_is_joined():
    pieces = ["".join(LINES[:13]), "".join(LINES[13:17]), "".join(LINES[17:])]
    text = "\nThen:\n".join(fenced(piece.strip("\n") + "\n") for piece in pieces)
    assert unbroken(extract_program(text)) == unbroken(PROGRAM)


def test_a_cut_off_world_model_is_preferred_to_a_complete_snippet():
    cut = PROGRAM[: PROGRAM.index("exp(")]
    text = f"{fenced(HELPER)}\n{fenced(cut, close=False)}"
    assert extract_program(text) == cut + "\n"


def test_the_longest_definition_wins_and_the_later_one_breaks_ties():
    first, second = "def f():\n    return 1\n", "def g():\n    return 2\n"
    data = fenced("3 4 5\n" * 30, label="text")
    assert extract_program(f"{fenced(first)}\n{fenced(second)}\n{data}") == second


def test_a_script_is_preferred_to_its_output():
    output = fenced("1\n" * 50, label="")
    assert extract_program(f"{fenced(SCRIPT)}\nprints\n{output}") == SCRIPT


@pytest.mark.parametrize("program", [PROGRAM, NESTED, SCRIPT, "import this\n", "x: int = 1\n"])
def test_code_without_a_fence_is_the_program(program):
    assert extract_program(f"\ufeff\n{program}\n\n") == program


@pytest.mark.parametrize(
    "text", ["", "\n", "Sorry.", "yes", "Answer: 42", "Done: yes", "```\n```", "1 + 1", "..."]
)
def test_prose_gives_no_program(text):
    assert extract_program(text) == ""
    assert extract_program(text, "import math\n") == ""


def test_code_is_dedented_only_if_it_then_parses():
    indented = "".join("    " + line for line in SCRIPT.splitlines(keepends=True))
    assert extract_program(fenced(indented)) == SCRIPT
    assert extract_program(fenced(indented), "def main():\n") == "def main():\n" + indented


def test_invisible_characters_and_lone_surrogates_are_removed():
    text = "```python\nx\u200b = '\ud83d\ude00 \ud800'\ufeff\n```"
    assert extract_program(text) == "x = '\U0001f600 \ufffd'\n"


def test_tabs_and_trailing_spaces_inside_a_program_stay():
    program = "def f():\n\treturn '''a  \n\n\tb'''\n"
    assert extract_program(fenced(program)) == program


def test_extraction_hides_the_syntax_warnings_of_a_program():
    text = r"PATTERN = '\d'"
    code = f"from cwm_cli.search.reading import extract_program\nprint(extract_program({text!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == text + "\n\n"
