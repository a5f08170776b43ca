"""Compare the duration of `cwm --help` with the `--help` of an empty Typer application.

Both start alternately as new processes, with compiled bytecode. The script also counts the modules
of this project and the heavy libraries that `cwm --help` imports.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.claims import Claim, Measured
from benchmarks.measuring import in_turn
from benchmarks.script import main

EMPTY = """
import typer
app = typer.Typer(no_args_is_help=True)
@app.command()
def one() -> None: ...
@app.command()
def two() -> None: ...
app()
"""
CWM = "from cwm_cli.cli import main; main()"
HEAVY = ("litellm", "mujoco", "gymnasium", "numpy", "torch", "pydantic")


def measure(quick: bool) -> Measured:
    """Start both alternately."""
    with tempfile.TemporaryDirectory() as folder:
        empty, cwm = Path(folder, "empty.py"), Path(folder, "cwm_help.py")
        empty.write_text(EMPTY)
        cwm.write_text(CWM)
        rounds = 3 if quick else 30
        times = in_turn(lambda _: start(empty), lambda _: start(cwm), rounds)
    return Measured(times.costs, times.milliseconds("empty", "cwm"), count_imports())


def start(script: Path) -> None:
    """Run a script with `--help`."""
    subprocess.run([sys.executable, str(script), "--help"], check=True, stdout=subprocess.DEVNULL)


def count_imports() -> dict[str, int]:
    """Count the modules of this project and the heavy libraries that `cwm --help` imports."""
    code = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(list(sys.modules)), file=sys.stderr))
sys.argv = ["cwm", "--help"]
{CWM}
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    names = json.loads(done.stderr.splitlines()[-1])
    return {
        "own modules": sum(name.startswith("cwm_") for name in names),
        "heavy libraries": len(set(HEAVY).intersection(names)),
    }


CLAIMS = (
    Claim(
        "startup",
        "`cwm --help` against the `--help` of an empty Typer application",
        measure,
        goal=1.6,
        is_cost=True,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
