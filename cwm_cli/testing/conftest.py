"""Fixtures of the conformance tests: a small recording, a sandbox, an empty folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.registry import environment, plugins
from cwm_cli.sandbox import Limits, Sandbox

ENVIRONMENT = "CartPole-v1"


@dataclass(frozen=True)
class Material:
    """Parts for examples: an environment, its transitions, a sandbox and an empty folder."""

    spec: EnvironmentSpec
    dataset: Dataset
    sandbox: Sandbox
    folder: Path


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, which are unknown in other packages."""
    config.addinivalue_line("markers", "slow: takes more than a few seconds")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Name the installed packages if no plugin matches `-k`."""
    words = config.getoption("keyword")
    is_asked = "cwm_cli.testing" in config.invocation_params.args
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and words and is_asked:
        packages = sorted({plugin.package.split()[0] for plugin in plugins().loaded})
        terminalreporter.write_line(
            f"No plugin matches -k {words!r}. Installed packages: {', '.join(packages)}."
        )


@pytest.fixture(scope="session")
def recorded() -> tuple[EnvironmentSpec, Dataset]:
    """Record a few short random episodes."""
    spec = environment(ENVIRONMENT)
    options = {"policy": "core:random", "episodes": 4, "test_episodes": 2, "max_steps": 30}
    return spec, record(spec, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Share one sandbox; accept the missing protections of this machine."""
    from cwm_cli.sandbox.protection import GAPS

    with Sandbox(Limits(), 2, accepted=list(GAPS)) as made:
        yield made


@pytest.fixture
def material(
    recorded: tuple[EnvironmentSpec, Dataset], sandbox: Sandbox, tmp_path: Path
) -> Material:
    """Combine the parts for examples."""
    return Material(*recorded, sandbox, tmp_path)
