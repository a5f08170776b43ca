"""A probe finds the gaps of this machine, and gaps that are not accepted are refused."""

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from candidates import BOX, open_session, plan_at, program
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.sandbox import Limits, Sandbox, SandboxError, linux, pool, probe
from cwm_cli.sandbox.confinement import ON
from cwm_cli.sandbox.job import EpisodesJob
from cwm_cli.sandbox.linux import MACHINES
from cwm_cli.sandbox.protection import GAPS, Protection, Unprotected, dangers
from cwm_cli.sandbox.protocol import LAYERS

ROOT = os.geteuid() == 0
FILTERED = sys.platform == "linux" and linux.MACHINE in MACHINES
LIMITS = Limits(wall_seconds=30, stall_seconds=0.5, sleep_seconds=1)

guarded = pytest.mark.skipif(not FILTERED, reason="this machine has no filter of system calls")


def gaps(*layers: str) -> set[str]:
    """Return what the probe finds open with some guards only."""
    with Sandbox(workers=1, layers=layers, accepted=GAPS) as sandbox:
        return set(sandbox.protection.gaps)


def but(*layers: str) -> list[str]:
    """Return all guards but some."""
    return [layer for layer in LAYERS if layer not in layers]


def network() -> set[str]:
    """Return the gap of that name if there is a network to reach, be it only this machine."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            server.bind(("127.0.0.1", 0))
    except OSError:
        return set()
    return {"network"}


def test_every_gap_has_a_check() -> None:
    assert list(probe.CHECKS) == list(GAPS), "the same order, since checks are asked by number"
    for gap in GAPS.values():
        assert gap.danger
        assert gap.remedy


@guarded
@pytest.mark.parametrize("cold", [False, True], ids=["forked", "cold"])
def test_no_gap_is_open_on_this_machine(cold: bool) -> None:
    with Sandbox(workers=1, cold=cold) as sandbox:
        found = sandbox.protection
        assert found.gaps == []
        assert found.blocked == dict.fromkeys(GAPS, True)
        found.require()
        assert sandbox.protection is found, "the probe runs once"


# Gaps that are open without guards. An empty environment alone closes `secrets`.

UNFILTERED = {"see-files", "local-sockets", "shared-memory", "machine-code", "system-calls"}
"""Gaps that only a filter of system calls closes."""

FILES = {"read-files", "write-files", "simulator"}
STARTING = {"threads", "processes"}
DEPENDING = {"network", "privileges", "signals", "other-processes", "descriptors"}
"""Further gaps that a filter closes; the kernel, a container or another guard may close them."""


@guarded
def test_seccomp_alone_closes_all_gaps_but_memory() -> None:
    assert gaps("seccomp") == {"memory"}


@guarded
@pytest.mark.parametrize("layer", LAYERS)
def test_missing_guard_opens_only_its_gaps(layer: str) -> None:
    found = gaps(*but(layer))
    if layer == "seccomp":
        assert found >= UNFILTERED | network()
        assert found <= UNFILTERED | DEPENDING
    else:
        assert found == ({"memory"} if layer == "limits" else set())


def test_without_guards_all_gaps_but_secrets_are_open() -> None:
    found = gaps()
    known = set(GAPS) - {"secrets", "descriptors", "privileges", "network", "other-processes"}
    assert found >= known | network()
    assert "secrets" not in found
    assert not ROOT or "privileges" in found


@pytest.mark.skipif(not linux.landlock_version(), reason="this kernel has no Landlock")
def test_landlock_alone_closes_files() -> None:
    found = gaps("landlock")
    assert not found & (FILES | {"other-processes"})
    assert found >= UNFILTERED | STARTING | {"memory"}
    if linux.landlock_version() >= 6:
        assert "signals" not in found


def test_limits_alone_close_memory_and_processes_of_users() -> None:
    found = gaps("limits")
    assert found >= UNFILTERED | FILES
    assert ("memory" in found) == (sys.platform != "linux")
    assert not found & STARTING or ROOT


@pytest.mark.skipif(not ROOT, reason="only root can become others")
def test_separate_user_closes_signals_and_other_processes() -> None:
    with Sandbox(workers=1, layers=["user", "limits"], accepted=GAPS) as sandbox:
        if sandbox.protection.layers["user"] != ON:
            pytest.skip(f"no other user: {sandbox.protection.layers['user']}")
        found = set(sandbox.protection.gaps)
    assert not found & {"signals", "other-processes", "threads"}
    assert found >= UNFILTERED | {"read-files"}


def test_layers_report_the_state_of_each_guard() -> None:
    with Sandbox(workers=1, accepted=GAPS) as sandbox:
        layers = sandbox.protection.layers
        assert sandbox.protection.landlock == linux.landlock_version()
    assert list(layers) == list(LAYERS)
    assert layers["limits"] == ON
    assert (layers["seccomp"] == ON) == FILTERED
    assert (layers["landlock"] == ON) == bool(linux.landlock_version())
    assert ROOT or layers["user"] != ON
    assert all(
        says == ON or says.startswith(("not here: ", "not needed: ")) for says in layers.values()
    )
    with Sandbox(workers=1, layers=("limits",), accepted=GAPS) as sandbox:
        layers = sandbox.protection.layers
    assert layers == dict.fromkeys(LAYERS, "switched off") | {"limits": ON}


def test_open_gaps_are_refused_and_named() -> None:
    with Sandbox(workers=1, layers=()) as sandbox:
        for attempt in (lambda: sandbox.protection, lambda: sandbox.predict(program(), BOX)):
            with pytest.raises(Unprotected) as caught:
                attempt()
            message = str(caught.value)
            assert "\n" not in message
            assert isinstance(caught.value, CwmError)
            assert f"could {GAPS['read-files'].danger}, " in message
            assert " more things: see `cwm doctor`, run cwm in its container" in message
            assert message.endswith("or accept the risk with --allow-gap all")
            assert len(message) < 350
        two = Space("discrete", low=(0,), high=(1,))
        with (
            pytest.raises(Unprotected),
            open_session(
                sandbox, program(), (BOX.observation_space, two), planners=[("mcts", {})]
            ) as opened,
        ):
            plan_at(opened, np.zeros(4))


@guarded
def test_accepted_gaps_let_programs_run() -> None:
    with Sandbox(workers=1, layers=but("limits"), accepted=["memory"]) as sandbox:
        assert sandbox.predict(program(), BOX).failure is None
        assert sandbox.protection.gaps == ["memory"]
        assert sandbox.protection.accepted == ("memory",)
    with (
        Sandbox(workers=1, layers=but("limits"), accepted=["network", "threads"]) as sandbox,
        pytest.raises(Unprotected, match=r"could take more .*--allow-gap memory$"),
    ):
        sandbox.predict(program(), BOX)


def test_unknown_gap_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="netwrk"):
        Sandbox(accepted=["network", "netwrk"])
    with pytest.raises(UnknownNameError, match=r"choose one of all, descriptors, .* write-files"):
        Sandbox(accepted=["everything", "all"])


@pytest.mark.slow
@guarded
def test_all_accepts_open_gaps() -> None:
    with Sandbox(workers=1, layers=but("limits"), accepted=["all"]) as sandbox:
        assert sandbox.predict(program(), BOX).failure is None
        assert sandbox.protection.gaps == ["memory"]
        assert sandbox.protection.accepted == ("memory",)
    with Sandbox(workers=1, layers=but("limits"), accepted=["network", "all"]) as sandbox:
        assert sandbox.protection.accepted == ("memory", "network")
    with Sandbox(workers=1, accepted=["all"]) as sandbox:
        assert sandbox.protection.accepted == ()


def test_all_does_not_accept_a_gap_that_opens_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(workers=1, layers=but("limits"), accepted=["all"]) as sandbox:
        before = sandbox.protection
        text = pool._probe() + "\nCHECKS['network'] = [int]\n"
        monkeypatch.setattr(pool, "_probe", lambda: text)
        sandbox.prepare(EpisodesJob.handler)  # replaces the workers
        with pytest.raises(Unprotected, match=r"could use the network: .*--allow-gap network$"):
            sandbox.predict(program(), BOX)
    assert "network" not in before.gaps


@pytest.mark.parametrize(
    ("names", "phrase"),
    [
        (["threads"], "start threads"),
        (["threads", "network"], "start threads and use the network"),
        (list(GAPS)[-5:], "take more .* and do 1 more thing"),
        (list(GAPS), "read .*, list .*, write .*, use the network and do 13 more things"),
    ],
)
def test_dangers_name_the_first_gaps_and_count_the_others(names: list[str], phrase: str) -> None:
    assert re.fullmatch(phrase, dangers(names))


def test_protection_survives_json() -> None:
    with Sandbox(workers=1, layers=("limits",), accepted=GAPS) as sandbox:
        found = sandbox.protection
    again = Protection.model_validate_json(found.model_dump_json())
    assert again == found
    assert again.gaps == found.gaps != []
    assert found.user == ("root" if ROOT else "ordinary")
    for part in (found.kernel, found.machine, found.python):
        assert part


def test_failing_probe_is_a_sandbox_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_probe", lambda: "1 / 0")
    with Sandbox(workers=1) as sandbox, pytest.raises(SandboxError, match="ZeroDivisionError"):
        sandbox.predict(program(), BOX)


def test_check_that_ends_the_probe_counts_as_open(monkeypatch: pytest.MonkeyPatch) -> None:
    text = pool._probe() + "\nCHECKS['shared-memory'] = [lambda: os._exit(0)]\n"
    monkeypatch.setattr(pool, "_probe", lambda: text)
    with Sandbox(workers=1, accepted=GAPS) as sandbox:
        assert set(sandbox.protection.gaps) >= set(list(GAPS)[5:])


def test_probe_ignores_its_own_descriptors() -> None:
    assert "descriptors" not in gaps()


@pytest.mark.parametrize("layers", [LAYERS, ()], ids=["guarded", "unguarded"])
def test_probe_finds_open_descriptors(
    monkeypatch: pytest.MonkeyPatch, layers: tuple[str, ...]
) -> None:
    text = pool._probe()
    wider = text.replace("range(3, 64)", "range(64)")
    assert wider != text
    monkeypatch.setattr(pool, "_probe", lambda: wider)
    with Sandbox(workers=1, layers=layers, accepted=GAPS) as sandbox:
        assert "descriptors" in sandbox.protection.gaps, "standard input and output are open"


# Tools that programs may import as well.


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the module path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


GOOD_TOOL = """
import sys
import types
import xml.dom.minidom
ANSWER = 42
def __getattr__(name):
    if name == "late":
        import sqlite3
        return sqlite3
    raise AttributeError(name)
