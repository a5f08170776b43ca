"""If the kernel cannot confine programs, their source is checked."""

import json
import subprocess
import sys

import pytest

from benchmarks.scoring import PROGRAM
from cwm_cli.sandbox.confinement import ForbiddenName, check_source
from old_kernel import available, on_old_kernel

REACHING = {
    "import os": "os",
    "import math, os.path": "os.path",
    "from subprocess import run": "subprocess",
    "def f():\n    import ctypes": "ctypes",
    "open('x')": "open",
    "f = open": "open",
    "eval('1')": "eval",
    "__import__('os')": "__import__",
    "import sys\nsys.modules['os']": "modules",
    "().__class__.__base__.__subclasses__()": "__subclasses__",
    "(lambda: 0).__globals__": "__globals__",
    "import numpy\nnumpy.load('x')": "load",
    "import random\nrandom.os": "os",
}


@pytest.mark.parametrize("program", REACHING)
def test_source_that_does_more_than_compute_is_refused(program: str) -> None:
    with pytest.raises(ForbiddenName) as refusal:
        check_source(program, "<program>")
    assert refusal.value.filename == "<program>"
    assert refusal.value.msg.startswith(repr(REACHING[program]))


@pytest.mark.parametrize(
    "program",
    [
        PROGRAM,
        "import numpy as np\nclass A:\n    def __init__(self): self.x = np.random.default_rng(0)",
        "import sys\nfor line in sys.stdin: print(line)",
        "from __future__ import annotations\nfrom dataclasses import dataclass",
        "if __name__ == '__main__': print(1)",
    ],
)
def test_source_that_only_computes_is_accepted(program: str) -> None:
    check_source(program, "<program>")


def test_forbidden_name_has_its_line() -> None:
    with pytest.raises(ForbiddenName) as refusal:
        check_source("x = 1\n\nimport socket", "<program>")
    assert refusal.value.lineno == 3


SCRIPT = """
import json, sys
from dataclasses import asdict
from cwm_cli.sandbox import GAPS, Sandbox
from cwm_apps.judging import run_script
with Sandbox(accepted=GAPS) as sandbox:
    for program in ("import os\\nprint(os.listdir('/'))", "print(sum(range(4)))"):
        text, failure = run_script(sandbox, program)
        print(json.dumps([text, failure and asdict(failure)]))
"""


@pytest.mark.slow
@available
def test_sandbox_checks_sources_on_an_old_kernel() -> None:
    command = on_old_kernel([sys.executable, "-c", SCRIPT])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [refused, passed] = map(json.loads, done.stdout.splitlines())
    assert passed == ["6\n", None]
    assert refused[0] == ""
    assert (refused[1]["kind"], refused[1]["line"]) == ("load_error", 1)
    assert "'os' is not allowed" in refused[1]["message"]
