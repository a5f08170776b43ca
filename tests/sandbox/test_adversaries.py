"""No hostile program reaches its goal, whoever runs it, and nothing of it is felt afterwards.

`hostile` runs the programs of `adversaries`, as root and as an ordinary user,
with every guard up and with fewer, for only what succeeds without a guard shows
that the guard stops it.
"""

import fcntl
import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from adversaries import GUARDED, KEY, LAYERS, PROGRAMS, UNCONTROLLED, Adversary
from cwm_cli.sandbox.confinement import LAYERS as ALL_LAYERS
from folders import SUPPORT
from users import AM_ROOT, USERS, barrier, obstacle, run_as

SECRET = "canary-key-0011223344556677"
LONGEST_MESSAGE = 2000
MOST_GROWTH_MB = 64
MOST_MEMORY_MB = 400

NONE: tuple[str, ...] = ()
WITHOUT_ONE = [tuple(layer for layer in LAYERS if layer != left_out) for left_out in LAYERS]
ALONE = [(layer,) for layer in LAYERS]
FEWER = [
    (user, layers)
    for user in USERS
    for layers in (*WITHOUT_ONE, *ALONE, NONE)
    if user == "root" or "user" not in layers  # it has no effect for an ordinary user
]
WHOEVER_TESTS = "root" if AM_ROOT else "ordinary"
ONE_IN_CI = [
    pytest.param(user, marks=pytest.mark.slow if user == WHOEVER_TESTS else pytest.mark.long)
    for user in USERS
]
"""Who runs the programs; `test_sandbox` tries some of what they do in less time."""

READING_GYMNASIUM = ("import_gymnasium_past_the_finder", "load_gym_by_path")
IS_HIDDEN = barrier([Path(gymnasium.__file__).parent]) is not None
"""Whether Gymnasium is installed where another user than its owner cannot read it."""

pytestmark = pytest.mark.xdist_group("adversaries")


