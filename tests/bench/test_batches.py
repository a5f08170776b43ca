"""Steps per second of the forms of an export, and `cwm bench-speed --batch`."""

import json
import sys
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

import cwm_cli
from cwm_cli import CwmError
from cwm_cli.bench.batches import BatchSpeeds, bench_batches, environment_walks, imported
from cwm_cli.bench.speed import Pace
from cwm_cli.commands.subjects import find_subject
from cwm_cli.data.dataset import Dataset
from cwm_cli.export import export_of
from cwm_cli.text import UNKNOWN
from cwm_cli.views.speed import batch_parts
from search_runs import run_of
from worlds import CAR, CARTPOLE, LOOPING

DRAWING = CAR.replace(
    "        velocity = self", "        self.rng.random()\n        velocity = self", 1
)
RANDOM = {"policy": "random", "episodes": 2, "test_episodes": 1, "max_steps": 30}


@pytest.fixture
def rows(tmp_path):
    def record(env):
        file = cwm_cli.collect(env, out=tmp_path / f"{env}.npz", **RANDOM).file
        return Dataset.load(file)

    return record


@pytest.mark.slow
def test_every_form_is_timed(cwm, rows):
    run_of(CAR, rows("MountainCar-v0"), cwm.folder / "car")
    done = cwm.inside("bench-speed", "car", "--batch", "4", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    forms = {"python", "numpy", "environment"} | ({"jax"} if find_spec("jax") else set())
    assert found["steps_per_second"].keys() == forms and not found["sandboxed"]
    assert all(
        rates.keys() == {"4"} and rates["4"] > 0 for rates in found["steps_per_second"].values()
    )
    assert found["reasons"]["vector"] == "MountainCar-v0 has no vector form of its own"
    assert "NumPy" in done.stderr


def test_the_own_vector_form_is_timed_unless_the_environment_is_shifted():
    for env_args, forms in ({}, {"environment", "vector"}), ({"shift": 1}, {"environment"}):
        subject = find_subject(program=CARTPOLE, env="CartPole-v1", env_args=env_args)
        reasons = {}
        with ExitStack() as stack:
            walks = environment_walks(subject, 3, 0, stack, reasons)
            assert walks.keys() == forms
            assert all(walk(5)[0] == 15 for walk in walks.values())
        assert reasons == ({} if not env_args else {"vector": "the own vector form has no shift"})


@pytest.mark.slow
def test_a_program_without_translation_is_timed_in_the_sandbox(rows, tmp_path):
    run = run_of(DRAWING, rows("MountainCar-v0"), tmp_path / "run")
    found = bench_batches(run.folder, batches=[2])
    assert found.sandboxed and found.paces.keys() == {"python", "environment"}
    assert found.reasons["numpy"] == found.reasons["jax"] == "it draws random numbers"
    assert "no vector form" in found.reasons["vector"]


def test_the_program_itself_never_runs_outside_the_sandbox(rows, tmp_path):
    run = run_of(LOOPING, rows("MountainCar-v0"), tmp_path / "run")
    with imported(export_of(run.folder, form="numpy")) as package:
        assert not hasattr(package.module("program"), "GRAVITY")
        env = package.module("environment").WorldModelEnv()
        env.reset(seed=0)
        assert env.predict([-0.5, 0.01], 2)[1] == -1.0
        with pytest.raises(NotImplementedError, match="needs the program itself"):
            env.predict([-0.5, 0.06], 2)  # too fast for the translated loop


def test_imported_packages_leave_no_module_behind(rows, tmp_path):
    run = run_of(CAR, rows("MountainCar-v0"), tmp_path / "run")
    with imported(export_of(run.folder, form="numpy")) as package:
        assert package.module("batched").step
    assert not [name for name in sys.modules if name.startswith(package.name)]


def test_the_table_has_a_row_for_each_form_and_the_reasons():
    pace = Pace(1e-6, 1e-6, 1e-6, 3, 10, 0.0)
    found = BatchSpeeds([1, 64], {"numpy": {64: pace}}, {"jax": "no JAX", "numpy 1": "rare"})
    table, *notes = batch_parts(found)
    assert table.grid.heads == ["steps per second", "1", "64"]
    assert table.grid.cells == [["NumPy", UNKNOWN, "1,000,000"]]
    assert [note.plain for note in notes] == ["JAX: no JAX", "NumPy, batch of 1: rare"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("runs/x", "--batch", "1,two"), "--batch '1,two' is no list of numbers"),
        (("--batch", "1"), "--batch measures the export of a run: name a run"),
        (("runs/x", "--batch", "1", "--model", "m"), "leave out --program and --model"),
    ],
)
def test_wrong_batches_are_refused_in_one_line(cwm, words, message):
    done = cwm.inside("bench-speed", *words)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and message in done.stderr


def test_numbers_below_one_are_refused(tmp_path):
    with pytest.raises(CwmError, match="at least 1"):
        bench_batches(tmp_path, batches=[0])
