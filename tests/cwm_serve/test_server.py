"""`cwm serve` as clients use it: real server processes, and a real HTTP client."""

import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from openapi_spec_validator import validate

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import json_value
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds.program import ProgramModel
from recordings import FROZEN_LAKE, cartpole, record
from served import Served, served
from shell import Shell

TOKEN = "a-token-of-the-tests-0123456789"

PHASES = """
import gymnasium as gym

class Phases(gym.Env):
    '''The observation counts up to 2; the hidden number of steps so far is the reward.'''

    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.light, self.steps = int(self.np_random.integers(3)), 0
        return self.light, {}

    def step(self, action):
        self.steps += 1
        self.light = (self.light + action) % 3
        return self.light, float(self.steps), self.steps == 6, False, {}
"""

REMEMBERS = """
class Environment:
    def reset(self, observation):
        self.light, self.steps = observation, 0

    def step(self, action):
        self.steps += 1
        self.light = (self.light + action) % 3
        return self.light, float(self.steps), self.steps == 6

    def correct(self, observation, reward):
        self.light = observation
"""

DRAWS = """
class Environment:
    def set_state(self, observation):
        self.light = observation

    def step(self, action):
        self.light = (self.light + action + int(self.rng.integers(2))) % 3
        return self.light, float(self.rng.random()), False
"""

BROKEN = """
import time

class Environment:
    def set_state(self, observation):
        self.cell = observation

    def step(self, action):
        if self.cell == 1:
            while True:
                pass
        if self.cell == 2:
            raise SystemExit(3)
        if self.cell == 3:
            self.memory = [bytearray(1 << 20) for _ in range(1 << 20)]
        if self.cell == 4:
            return 99, 0.0, False
        if self.cell == 6:
            raise KeyError(action)
        return 0, 1.0, False
"""

HANGS = cartpole().replace(
    "x, v, angle, spin = self.state",
    "x, v, angle, spin = self.state\n        while x > 1000:\n            pass",
)
"""A program that answers all recorded rows, so that its server starts fast, and hangs at `FAR`."""

FAR = [[2000.0, 0.0, 0.0, 0.0]]


@pytest.fixture(scope="module")
def lake():
    data, _ = record("FrozenLake-v1", episodes=20, is_slippery=False)
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory, lake) -> Path:
    found = tmp_path_factory.mktemp("served")
    data, _ = record("CartPole-v1", episodes=20)
    data.save(found / "poles.npz")
    lake.save(found / "lake.npz")
    (found / "poles.py").write_text(cartpole())
    (found / "lake.py").write_text(FROZEN_LAKE)
    (found / "broken.py").write_text(BROKEN)
    (found / "hangs.py").write_text(HANGS)
    (found / "phases.py").write_text(PHASES)
    (found / "remembers.py").write_text(REMEMBERS)
    (found / "draws.py").write_text(DRAWS)
    recording = ("--policy", "random", "--episodes", "20", "--out", "phases.npz")
    recorded = Shell(found, found).inside("collect", "--env", "phases.py", *recording)
    assert recorded.returncode == 0, recorded.stderr
    return found


def of_poles(*more: str, program: str = "poles.py") -> tuple[str, ...]:
    return (program, "--env", "CartPole-v1", "--dataset", "poles.npz", *more)


def of_lake(*more: str, program: str = "lake.py") -> tuple[str, ...]:
    return (program, "--env", "FrozenLake-v1", "--dataset", "lake.npz", *more)


def of_phases(program: str) -> tuple[str, ...]:
    return (program, "--env", "phases.py", "--dataset", "phases.npz")


@pytest.fixture(scope="module")
def poles(folder):
    with served(folder, *of_poles()) as server:
        yield server


@pytest.fixture(scope="module")
def remembers(folder):
    with served(folder, *of_phases("remembers.py")) as server:
        yield server


