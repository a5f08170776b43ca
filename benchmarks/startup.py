"""How long `cwm --help` takes, against the `--help` of an empty Typer application.

Run with `python -m benchmarks.startup`. Both are started in turns as new
processes with their bytecode compiled; the goal is a ratio of at most 1.6.
Also prints which of the heavy libraries `cwm --help` imports (goal: none).
"""

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
ROUNDS = 30


def seconds(script: Path) -> float:
    """Time one `--help`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, str(script), "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def heavy_imports() -> list[str]:
    """Name the heavy libraries that `cwm --help` imports."""
    code = f"""
import atexit, sys
atexit.register(lambda: print(*set({HEAVY!r}).intersection(sys.modules), file=sys.stderr))
sys.argv = ["cwm", "--help"]
{CWM}
"""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr.split()


def main() -> None:
    """Measure in turns and print the medians and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        scripts = {"empty": Path(folder, "empty.py"), "cwm": Path(folder, "cwm_help.py")}
        scripts["empty"].write_text(EMPTY)
        scripts["cwm"].write_text(CWM)
        times: dict[str, list[float]] = {name: [] for name in scripts}
        for _ in range(ROUNDS):
            for name, script in scripts.items():
                times[name].append(seconds(script))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["cwm"] / medians["empty"]
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    print(f"empty Typer app {medians['empty'] * 1e3:.0f} ms, cwm {medians['cwm'] * 1e3:.0f} ms")
    print(f"ratio {ratio:.2f} (goal at most 1.60); heavy imports: {heavy_imports() or 'none'}")


if __name__ == "__main__":
    main()
