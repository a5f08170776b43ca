"""Files of every kind, made wrong in a thousand ways: each is read, or refused in one line."""

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from coding_problems import PROBLEMS
from cwm_apps.reading import read, read_solutions
from cwm_benchmark.run import BenchmarkRun
from cwm_cli.commands.data import describe
from cwm_cli.commands.recording import record
from cwm_cli.commands.subjects import read_program
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.export import export_of
from cwm_cli.registry import environment
from cwm_cli.runs.listing import compare, list_runs, load, report_on
from cwm_cli.search.reading import extract_program
from cwm_published.buffer import read_buffer
from cwm_published.converting import convert
from mutations import (
    BYTES,
    MEGABYTES,
    SECONDS,
    Figures,
    Mutation,
    archive,
    code,
    fuzz,
    lines,
    no_file,
    opcodes,
    spoil,
    structure,
    swap,
)
from published_buffer import published
from recordings import cartpole
from shell import Shell

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux"
)

COUNT = int(os.environ.get("CWM_MUTATIONS", "1000"))
FIRST = int(os.environ.get("CWM_MUTATIONS_FROM", "0"))
"""Number of mutations of each format, and the first seed; set other values to test more."""


def all_right(figures: Figures) -> None:
    """Return the mutations that were neither read nor refused in one line."""
    print(figures)  # noqa: T201  # what `pytest -s` shows
    endings: dict[str, str] = {}
    for case in figures.wrong:
        said = case.said.strip().splitlines()[-1:] or [""]
        key = f"{case.ending}: {said[0][:100]}"
        endings.setdefault(
            key, f"seed {case.seed}, {case.way}, {case.megabytes:.0f} MB\n{case.said}"
        )
    assert not endings, f"{figures}\n" + "\n\n".join(f"{k} ({v})" for k, v in endings.items())


ALONE = ["*"]
"""Of a folder of files that have nothing to do with each other one is kept."""


def spoil_one(
    names: list[str], mutations: tuple[Mutation, ...], rng: random.Random, folder: Path
) -> tuple[str, Path]:
    """Make one of some files wrong."""
    files = sorted(file for name in names for file in folder.glob(name) if file.is_file())
    file = rng.choice(files)
    for each in files if names == ALONE else ():
        if each != file:
            each.unlink()
    return f"{spoil(rng, file, mutations)} in {file.relative_to(folder)}", file


def tried(
    folder: Path, names: list[str], mutations: tuple[Mutation, ...], read, count=COUNT
) -> None:
    """Make files of a folder wrong one by one, and read it."""
    wrong = partial(spoil_one, names, mutations)
    all_right(fuzz(folder, wrong, read, seeds=range(FIRST, FIRST + count)))


def read_dataset(_: Path, file: Path) -> None:
    """Load a dataset as every command does."""
    dataset = Dataset.load(file)
    describe(file, dataset)
    for index in range(min(3, len(dataset))):
        dataset.row(index)
    assert dataset.fitted.sum() <= len(dataset)


@pytest.mark.slow
def test_datasets(tmp_path):
    folder = tmp_path / "data"
    for env in ("CartPole-v1", "RTFM-v0", "Taxi-v4"):
        record(environment(env), episodes=2, test_episodes=1, policy="random").save(
            folder / f"{env}.npz"
        )
    tried(folder, ALONE, (*BYTES, structure, archive, archive, archive), read_dataset)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    return Shell(tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("packages"))


SEARCHING = (
    *("synthesize", "--env", "CartPole-v1", "--dataset", "cart.npz", "--run", "search/run"),
    *("--backend", "replay", "--model", "answers", "--strategy", "zero-shot"),
)


@pytest.fixture(scope="module")
def search(shell):
    """A folder with a search and a plan."""
    record(environment("CartPole-v1"), episodes=4, test_episodes=2, policy="random").save(
        shell.folder / "cart.npz"
    )
    (shell.folder / "answers").mkdir()
    for number in range(6):
        program = cartpole(gravity=9.3 + 0.1 * number)
        (shell.folder / "answers" / f"{number}.md").write_text(f"```python\n{program}```\n")
    done = shell.inside(*SEARCHING, "--budget", "5")
    assert done.returncode == 0, done.stderr
    options = ("--episodes", "2", "--max-steps", "5", "-o", "mcts.simulations=2")
    done = shell.inside("plan", "search/run", "--oracle", *options)
    assert done.returncode == 0, done.stderr
    return shell.folder / "search"


