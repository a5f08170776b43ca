"""The container: its Dockerfile, and the sandbox under Docker's default seccomp profile."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch

import pytest

from cwm_cli.sandbox.protection import GAPS
from docker_profile import under_profile
from folders import ROOT
from old_kernel import available

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CALLS = """
import ctypes, errno, os, threading
libc = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_MOUNTS, SIGCHLD = 0x10000000, 0x00020000, 17
for flag in (NEW_USER, NEW_MOUNTS):
    assert libc.unshare(flag) == -1 and ctypes.get_errno() == errno.EPERM
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
assert libc.syscall(clone, NEW_USER | SIGCHLD, 0, 0, 0, 0) == -1
assert ctypes.get_errno() == errno.EPERM
assert libc.syscall(435, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS
assert os.geteuid() != 0
assert int(open("/proc/self/status").read().split("CapEff:")[1].split()[0], 16) == 0
thread = threading.Thread(target=int)
thread.start()
thread.join()
if os.fork() == 0:
    os._exit(0)
assert os.wait()[1] == 0
"""

each_profile = pytest.mark.parametrize("landlock", [True, False], ids=["now", "before-20.10.18"])


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments; lines are joined."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined) if word]


def argument(name: str) -> str:
    """Return the argument of the last instruction of a name, which holds for the image."""
    return [rest for word, rest in instructions() if word == name][-1]


def context() -> list[str]:
    """Return the files and folders at the top that `.dockerignore` lets into the build."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*", "only named files are included"
    return [pattern[1:] for pattern in patterns if pattern.startswith("!")]


def run_as_windows(*arguments):
    code = (
        "import sys\n"
        "for name in ('fcntl', 'grp', 'pwd', 'resource', 'termios'): sys.modules[name] = None\n"
        "from cwm_cli.cli import main\n"
        "sys.platform = 'win32'\n"
        "main()\n"
    )
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [("doctor",), ("synthesize", "--env", "CartPole-v1")])
def test_windows_names_wsl_and_the_container_in_one_line(arguments):
    done = run_as_windows(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: cwm does not run on Windows itself: use WSL2 or the container (docs/docker.md)\n"
    )


def under_docker(shell, *arguments, landlock=True):
    done = subprocess.run(
        under_profile([sys.executable, "-m", "cwm_cli", *arguments], landlock=landlock),
        cwd=shell.folder,
        env=shell.variables(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


class TestDockerfile:
    def test_instructions_are_known_and_each_stage_has_a_base(self):
        words = [word for word, _ in instructions()]
        known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "VOLUME"}
        assert {*words} == {*known, "ENTRYPOINT"}
        assert words[0] == "FROM"

    def test_bases_are_pinned_to_a_supported_version_of_python(self):
        bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
        [minor] = {re.fullmatch(r"python:3\.(\d+)-slim", base)[1] for base in bases}
        classifier = f"Programming Language :: Python :: 3.{minor}"
        assert classifier in PROJECT["project"]["classifiers"]

    def test_sources_of_copy_exist(self):
        stages = {rest.split()[-1] for word, rest in instructions() if word == "FROM"}
        for rest in (rest for word, rest in instructions() if word == "COPY"):
            flags = [part for part in rest.split() if part.startswith("--")]
            sources = [part for part in rest.split() if not part.startswith("--")][:-1]
            if flags:
                assert flags[0].removeprefix("--from=") in stages
            else:
                assert all((ROOT / source).exists() for source in sources)

    def test_build_context_contains_only_installed_files(self):
        needed = {"pyproject.toml", PROJECT["project"]["readme"]}
        needed |= {*PROJECT["project"]["license-files"]}
        commands = " ".join(rest for word, rest in instructions() if word == "RUN")
        needed |= {*re.findall(r"-c (\S+)", commands)}
        packages = PROJECT["tool"]["setuptools"]["packages"]["find"]
        for folder in packages["where"]:
            if folder == ".":
                found = [path.name for path in ROOT.iterdir() if path.is_dir()]
                needed |= {n for n in found if any(fnmatch(n, p) for p in packages["include"])}
            else:
                needed.add(folder)
        assert {*context()} == {name for name in needed if not name.endswith(".egg-info")}
        assert [name for name in context() if not (ROOT / name).exists()] == []

    def test_the_image_runs_cwm_in_a_volume_as_an_ordinary_user(self):
        assert json.loads(argument("ENTRYPOINT")) == ["cwm"]
        assert argument("WORKDIR") == argument("VOLUME") == "/work"
        [user] = re.findall(r"useradd --uid (\d+)", argument("RUN"))
        assert argument("USER") == user != "0"

    def test_labels_agree_with_the_project(self):
        labels = dict(part.split("=", 1) for part in shlex.split(argument("LABEL")))
        assert labels["org.opencontainers.image.licenses"] == PROJECT["project"]["license"]

    def test_extras_of_the_examples_exist(self):
        pages = [(ROOT / name).read_text() for name in ("docs/docker.md", "Dockerfile")]
        examples = [each for page in pages for each in re.findall(r"EXTRAS=([\w,-]+)", page)]
        assert len(examples) >= 2
        extras = PROJECT["project"]["optional-dependencies"]
        assert {name for each in examples for name in each.split(",")} <= extras.keys()


@available
class TestUnderTheDefaultSeccompProfile:
    def test_namespaces_are_refused_but_threads_and_processes_are_not(self):
        subprocess.run(under_profile([sys.executable, "-c", CALLS]), check=True, timeout=60)

    @pytest.mark.slow
    @each_profile
    def test_the_sandbox_closes_all_gaps(self, cwm, landlock):
        done = under_docker(cwm, "doctor", "--json", landlock=landlock)
        assert done.returncode == 0, done.stdout + done.stderr
        protection = json.loads(done.stdout)["protection"]
        assert protection["blocked"] == dict.fromkeys(GAPS, True)
        assert protection["user"] == "ordinary"
        assert protection["layers"]["user"] == "not needed: not root"
        assert {*map(protection["layers"].get, ("capabilities", "limits", "seccomp"))} == {"on"}
        if not landlock:
            assert protection["layers"]["landlock"].startswith("not here: ")

    @pytest.mark.slow
    @each_profile
    def test_a_search_runs_without_accepted_gaps(self, cwm, landlock):
        arguments = ("synthesize", "--env", "CartPole-v1", "--budget", "1", "--run", "here")
        done = under_docker(cwm, *arguments, "--json", landlock=landlock)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["solved"]
        assert "Warning" not in done.stderr