def __dir__():
    return ["ANSWER", "late"]
"""


def test_programs_may_use_tools_and_their_imports(tools: Path) -> None:
    (tools / "good_tool.py").write_text(GOOD_TOOL)
    using = program(
        "import good_tool, xml.dom.minidom; return self.state, good_tool.ANSWER, False",
        init="import good_tool; assert good_tool.late.sqlite_version",
    )
    with Sandbox(LIMITS, workers=1, tools=["good_tool"]) as sandbox:
        columns, failure = sandbox.predict(using, BOX)
        assert failure is None
        assert (columns["rewards"] == 42).all()
        other = sandbox.predict(program("import good_tools"), BOX).failure
    assert other is not None
    assert "only good_tool, numpy and" in other.message
    with Sandbox(LIMITS, workers=1) as sandbox:
        missing = sandbox.predict(using, BOX).failure
    assert missing is not None
    assert "cannot import 'good_tool'" in missing.message


BAD_TOOLS = {
    "missing": (None, "the tool 'bad_tool' cannot be imported (ModuleNotFoundError: "),
    "broken": ("1 / 0", "cannot be imported (ZeroDivisionError: division by zero)"),
    "no Python": ("x = = 2", "cannot be imported (SyntaxError: "),
    "talkative": ("raise ValueError('one\\n\\x1b[2Jtwo')", "cannot be imported (ValueError: one"),
    "the simulator": ("import gymnasium", "imports gymnasium, which would let a program look up"),
    "the simulator, late": (
        "def __dir__(): return ['env']\ndef __getattr__(name): import gymnasium; return 1",
        "imports gymnasium",
    ),
    "a tool that gives up": ("raise SystemExit(3)", "cannot be imported (SystemExit: 3)"),
}


@pytest.mark.parametrize("name", BAD_TOOLS)
def test_a_bad_tool_is_refused_in_one_line(tools: Path, name: str) -> None:
    text, words = BAD_TOOLS[name]
    if text is not None:
        (tools / "bad_tool.py").write_text(text)
    with (
        Sandbox(LIMITS, workers=1, tools=["bad_tool"]) as sandbox,
        pytest.raises(CwmError) as caught,
    ):
        sandbox.predict(program(), BOX)
    message = str(caught.value)
    assert words in message
    assert message.isprintable(), "one line without control characters"


def test_simulator_is_refused_as_a_tool() -> None:
    with (
        Sandbox(LIMITS, workers=1, tools=["gymnasium"]) as sandbox,
        pytest.raises(CwmError, match="imports gymnasium"),
    ):
        sandbox.predict(program(), BOX)


# An interpreter for every program, as where forking is not safe.


@pytest.fixture(scope="module")
def cold() -> Iterator[Sandbox]:
    with Sandbox(LIMITS, cold=True, accepted=() if FILTERED else GAPS) as sandbox:
        yield sandbox


COLD = {
    "right": (program(), None, ""),
    "an exception": (program("1 / 0"), "step_error", "ZeroDivisionError: division by zero\nat"),
    "a loop": (program("while True: pass"), "timeout_cpu", "a single step took more than 0.5 s"),
    "a null pointer": (program("import ctypes; ctypes.string_at(0)"), "crash", "SIGSEGV\nat line"),
    "os._exit": (program("print('bye'); os._exit(0)"), "early_exit", "had printed:\nbye"),
    "memory": (program("np.zeros(10**10)"), "memory", "Unable to allocate"),
    "an import": (program("import sqlite3"), "step_error", "cannot import 'sqlite3'"),
    "a counter": (
        program("self.n += 1; return self.state, self.n, False", init="self.n = 0"),
        "nondeterministic",
        "two calls of",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", COLD)
def test_cold_worker_distinguishes_failures(cold: Sandbox, name: str) -> None:
    text, kind, words = COLD[name]
    few = BOX[np.arange(4)]
    columns, failure = cold.predict(text, few)
    failure = failure or cold.audit(text, few, columns)
    if failure is None:
        assert kind is None
        assert np.array_equal(columns["next_observations"], few.columns["observations"])
    else:
        assert (failure.kind, words in failure.message) == (kind, True), failure


@pytest.mark.slow
def test_cold_worker_plans(cold: Sandbox) -> None:
    two = Space("discrete", low=(0,), high=(1,))
    text = program("return self.state, float(action), False")
    with open_session(cold, text, (BOX.observation_space, two), planners=[("mcts", {})]) as opened:
        assert [plan_at(opened, np.zeros(4), number).actions for number in range(3)] == [[1]] * 3


@pytest.mark.slow
@guarded
def test_cold_worker_confines_programs(cold: Sandbox) -> None:
    failure = cold.predict(program("open('/etc/passwd')"), BOX).failure
    assert failure is not None
    assert failure.kind == "step_error"
    assert "Operation not permitted" in failure.message