@pytest.fixture(scope="module")
def benchmark(shell):
    """The folder with a benchmark."""
    done = shell(
        *("benchmark", "--env", "CliffWalking-v1", "--plan", "--episodes", "2", "--budget", "1"),
        *("--max-steps", "20", "--ceilings", "--run", "benchmark/run"),
    )
    assert done.returncode == 0, done.stderr
    return shell.folder / "benchmark"


@pytest.fixture(scope="module")
def coding(shell):
    """The folder with a run over coding problems."""
    file = shell.folder / "problems.jsonl"
    file.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS[:2]))
    program = "print(sum(map(int, input().split())))"
    (shell.folder / "solutions.json").write_text(json.dumps({"10": [program, "print(1)"]}))
    common = ("apps", "--data", "problems.jsonl", "--total", "1")
    done = shell.inside(*common, "--solutions", "solutions.json", "--run", "coding/judged")
    assert done.returncode == 0, done.stderr
    (shell.folder / "code").mkdir()
    (shell.folder / "code" / "0.md").write_text(f"```python\n{program}\n```\n")
    how = ("--backend", "replay", "--model", "code", "--strategy", "zero-shot", "--budget", "1")
    done = shell.inside(*common, *how, "--run", "coding/searched")
    assert done.returncode == 0, done.stderr
    return shell.folder / "coding"


def read_runs(folder: Path, file: Path) -> None:
    """Do with the runs that a file is of what the commands do that read it; all are tried."""
    refusals: list[CwmError] = []

    def attempt(act) -> None:
        try:
            act()
        except CwmError as error:
            refusals.append(error)

    list(list_runs(folder))
    for place in (path for path in file.parents if path != folder and folder in path.parents):
        try:
            run = load(place)
        except CwmError as error:
            refusals.append(error)
            continue
        attempt(lambda run=run: type(run).report([run]).markdown())
        attempt(lambda run=run: run.read_journal().damage)
        attempt(lambda run=run: isinstance(run, BenchmarkRun) and run.left())
        attempt(lambda run=run: run.__enter__().__exit__(None))
        if (place / "best.py").exists():
            attempt(lambda place=place: export_of(place))
        if (place / "dataset.npz").exists():
            attempt(lambda run=run: run.dataset())
        if place == file.parent:
            attempt(lambda place=place: report_on([place]))
            attempt(lambda place=place: compare(place, place))
    for refusal in refusals:
        if "\n" in str(refusal):
            raise refusal
    if refusals:
        raise refusals[0]


