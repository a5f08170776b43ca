"""Credentials in addresses reach the server and nothing else."""

import base64
import json
import os
import sys
from pathlib import Path

import pytest

from cwm_benchmark.configuration import BenchmarkConfig
from cwm_cli.bench.executor import Command
from cwm_cli.credentials import without_credentials
from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.runs.store import RunHeader
from cwm_cli.search.contracts import GENERATE, Message, Move, Request, UnansweredError
from cwm_litellm.backend import LiteLLM
from cwm_litellm.library import load
from openai_server import Handler, OpenAIServer, answer, error
from recordings import cartpole

PASSWORD, PARAMETER, KEY = "hunter2-secret", "query-secret-99", "sk-the-key-itself"
LOGIN = base64.b64encode(f"bob:{PASSWORD}".encode()).decode()
SECRETS = (PASSWORD, PARAMETER, KEY, LOGIN)
WRONG = f"```python\n{cartpole(gravity=5)}```"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


class Server(OpenAIServer):
    """Keeps the paths of its requests, too."""

    def __enter__(self):
        self.paths: list[str] = []
        return super().__enter__()

    def respond_to(self, path, request):
        self.paths.append(path)

    @property
    def private_url(self) -> str:
        """The address with a login and a parameter."""
        return self.url.replace("://", f"://bob:{PASSWORD}@") + f"?team=a&api_key={PARAMETER}"


def request() -> Request:
    return Request((Message(role="user", content="Write one."),), 7, Move(GENERATE), problem=None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://bob:p%40ss@host:80/v1", "http://host:80/v1"),
        ("http://bob:p@ss@host/v1 is down", "http://host/v1 is down"),
        ("http://token@host", "http://host"),
        ("http://host/?a=1&api_key=x&b=2", "http://host/?a=1&api_key=***&b=2"),
        ("https://host?X-Auth-Token=x#part", "https://host?X-Auth-Token=***#part"),
        ("-o backend.spans=http://u:p@host:4318", "-o backend.spans=http://host:4318"),
        ('{"api_base": "http://u:p@host/?key=x"}', '{"api_base": "http://host/?key=***"}'),
        (f"Authorization: Basic {LOGIN} refused", "Authorization: Basic *** refused"),
        ("Bearer abcdef refused", "Bearer *** refused"),
        ("use Basic authentication", "use Basic authentication"),
        ("http://host/v1?page=2, bob@host, a key=3", "http://host/v1?page=2, bob@host, a key=3"),
        (f"the key {KEY} is wrong", "the key *** is wrong"),
    ],
)
def test_credentials_are_removed_from_texts(text, shown):
    assert without_credentials(text) == shown


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "hosted_vllm/llama"])
def test_requests_have_the_credentials_that_litellm_does_not_get(model):
    from litellm.integrations.custom_logger import CustomLogger

    known = []

    class Recorder(CustomLogger):
        def log_pre_api_call(self, model, messages, kwargs):
            known.append(repr(kwargs))

    recorder = Recorder()
    load().callbacks.append(recorder)
    try:
        with Server([answer("x")]) as server:
            backend = LiteLLM(model, api_base=server.private_url, retries=0)
            assert backend.complete(request()).text == "x"
            (path,), (received,) = server.paths, server.requests
    finally:
        load().callbacks.remove(recorder)
    assert path.startswith("/v1") and f"api_key={PARAMETER}" in path
    assert received.headers["Authorization"] == f"Basic {LOGIN}"
    assert known and not any(secret in known[0] + repr(backend) for secret in SECRETS[:2])


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_an_address_in_the_environment_may_have_credentials(name, monkeypatch):
    with Server([answer("x"), error(400, "bad request")]) as server:
        monkeypatch.setenv(name, server.url.replace("://", f"://bob:{PASSWORD}@"))
        backend = LiteLLM("openai/gpt-4o-mini", retries=0)
        assert backend.complete(request()).text == "x"
        assert server.requests[0].headers["Authorization"] == f"Basic {LOGIN}"
        with pytest.raises(UnansweredError) as caught:
            backend.complete(request())
    assert not any(secret in str(caught.value) for secret in SECRETS)


def echo(handler: Handler) -> None:
    """Refuse with a message that repeats the credentials, as careless servers do."""
    sent = f"{handler.headers['Authorization']} of http://bob:{PASSWORD}@host{handler.path}"
    error(400, f"cannot use {sent}")(handler)


def test_a_server_that_repeats_credentials_shows_none():
    with Server([echo]) as server, pytest.raises(UnansweredError) as caught:
        LiteLLM("openai/x", api_base=server.private_url, retries=0).complete(request())
    assert "cannot use Basic *** of http://host/v1" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_an_address_that_is_none_is_refused_without_its_credentials():
    for address in (f"http://bob:{PASSWORD}@host:port/v1", f"http://bob:{PASSWORD}@[host/v1"):
        with pytest.raises(CwmError, match=r"is not a server address .*: give --api-base") as told:
            LiteLLM("openai/x", api_base=address).complete(request())
        assert PASSWORD not in str(told.value)