def check_error(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert error["cause"] and error["remedy"]


def test_predictions_equal_those_of_the_library(poles: Served, folder, sandbox) -> None:
    rows = Dataset.load(folder / "poles.npz")[np.arange(200)]
    found = poles.predict(
        json_value(rows.columns["observations"]), json_value(rows.columns["actions"])
    ).json()
    expected = ProgramModel(cartpole(), sandbox).predict(rows).columns
    np.testing.assert_allclose(found["observations"], expected["next_observations"], rtol=1e-12)
    assert found["rewards"] == expected["rewards"].tolist()
    assert found["terminated"] == expected["terminations"].tolist()
    assert found["failures"] == []


def test_a_session_continues_from_its_own_predictions(poles: Served, folder) -> None:
    state = poles.session(seed=5)
    assert state == poles.session(seed=5) | {"session": state["session"]}
    starts = Dataset.load(folder / "poles.npz")
    _, firsts = np.unique(starts.columns["episodes"], return_index=True)
    assert state["observation"] in starts.columns["observations"][firsts].tolist()
    seen = state["observation"]
    for number in range(1, 60):
        state = poles.step(state["session"], 1).json()
        [predicted] = poles.predict([seen], [1]).json()["observations"]
        assert state["observation"] == pytest.approx(predicted, rel=1e-12)
        assert state["step"] == state["total"] == number
        seen = state["observation"]
        if state["terminated"]:
            break
    assert state["terminated"]
    check_error(poles.step(state["session"], 1), 409, "episode_over")
    again = poles.client.post(f"/v1/sessions/{state['session']}/reset", json={"seed": 5})
    assert again.json()["step"] == 0
    assert poles.client.delete(f"/v1/sessions/{state['session']}").status_code == 204
    check_error(poles.step(state["session"], 1), 404, "no_session")


@pytest.mark.slow
def test_a_start_may_be_given_and_the_step_limit_truncates(folder) -> None:
    with served(folder, *of_lake("--env-arg", "is_slippery=False")) as server:
        limit = server.client.get("/v1/model").json()["max_steps"]
        state = server.session(observation=3)
        assert state["observation"] == 3
        for _ in range(limit):
            state = server.step(state["session"], 3).json()
        assert (state["step"], state["truncated"], state["terminated"]) == (limit, True, False)
        check_error(server.step(state["session"], 3), 409, "episode_over")


def follow(server: Served, start: int, actions: list[int]) -> list[tuple]:
    state, found = server.session(observation=start, seed=7), []
    for action in actions:
        state = server.step(state["session"], action).json()
        found.append((state["observation"], state["reward"], state["terminated"]))
    return found


def imagined(program: str, rows: Dataset, start: int, actions: list[int], sandbox: Sandbox):
    inside = ProgramModel(program, sandbox).imagine([EpisodeHistory((start,))], rows, seed=7)
    for action in actions:
        step = inside.step({"actions": np.array([action])})
        yield step.observations["observations"][0], step.rewards[0], step.terminated[0]
    inside.close()


def check_episode(server: Served, program: str, rows: Dataset, sandbox: Sandbox) -> None:
    """Compare two equal sessions with an imagined episode."""
    actions = [1, 0, 1, 1, 0, 1]
    one, other = (follow(server, 2, actions) for _ in range(2))
    assert one == other == list(imagined(program, rows, 2, actions, sandbox))


@pytest.mark.slow
def test_chance_is_as_in_imagined_episodes(folder, sandbox) -> None:
    with served(folder, *of_phases("draws.py")) as server:
        check_episode(server, DRAWS, Dataset.load(folder / "phases.npz"), sandbox)
        assert not server.client.get("/v1/model").json()["memory"]


def test_memory_is_as_in_imagined_episodes(remembers: Served, folder, sandbox) -> None:
    check_episode(remembers, REMEMBERS, Dataset.load(folder / "phases.npz"), sandbox)
    assert remembers.client.get("/v1/model").json()["memory"]


def test_a_model_with_memory_predicts_from_histories(remembers: Served) -> None:
    histories = [
        {"observations": [2]},
        {"observations": [0, 1, 1], "actions": [1, 0], "rewards": [1.0, 2.0]},
    ]
    rows = {"histories": histories, "actions": [1, 1]}
    found = remembers.client.post("/v1/predict", json=rows).json()
    assert (found["observations"], found["rewards"]) == ([0, 2], [1.0, 3.0])
    uneven = {"histories": [{"observations": [0, 1]}], "actions": [1]}
    check_error(remembers.client.post("/v1/predict", json=uneven), 422, "invalid_values")


@pytest.mark.slow
def test_a_program_that_hangs_dies_or_is_wrong_does_not_stop_the_server(folder) -> None:
    options = ("-o", "stall_seconds=0.5", "-o", "memory_mb=64")
    with served(folder, *of_lake(*options, program="broken.py")) as server:
        failures = {1: (504, "model_timeout"), 2: (502, "model_failed"), 3: (502, "model_failed")}
        for cell, (status, code) in failures.items():
            check_error(server.predict([cell], [0]), status, code)
            assert server.predict([0], [0]).json()["observations"] == [0]
        session = server.session(observation=1)["session"]
        check_error(server.step(session, 0), 504, "model_timeout")
        mixed = server.predict([0, 4, 6], [0, 0, 2]).json()
        assert mixed["observations"] == [0, None, None]
        outside, raised = mixed["failures"]
        assert outside["row"] == 1 and "99" in outside["cause"]
        assert raised["cause"].startswith("KeyError: 2 (<program>, line ")


def mutated(body: bytes, rng: random.Random) -> bytes:
    """Return a body with random damage."""
    values = (
        b"null", b"-1", b"1e999", b"NaN", b'"x"', b"[]", b"{}", b"true", b"9" * 400, b"[[[[",
        b"\xff\xfe", b"\x00", b'"\\ud800"', b"-0.0", b"1e-400", b"99999999999999999999",
        b'{"observations":[[0,0,0,0]],"actions":[0],"actions":[1],"seed":-1}',
    )  # fmt: skip
    damaged = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(damaged) + 1)
        match rng.randrange(4):
            case 0:
                damaged[place:place] = rng.choice(values)
            case 1:
                del damaged[place : place + rng.randint(1, 8)]
            case 2:
                damaged[place : place + 1] = bytes([rng.randrange(256)])
            case _:
                damaged = bytearray(rng.choice(values)) + damaged[place:]
    return bytes(damaged)


