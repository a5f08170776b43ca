"""`cwm mcp` over HTTP, and as a command of the shell."""

import asyncio
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
from mcp import Client

from cwm_cli.errors import CwmError
from cwm_mcp.serving import LoopbackAddress, skill
from mcp_agents import FIRST_GUESS, LIFT_DATA, Agent


@contextmanager
def serving(shell, *arguments):
    """Start `cwm mcp` over HTTP and yield its URL; Ctrl-C stops it."""
    process = shell.start("mcp", *LIFT_DATA, "--http", *arguments)
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"http://\S+/mcp", line):
                yield found[0]
                break
        else:
            pytest.fail("".join(lines))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert "Traceback" not in err
        assert out == ""
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_http_serves_clients_of_this_machine_only(lift):
    async def use(url: str) -> dict:
        async with Client(url) as one, Client(url) as two:
            found = await Agent(one)("submit", program=FIRST_GUESS)
            assert found["node"]["node"] == 0
            return await Agent(two)("describe")

    with serving(lift, "0") as url:
        assert url.startswith("http://127.0.0.1:")
        about = asyncio.run(use(url))
        assert [node["node"] for node in about["nodes"]] == [0]
        base, port = url.removesuffix("/mcp"), url.split(":")[2].removesuffix("/mcp")
        hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accepts = {"Accept": "application/json, text/event-stream"}

        def status(**headers: str) -> int:
            return httpx.post(url, json=hello, headers=accepts | headers).status_code

        assert status(Host="evil.example") == 421
        assert status(Host=f"evil.example:{port}") == 421
        assert status(Origin="http://evil.example") == 403
        assert status(Origin="null") == 403
        assert status(Host=f"localhost:{port}", Origin=f"http://localhost:{port}") < 421
        assert httpx.post(url, content=b"x" * (5 << 20), headers=accepts).status_code in (400, 413)
        assert httpx.get(f"{base}/").status_code == 404
        assert asyncio.run(use_again(url))["submissions_left"] == 19
        busy = lift("mcp", *LIFT_DATA, "--run", "other", "--http", port)
        assert busy.returncode == 1
        assert re.search(rf"port {port} cannot be used \(.*in use\): choose another", busy.stderr)


async def use_again(url: str) -> dict:
    """Return the description from a new client."""
    async with Client(url) as client:
        return await Agent(client)("describe")


@pytest.mark.parametrize(
    "text", ["0.0.0.0:80", "example.org:80", "[::]:80", "192.168.0.1:80", "127.0.0.1.evil.org:80"]
)
def test_address_of_another_machine_is_refused(text):
    with pytest.raises(CwmError, match="would let other machines run programs here"):
        LoopbackAddress.parse(text)


@pytest.mark.parametrize("text", ["", "http", "99999", "localhost:", "-1"])
def test_address_without_a_port_is_refused(text):
    with pytest.raises(CwmError, match="names no port: write --http 8000"):
        LoopbackAddress.parse(text)


def test_address_may_name_a_host_of_this_machine():
    assert LoopbackAddress.parse("8000") == ("127.0.0.1", 8000)
    assert LoopbackAddress.parse("localhost:1") == ("127.0.0.1", 1)
    assert LoopbackAddress.parse("[::1]:8000") == ("::1", 8000)
    assert LoopbackAddress.parse("127.0.0.2:0") == ("127.0.0.2", 0)


def test_skill_is_printed_with_front_matter(cwm):
    printed = cwm.inside("mcp", "--print-skill")
    assert printed.returncode == 0
    assert printed.stdout == skill()
    head, about, text = printed.stdout.split("---\n", 2)
    assert head == ""
    assert re.search(r"^name: code-world-model$", about, re.MULTILINE)
    assert re.search(r"^description: \S.{50}", about, re.MULTILINE)
    for tool in ("describe", "evidence", "check", "submit", "compare", "finish"):
        assert f"`{tool}`" in text


def test_missing_extra_is_one_line(cwm, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    refused = cwm.inside("mcp", "--env", "CartPole-v1")
    assert refused.returncode == 1
    assert re.fullmatch(
        r"Error: `cwm mcp` needs an extra: pip install .*\[mcp\]'?\n", refused.stderr
    )


def test_environment_is_required(cwm):
    refused = cwm.inside("mcp", "--run", "empty")
    assert refused.returncode == 1
    assert "name an environment with --env ID" in refused.stderr


def test_backend_of_submissions_refuses_other_commands(cwm):
    refused = cwm.inside(
        "synthesize", "--env", "CliffWalking-v1", "--backend", "submissions", "--budget", "1"
    )
    assert refused.returncode == 1
    assert "only returns programs of clients of `cwm mcp`" in refused.stderr


@pytest.mark.slow
def test_interrupt_ends_a_server_that_waits_for_stdin(lift):
    process = subprocess.Popen(
        [sys.executable, "-m", "cwm_cli", "mcp", *LIFT_DATA],
        cwd=lift.folder,
        env=lift.variables(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while "waiting for an agent" not in (line := process.stderr.readline()):
            assert line, "the server ended"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == "interrupted: the same command continues the run\n"
    finally:
        process.kill()
        process.communicate()