DOCUMENTS, JOURNALS = ["**/*.json"], ["**/*.jsonl"]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("search", marks=pytest.mark.slow),
        pytest.param("coding", marks=pytest.mark.slow),
        pytest.param("benchmark", marks=pytest.mark.long),
    ],
)
def test_documents(kind, request):
    folder = request.getfixturevalue(kind)
    tried(folder, DOCUMENTS, (*BYTES, *(swap,) * 9), read_runs, COUNT // 3 + 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["search", "benchmark", "coding"])
def test_journals(kind, request):
    folder = request.getfixturevalue(kind)
    tried(folder, JOURNALS, (*BYTES, *(lines,) * 9), read_runs, COUNT // 3 + 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["search", "benchmark", "coding"])
def test_other_files_of_runs(kind, request):
    folder = request.getfixturevalue(kind)
    others = ["**/best.py", "**/*.npz", "**/lock", "**/*.txt", "**/*.md", "**/*.csv"]
    tried(folder, others, BYTES, read_runs, COUNT // 10)


def read_program_text(_: Path, file: Path) -> None:
    _, text = read_program(file)
    extract_program(text)


@pytest.mark.slow
def test_programs(tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "program.py").write_text(cartpole())
    tried(folder, ALONE, (*BYTES, *(code,) * 4), read_program_text)


def read_published(_: Path, file: Path) -> None:
    dataset = convert(read_buffer(file), environment("CartPole-v1"), env_args={}).dataset
    assert len(dataset)


@pytest.mark.slow
def test_published_buffers(tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    for protocol in (0, 2, 5):
        (folder / f"{protocol}.pkl").write_bytes(published(protocol))
    tried(folder, ALONE, (*BYTES, *(opcodes,) * 5), read_published)


def read_problems(_: Path, file: Path) -> None:
    if file.name == "solutions.json":
        read_solutions(file)
    else:
        assert len(list(read(file)))


@pytest.mark.slow
def test_coding_problems(tmp_path):
    folder = tmp_path / "problems"
    folder.mkdir()
    text = "".join(json.dumps(problem) + "\n" for problem in PROBLEMS).encode()
    (folder / "plain.jsonl").write_bytes(text)
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress(text))
    (folder / "solutions.json").write_text('{"10": ["x = 1", "y"], "11": "print()"}')
    tried(folder, ALONE, (*BYTES, *(lines,) * 4, swap, swap), read_problems, COUNT // 4)


RUN, PLAN = "search/run", "search/run/plans/*/*"
COMMANDS = (
    (("evaluate", RUN), (f"{RUN}/*",)),
    ((*SEARCHING, "--budget", "6"), (f"{RUN}/*",)),
    (("plan", RUN, "--episodes", "3", "--max-steps", "5", "-o", "mcts.simulations=2"), (PLAN,)),
    (("runs", "show", RUN), (f"{RUN}/*.json*",)),
    (("runs", "list", "search", "benchmark"), ("search/run/*.json*", "benchmark/run/*.json*")),
    (("runs", "report", "benchmark/run"), ("benchmark/run/*.json*", "benchmark/run/*/*.json*")),
    (("runs", "diff", RUN, "benchmark/run"), ("search/run/*.json", "benchmark/run/*.json")),
    (("runs", "rm", "--yes", RUN), (f"{RUN}/*",)),
    (("runs", "export", RUN), (f"{RUN}/*",)),
    (("runs", "show", "coding/searched"), ("coding/searched/**/*.json*",)),
    (("data", "show", "cart.npz"), ("cart.npz",)),
    (("data", "import", "x.pkl", "--env", "CartPole-v1", "--out", "y.npz"), ("x.pkl",)),
    (("evaluate", f"{RUN}/best.py", "--env", "CartPole-v1"), (f"{RUN}/best.py",)),
)
"""What users would do with a file that is wrong, and where it would be."""


WATCHED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print("took", used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)
sys.exit(code)
"""
"""Run from a small process: the peak of a child begins with the memory of who started it."""


@pytest.mark.slow
def test_commands(shell, search, benchmark, coding, tmp_path):
    (shell.folder / "x.pkl").write_bytes(published(protocol=4))
    worst = {"seconds": 0.0, "megabytes": 0.0}
    wrong = []
    rounds = max(1, 2 * COUNT // 1000)
    for seed in range(FIRST, FIRST + rounds * len(COMMANDS)):
        words, names = COMMANDS[seed % len(COMMANDS)]
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(shell.folder, folder, ignore=shutil.ignore_patterns("cache"))
        files = sorted(path for name in names for path in folder.glob(name) if path.is_file())
        file = rng.choice(files)
        if seed % 4 == 3:
            file.unlink()
            no_file(rng, file)
        way = spoil(rng, file, FITTING.get(file.suffix, BYTES)) if seed % 4 != 3 else "no file"
        way = f"{way} in {file.relative_to(folder)}"
        ended = subprocess.run(
            [sys.executable, "-c", WATCHED, sys.executable, "-m", "cwm_cli", *words],
            cwd=folder,
            env=Shell(folder, shell.packages, {"XDG_CACHE_HOME": str(tmp_path)}).variables(),
            capture_output=True,
            text=True,
        )
        said, _, used = ended.stderr.rpartition("took ")
        taken = dict(zip(worst, map(float, used.split()), strict=True))
        worst = {name: max(worst[name], taken[name]) for name in worst}
        errors = [line for line in said.splitlines() if line.startswith("Error: ")]
        code = ended.returncode
        if "Traceback" in said or code not in (0, 1) or (code == 1 and len(errors) > 1):
            wrong.append(f"seed {seed}, {way}: {' '.join(words)} ended with {code}: {said[-1500:]}")
        if taken["seconds"] > SECONDS or taken["megabytes"] > MEGABYTES:
            wrong.append(f"seed {seed}, {way}: {' '.join(words)} took {taken}")
        shutil.rmtree(folder)
    print(f"{rounds * len(COMMANDS)} commands, the worst took {worst}")  # noqa: T201
    assert not wrong, "\n\n".join(wrong)


FITTING: dict[str, tuple[Mutation, ...]] = {
    ".npz": (*BYTES, structure, archive, archive),
    ".pkl": (*BYTES, opcodes, opcodes),
    ".py": (*BYTES, code, code),
    ".json": (*BYTES, *(swap,) * 9),
    ".jsonl": (*BYTES, *(lines,) * 9),
}
