"""No hostile program reaches its goal, and none affects later programs.

`hostile` runs the programs of `adversaries`, as root and as an ordinary user, with all guards and
with fewer: an attack that succeeds only without a guard shows that the guard stops it.
"""

import fcntl
import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from adversaries import GUARDED, KEY, LAYERS, PROGRAMS, UNCONTROLLED, Adversary
from cwm_cli.sandbox.protocol import LAYERS as ALL_LAYERS
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
CURRENT_USER = "root" if AM_ROOT else "ordinary"
ONE_IN_CI = [
    pytest.param(user, marks=pytest.mark.slow if user == CURRENT_USER else pytest.mark.long)
    for user in USERS
]
"""Users that run the programs; `test_sandbox` has faster versions of some attacks."""

READING_GYMNASIUM = ("import_gymnasium_past_the_finder", "load_gym_by_path")
IS_HIDDEN = barrier([Path(gymnasium.__file__).parent]) is not None
"""Whether only its owner can read the installed Gymnasium."""

pytestmark = pytest.mark.xdist_group("adversaries")


class Runs:
    """The results of the programs, for each user and set of guards; each set runs only once."""

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
        """Run the programs, or read the results of another test process."""
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
    """Return whether a program reached its goal, by its own report or by visible effects."""
    if not adversary.is_attack:
        return not ends_as_expected(adversary, result)
    reached = result["ending"] == "reached"
    return reached or bool(result["effects"]) or result["ending"] in adversary.shows.split()


def ends_as_expected(adversary: Adversary, result: dict[str, Any]) -> bool:
    if adversary.ending == "alike":
        return result.get("rewards") == 1
    return result["ending"] in adversary.ending.split()


def is_possible(adversary: Adversary, run: dict[str, Any]) -> bool:
    """Return whether this machine meets the requirements of a program."""
    return not adversary.needs or adversary.needs in run["facts"]


def test_all_guards_of_the_sandbox_are_tested() -> None:
    assert LAYERS == ALL_LAYERS


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_no_gap_is_open_with_all_guards(runs: Runs, user: str) -> None:
    run = runs(user, LAYERS)
    assert run["gaps"] == []
    missing = {} if user == "root" else {"user": "not needed: not root"}
    assert run["layers"] == dict.fromkeys(LAYERS, "on") | missing


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_no_hostile_program_reaches_its_goal(runs: Runs, user: str) -> None:
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
def test_programs_leave_nothing_for_later_programs(runs: Runs, user: str) -> None:
    programs = runs(user, LAYERS)["programs"]
    assert not {name: programs[name] for name in PROGRAMS if programs[name]["trouble"]}


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_failure_messages_are_short_and_harmless(runs: Runs, user: str) -> None:
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
def test_hostile_programs_exhaust_no_resource_of_the_trusted_side(runs: Runs, user: str) -> None:
    run = runs(user, LAYERS)
    assert run["before"] == []
    assert run["growth_mb"] < MOST_GROWTH_MB
    assert run["more_descriptors"] == 0
    assert run["peak_mb"] < MOST_MEMORY_MB, "a program took more memory than its limit"


@pytest.mark.parametrize("user", ONE_IN_CI)
def test_answers_can_be_looked_up_in_consecutive_rows(runs: Runs, user: str) -> None:
    run = runs(user, LAYERS)
    assert run["programs"]["lookup_cheat"]["ending"] == "nondeterministic"
    assert run["cheat"].get("share", 1.0) >= 0.95, "the cheat should work in a single process"


@pytest.mark.long
@pytest.mark.parametrize("user", USERS)
def test_without_guards_every_attack_succeeds(runs: Runs, user: str) -> None:
    run = runs(user, NONE)
    failed = {}
    for name in GUARDED:
        adversary, result = PROGRAMS[name], run["programs"][name]
        if name in UNCONTROLLED or adversary.is_stopped(user, NONE):
            continue  # the kernel refuses this attack of the user
        if not is_possible(adversary, run):
            continue
        if not is_open(adversary, result) or not (
            set(adversary.effects.split()) <= set(result["effects"])
        ):
            failed[name] = result
    assert not failed


@pytest.mark.long
@pytest.mark.parametrize(("user", "layers"), FEWER, ids=str)
def test_each_guard_stops_its_attacks(runs: Runs, user: str, layers: tuple[str, ...]) -> None:
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


def test_attacks_without_a_demonstration_have_a_reason() -> None:
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


def test_every_attack_of_the_table_has_a_program() -> None:
    elsewhere = {58, 59, 60}  # attacks on the trusted side, and machines without a guard
    assert {entry.row for entry in PROGRAMS.values()} == set(range(1, 61)) - elsewhere