class Runs:
    """What came of the programs, for each user and set of guards; each is run only once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}

    def __call__(self, user: str, layers: tuple[str, ...]) -> dict[str, Any]:
        if reason := obstacle(user):
            pytest.skip(reason)
        key = (user, layers)
        if key not in self._known:
            self._known[key] = self._shared(f"{user}-{'-'.join(layers)}.json", *key)
        return self._known[key]

    def _shared(self, name: str, user: str, layers: tuple[str, ...]) -> dict[str, Any]:
        """Run the programs unless another process of these tests has."""
        path = self._folder / name
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                names = list(PROGRAMS) if layers == LAYERS else GUARDED
                script = str(SUPPORT / "hostile.py")
                arguments = (script, json.dumps(layers), json.dumps(names))
                ended = run_as(user, *arguments, environment={KEY: SECRET})
                assert ended.returncode == 0, ended.stderr
                path.write_text(ended.stdout)
        return json.loads(path.read_text())


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Runs:
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "adversaries"
    folder.mkdir(exist_ok=True)
    return Runs(folder)


def is_open(adversary: Adversary, result: dict[str, Any]) -> bool:
    """Whether a program has reached its goal, by what it says or by what is seen from outside."""
    if not adversary.is_attack:
        return not ends_as_expected(adversary, result)
    reached = result["ending"] == "reached"
    return reached or bool(result["effects"]) or result["ending"] in adversary.shows.split()


def ends_as_expected(adversary: Adversary, result: dict[str, Any]) -> bool:
    if adversary.ending == "alike":
        return result.get("rewards") == 1
    return result["ending"] in adversary.ending.split()


def is_possible(adversary: Adversary, run: dict[str, Any]) -> bool:
    """Whether this machine has what a program needs."""
    return not adversary.needs or adversary.needs in run["facts"]


def test_the_guards_are_those_of_the_sandbox() -> None:
    assert LAYERS == ALL_LAYERS


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_with_every_guard_up_nothing_has_to_be_accepted(runs: Runs, user: str) -> None:
    run = runs(user, LAYERS)
    assert run["gaps"] == []
    missing = {} if user == "root" else {"user": "not needed: not root"}
    assert run["layers"] == dict.fromkeys(LAYERS, "on") | missing


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_no_program_reaches_its_goal(runs: Runs, user: str) -> None:
    run = runs(user, LAYERS)
    reached = {}
    for name, adversary in PROGRAMS.items():
        result = run["programs"][name]
        if adversary.needs == "x86_64" and not is_possible(adversary, run):
            continue
        as_expected = ends_as_expected(adversary, result)
        known = set(result.get("errors", [])) <= set(adversary.errors.split())
        if not as_expected or not known or result["effects"]:
            reached[name] = result
    assert not reached


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_nothing_of_a_program_is_felt_after_it(runs: Runs, user: str) -> None:
    programs = runs(user, LAYERS)["programs"]
    assert not {name: programs[name] for name in PROGRAMS if programs[name]["trouble"]}


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_what_is_said_of_a_program_is_short_and_harmless(runs: Runs, user: str) -> None:
    programs = runs(user, LAYERS)["programs"]
    messages = {name: programs[name].get("message", "") for name in PROGRAMS}
    assert not {
        name: message
        for name, message in messages.items()
        if len(message) >= LONGEST_MESSAGE
        or SECRET in message
        or not all(character.isprintable() or character == "\n" for character in message)
    }


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_hostile_programs_use_up_nothing_of_the_trusted_side(runs: Runs, user: str) -> None:
    run = runs(user, LAYERS)
    assert run["before"] == []
    assert run["growth_mb"] < MOST_GROWTH_MB
    assert run["more_descriptors"] == 0
    assert run["peak_mb"] < MOST_MEMORY_MB, "some program took more memory than it is allowed"


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_who_gets_consecutive_rows_can_look_up_the_answers(runs: Runs, user: str) -> None:
    run = runs(user, LAYERS)
    assert run["programs"]["lookup_cheat"]["ending"] == "nondeterministic"
    assert run["cheat"].get("share", 1.0) >= 0.95, "the cheat does not work where it should"


@pytest.mark.long
@pytest.mark.parametrize("user", USERS)
def test_without_guards_every_attack_succeeds(runs: Runs, user: str) -> None:
    run = runs(user, NONE)
    failed = {}
    for name in GUARDED:
        adversary, result = PROGRAMS[name], run["programs"][name]
        if name in UNCONTROLLED or adversary.is_stopped(user, NONE):
            continue  # the kernel does not let such a user do that
        if not is_possible(adversary, run):
            continue
        if not is_open(adversary, result) or not (
            set(adversary.effects.split()) <= set(result["effects"])
        ):
            failed[name] = result
    assert not failed


@pytest.mark.long
@pytest.mark.parametrize(("user", "layers"), FEWER, ids=str)
def test_each_guard_stops_just_what_it_is_there_for(
    runs: Runs, user: str, layers: tuple[str, ...]
) -> None:
    run = runs(user, layers)
    hidden = READING_GYMNASIUM if user == "root" and "user" in layers and IS_HIDDEN else ()
    names = [
        name
        for name in GUARDED
        if name not in (*UNCONTROLLED, *hidden) and is_possible(PROGRAMS[name], run)
    ]
    expected = {name for name in names if not PROGRAMS[name].is_stopped(user, layers)}
    found = {name for name in names if is_open(PROGRAMS[name], run["programs"][name])}
    assert found == expected, {name: run["programs"][name] for name in found ^ expected}
    troubles = {name: run["programs"][name]["trouble"] for name in names}
    assert not any(troubles.values()), troubles


def test_what_cannot_be_shown_has_a_reason() -> None:
    assert set(UNCONTROLLED) == {
        "env_api_key",
        "open_tty",
        "x32_syscall",
        "fd_inventory",
        "import_gymnasium",
        "read_slots_for_answers",
        "heap_scan",
    }
    unguarded = {name for name, entry in PROGRAMS.items() if entry.is_attack} - set(GUARDED)
    assert unguarded <= set(UNCONTROLLED)


def test_every_row_of_the_table_has_a_program() -> None:
    elsewhere = {58, 59, 60}  # the ends of the trusted side, and machines that lack a guard
    assert {entry.row for entry in PROGRAMS.values()} == set(range(1, 61)) - elsewhere