@pytest.mark.slow
def test_a_thousand_malformed_requests_get_json_errors(poles: Served) -> None:
    rng = random.Random(0)
    session = poles.session(seed=0)["session"]
    bodies = {
        "/v1/predict": b'{"observations": [[0, 0.1, 0, -0.2]], "actions": [1], "seed": 3}',
        "/v1/sessions": b'{"seed": 4, "observation": [0, 0, 0, 0]}',
        f"/v1/sessions/{session}/step": b'{"action": 1}',
        f"/v1/sessions/{session}/reset": b'{"seed": 4}',
        "/v1/sessions/none/step": b'{"action": 1}',
    }
    statuses = []
    for _ in range(1000):
        path = rng.choice(list(bodies))
        kind = rng.choice(["application/json"] * 9 + ["text/plain"])
        response = poles.client.post(
            path, content=mutated(bodies[path], rng), headers={"Content-Type": kind}
        )
        statuses.append(response.status_code)
        assert response.status_code < 500 or response.json()["error"]["code"] == "model_failed"
        if response.status_code >= 400:
            assert response.json()["error"]["remedy"]
    assert {400, 404, 415, 422} <= set(statuses)
    assert poles.client.get("/v1/health").json() == {"status": "ok"}
    assert poles.process.poll() is None


