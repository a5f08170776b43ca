"""The `cwm` command as users run it, in a folder and with plugins for one test."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cwm_cli.cli import command_line
from cwm_cli.registry import check_hooks, plugins

CHOICES = ("CWM_ALLOW_GAP", "CWM_CONFIG", "CWM_MODEL")
"""Environment variables that may change results and are removed for tests."""


@cache
def built_command():
    """Return the Click command of `cwm`, built once per process because that takes 50 ms."""
    return get_command(command_line())


@dataclass
class Shell:
    """Runs `cwm` in a folder of its own, with a cache of its own."""

    folder: Path
    packages: Path
    environment: dict[str, str] = field(default_factory=dict)

    def install(self, name: str, code: str, entries: str | None = None) -> None:
        """Install a package whose module `name` is a plugin, as pip would."""
        (self.packages / f"{name}.py").write_text(code)
        info = self.packages / f"{name}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        entries = f"{name} = {name}" if entries is None else entries
        (info / "entry_points.txt").write_text(f"[cwm]\n{entries}\n")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start `cwm` and return the process."""
        return subprocess.Popen(
            [sys.executable, "-m", "cwm_cli", *arguments],
            cwd=self.folder,
            env=self.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run `cwm` to its end; it never shows a traceback."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=timeout)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def inside(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `cwm` in this process, whose imports are already done."""
        with pytest.MonkeyPatch.context() as patch, self._plugins_here(patch):
            patch.chdir(self.folder)
            for name in os.environ.keys() - self.variables().keys():
                patch.delenv(name)
            for name, value in self.variables().items():
                patch.setenv(name, value)
            with CliRunner().isolation() as streams:
                with pytest.raises(SystemExit) as end:
                    built_command().main(list(arguments), prog_name="cwm")
                sys.stdout.flush()
                sys.stderr.flush()
                out, err = (stream.getvalue().decode() for stream in streams[:2])
        return subprocess.CompletedProcess(arguments, end.value.code, out, err)

    @contextmanager
    def _plugins_here(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Use the packages of this shell in this process, and remove them afterwards."""
        patch.syspath_prepend(self.packages)
        for file in self.packages.glob("*.py"):  # another test may have one of that name
            patch.delitem(sys.modules, file.stem, raising=False)
        self._look_anew()
        try:
            yield
        finally:
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", "")).startswith(str(self.packages)):
                    del sys.modules[name]
            self._look_anew()

    @staticmethod
    def _look_anew() -> None:
        plugins.cache_clear()
        check_hooks.cache_clear()

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the command."""
        clean = {
            k: v
            for k, v in os.environ.items()
            if k not in (*CHOICES, "CI", "FORCE_COLOR", "NO_COLOR")
        }
        return clean | {
            "PYTHONPATH": str(self.packages),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            **self.environment,
        }
