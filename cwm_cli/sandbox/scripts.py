"""The trusted side of scripts: what a program prints, or what a function of it returns."""

from typing import NamedTuple

from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.scripting import ScriptJob


class Printed(NamedTuple):
    """What a program wrote to standard output, up to its end or its failure."""

    text: str
    failure: Failure | None


def run_script(
    sandbox: Sandbox, program: str, stdin: str = "", *, function: str = "", seed: int = 0
) -> Printed:
    """Run a program that reads standard input and writes standard output.

    With a `function` that is called, with the JSON list in standard input, and its
    answer comes back as JSON. All CPU time may go into one step, as there are no rows.
    """
    job = ScriptJob(program=program, seed=int(seed), function=function)
    reply = sandbox.run(job, stdin.encode("utf-8", "replace"))
    return Printed(reply.output.decode("utf-8", "replace"), reply.failure)