@pytest.mark.slow
def test_memory_stays_flat_with_fifty_clients(folder) -> None:
    options = ("-o", "serve.sessions=1000", "-o", "stall_seconds=60")
    with served(folder, *of_poles(*options)) as server:
        tls = httpx.create_ssl_context()  # one for all clients, because each takes 20 ms

        def play(seed: int) -> int:
            with httpx.Client(base_url=server.facts["url"], timeout=60, verify=tls) as client:
                state = client.post("/v1/sessions", json={"seed": seed}).json()
                rows = {"observations": [[0.0, 0.0, 0.0, 0.0]] * 50, "actions": [1] * 50}
                for _ in range(2):
                    path = f"/v1/sessions/{state['session']}/step"
                    assert client.post(path, json={"action": 0}).status_code == 200
                    assert client.post("/v1/predict", json=rows).status_code == 200
            return seed

        sizes = []
        for _ in range(4):
            with ThreadPoolExecutor(50) as pool:
                assert len(set(pool.map(play, range(50)))) == 50
            sizes.append(server.memory())
        assert sizes[-1] - sizes[0] < 16 << 20


@pytest.mark.slow
def test_requests_need_the_token_of_the_server(folder) -> None:
    with served(folder, *of_lake(), CWM_SERVE_TOKEN=TOKEN) as server:
        assert server.facts["token"] == TOKEN
        assert server.facts["page"].endswith(f"#token={TOKEN}")
        client = server.client
        assert client.get("/").status_code == client.get("/v1/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            for path in ("/v1/model", "/openapi.json", "/v1/sessions", "/nothing"):
                response = client.get(path, headers=headers)
                check_error(response, 401, "no_token")
                assert response.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/v1/model", headers=right).status_code == 200
        document = client.get("/openapi.json", headers=right).json()
        assert document["security"] == [{"token": []}]
        arguments = Path(f"/proc/{server.process.pid}/cmdline").read_text()
        assert TOKEN not in arguments


@pytest.mark.slow
def test_another_host_than_loopback_has_a_generated_token(folder) -> None:
    with served(folder, *of_lake("--host", "0.0.0.0")) as server:
        assert len(server.facts["token"]) >= 32
        port = server.facts["url"].rpartition(":")[2].strip("/")
        url = f"http://127.0.0.1:{port}/v1/model"
        assert httpx.get(url).status_code == 401
        right = {"Authorization": f"Bearer {server.facts['token']}", "Host": "any.example"}
        assert httpx.get(url, headers=right).status_code == 200


def test_pages_of_other_servers_are_refused(poles: Served) -> None:
    for host in ("evil.example", "evil.example:80", "[::", ""):
        check_error(poles.client.get("/v1/model", headers={"Host": host}), 421, "wrong_host")
    for origin in ("http://evil.example", "null", "http://localhost:1"):
        response = poles.client.get("/v1/model", headers={"Origin": origin})
        check_error(response, 403, "wrong_origin")
    own = poles.facts["url"].rstrip("/")
    assert poles.client.get("/v1/model", headers={"Origin": own}).status_code == 200


@pytest.mark.slow
def test_limits_of_sizes_and_sessions(folder) -> None:
    limits = ("rows=10", "body_bytes=2000", "sessions=3", "idle_seconds=1.5")
    options = [word for each in limits for word in ("-o", f"serve.{each}")]
    with served(folder, *of_lake(*options)) as server:
        assert server.predict([0] * 10, [0] * 10).status_code == 200
        check_error(server.predict([0] * 11, [0] * 11), 413, "too_many_rows")
        check_error(server.predict([0] * 2000, [0] * 2000), 413, "body_too_large")
        for _ in range(3):
            server.session()
        refused = server.client.post("/v1/sessions", json={})
        check_error(refused, 429, "too_many_sessions")
        assert int(refused.headers["retry-after"]) >= 1
        time.sleep(1.6)
        server.session()


@pytest.mark.slow
def test_a_client_may_not_exceed_its_rate_or_fill_the_server(folder) -> None:
    limits = ("rate=5", "in_flight=2", "all_in_flight=3", "workers=1")
    options = [word for each in limits for word in ("-o", f"serve.{each}")]
    options += ["-o", "stall_seconds=2"]
    with served(folder, *of_poles(*options, program="hangs.py")) as server:
        codes = [server.client.get("/v1/health").status_code for _ in range(60)]
        assert codes[0] == 200 and 429 in codes
        time.sleep(2.1)
        hanging = [threading.Thread(target=server.predict, args=(FAR, [0])) for _ in range(2)]
        for thread in hanging:
            thread.start()
        time.sleep(0.7)
        refused = server.client.get("/v1/health")
        check_error(refused, 429, "too_many_requests")
        assert "simultaneous" in refused.json()["error"]["cause"]
        for thread in hanging:
            thread.join()
        assert server.predict([[0.0] * 4], [0]).status_code == 200


def test_the_openapi_document_is_valid_and_covers_every_operation(
    poles: Served, remembers: Served
) -> None:
    document = poles.client.get("/openapi.json").json()
    validate(document)
    assert document["openapi"].startswith("3.1")
    found = {(path, method) for path, each in document["paths"].items() for method in each}
    for path, method in found:
        address = path.replace("{session}", "none")
        response = poles.client.request(method, address, json={})
        assert response.status_code != 405
        documented = document["paths"][path][method]["responses"]
        assert str(response.status_code) in documented
    served_paths = {"/", "/openapi.json", "/v1/health", "/v1/model", "/v1/predict"}
    assert served_paths < {path for path, _ in found}
    check_error(poles.client.put("/v1/model"), 405, "no_operation")
    check_error(poles.client.get("/v2/model"), 404, "no_operation")
    schema = document["components"]["schemas"]["PredictRequest"]["properties"]["actions"]
    assert schema["items"] == {"type": "integer", "minimum": 0, "maximum": 1}
    validate(remembers.client.get("/openapi.json").json())


@pytest.mark.slow
def test_the_description_names_spaces_actions_and_limits(poles: Served) -> None:
    info = poles.client.get("/v1/model").json()
    assert [each["name"] for each in info["actions"]] == [
        "Push cart to the left",
        "Push cart to the right",
    ]
    assert [each["keys"] for each in info["actions"]] == [["left"], ["right"]]
    assert info["observation_components"][0]["name"] == "Cart Position"
    assert (info["contract"], info["memory"], info["max_steps"]) == ("plain", False, 500)
    assert info["starts"] == 20
    assert info["limits"]["rows"] == 4096


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_with_one_line(folder, number) -> None:
    with served(folder, *of_lake()) as server:
        server.client.get("/v1/health")
        code, out, err = server.stop(number)
    assert (code, out, err) == (0, "", "Stopped: answered 1 request\n")


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_hanging_program(folder) -> None:
    options = ("-o", "stall_seconds=60", "-o", "cpu_seconds=60")
    with served(folder, *of_poles(*options, program="hangs.py")) as server:
        replies: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: replies.append(server.predict(FAR, [0])))
        thread.start()
        time.sleep(2)
        began = time.monotonic()
        code, _, err = server.stop()
        assert (code, err) == (0, "Stopped: answered 1 request\n")
        assert time.monotonic() - began < 20
        thread.join()
        check_error(replies[0], 503, "busy")


@pytest.mark.slow
def test_mistakes_are_reported_in_one_line(folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, words in (
            (of_lake("--port", str(port)), f"port {port} of 127.0.0.1 is in use"),
            (of_lake("--host", "no.such.host.invalid"), "has no address"),
            (of_lake("--token", "short"), "the token needs 16 or more"),
            (of_lake("-o", "serve.rows=0"), "rows must be positive"),
            (of_lake("-o", "serve.row=1"), "row"),
            (("nothing",), "nothing"),
        ):
            done = Shell(folder, folder).inside("serve", *arguments)
            assert (done.returncode, done.stdout) == (1, "")
            assert words in done.stderr and len(done.stderr.splitlines()) == 1