@pytest.mark.slow
def test_the_rate_of_a_server_is_kept_under_its_address_without_credentials():
    waits = []
    with Server([answer("x")]) as server:
        options = {"api_base": server.private_url, "requests_per_minute": 150}
        backend = LiteLLM("openai/x", retries=0, **options)
        for _ in range(3):
            backend.complete(request()._replace(tell=waits.append, log=waits.append))
    assert "openai at http://127.0.0.1" in "".join(waits)
    assert not any(secret in "".join(waits) for secret in SECRETS)


def test_the_command_of_a_run_of_before_is_read_without_credentials():
    words = ["synthesize", "--api-base", f"http://bob:{PASSWORD}@host"]
    written = json.dumps({"kind": "search", "config": None, "command": words})
    header = RunHeader[None].model_validate_json(written)
    assert header.command == ("synthesize", "--api-base", "http://host")


def test_a_benchmark_of_before_is_the_same_without_credentials():
    config = {"environments": ["a"], "strategies": ["b"], "backend": "c"}
    before, now = (
        BenchmarkConfig(**config, options=[f"backend.api_base=http://{login}host"])
        for login in (f"bob:{PASSWORD}@", "bob:another@")
    )
    assert before == now
    assert before.options == ("backend.api_base=http://host",)


def written(*folders: Path) -> bytes:
    """Return all that is in the files below folders."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return b"\n".join(file.read_bytes() for file in files)


@pytest.mark.slow
def test_no_file_of_a_run_and_no_output_holds_credentials(cwm, poles):
    cwm.environment["OPENAI_API_KEY"] = KEY
    poles[0].save(cwm.folder / "poles.npz")
    common = ["synthesize", "--env", "CartPole-v1", "--dataset", "poles.npz", "--run", "run"]
    common += ["--model", "openai/gpt-4o-mini", "--cache", "--start", "none"]
    common += ["-o", "refine=none", "-o", "simplify=0", "-o", "retries=0"]
    outputs = []

    def run(*words: str) -> None:
        done = cwm.inside(*words)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout + done.stderr)

    with Server([answer(WRONG)]) as server:
        run(*common, "--api-base", server.private_url, "--budget", "1", "-o", "spans=")
        other = server.url.replace("://", "://bob:another@")
        run(*common, "-o", f"backend.api_base={other}", "--budget", "2", "--json")
        headers = [each.headers["Authorization"] for each in server.requests]
    assert headers[0] == f"Basic {LOGIN}" and headers[-1] != headers[0]
    with Server([echo]) as server:
        done = cwm.inside(*common, "--api-base", server.private_url, "--budget", "3")
        assert done.returncode == 1 and "cannot use Basic ***" in done.stderr
        outputs.append(done.stdout + done.stderr)
    run("runs", "show", "run")
    run("runs", "report", "run", "--html", "report.html")
    run("runs", "export", "run", "--out", "package")
    found = written(cwm.folder.parent) + "".join(outputs).encode()
    assert b"api_key=***" in found
    for secret in (*SECRETS, "bob:another"):
        assert secret.encode() not in found, secret


@pytest.mark.slow
def test_a_benchmark_gives_credentials_to_its_jobs_only(cwm):
    cwm.environment["OPENAI_API_KEY"] = KEY
    with Server([answer(WRONG)]) as server:
        address = f"backend.api_base={server.private_url}"
        words = ["benchmark", "--env", "CliffWalking-v1", "--model", "openai/gpt-4o-mini"]
        words += ["--budget", "1", "--run", "bench", "-o", address, "--yes"]
        done = cwm.inside(*words)
        assert done.returncode == 0, done.stderr
        assert {each.headers["Authorization"] for each in server.requests} == {f"Basic {LOGIN}"}
        count = len(server.requests)
        assert cwm.inside(*words).returncode == 0
        assert len(server.requests) == count
    found = written(cwm.folder.parent) + (done.stdout + done.stderr).encode()
    for secret in SECRETS:
        assert secret.encode() not in found, secret


@pytest.mark.slow
def test_files_of_slurm_hold_no_credentials(tmp_path):
    pytest.importorskip("submitit")
    executor = find("executor", "slurm")(workers=2, cluster="local")
    script = "import os, time; print(len(os.environ['ACCESS']), os.environ['PLAIN']); time.sleep(1)"
    access = json.dumps({"api_base": f"http://bob:{PASSWORD}@host"})
    log = tmp_path / "logs" / "one.txt"
    environment = {"ACCESS": access, "PLAIN": "yes"}
    executor.start(Command("one", (sys.executable, "-c", script), log, environment))
    try:
        ended = executor.wait()
        held = written(tmp_path)
        while not ended:
            ended = executor.wait()
    finally:
        executor.close()
    assert "ACCESS" not in os.environ
    assert b"PLAIN" in held and PASSWORD.encode() not in held
    assert log.read_text() == f"{len(access)} yes\n"
