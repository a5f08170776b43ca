"""Parts of the server: limits, sessions, values of every space, and engines."""

import json
import socket

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cwm_cli.data.spaces import json_value
from cwm_cli.envs.spec import space_of
from cwm_cli.planning.model import EpisodeHistory, Step
from cwm_cli.registry import environment
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.model import Predictions, WorldModel
from cwm_serve import serve as serving
from cwm_serve.engines import ModelFailure, StepRow, TrustedEngine
from cwm_serve.guard import is_loopback
from cwm_serve.limits import MAX_CLIENTS, Clients, ServerBusy, ServerLimits, TooManyRequests
from cwm_serve.sessions import Sessions
from cwm_serve.values import json_type, read_values
from cwm_serve.world import encode_png
from recordings import record


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_client_has_a_burst_and_a_rate() -> None:
    clock = Clock()
    clients = Clients(ServerLimits(rate=10), clock)

    def admitted() -> int:
        count = 0
        try:
            while True:
                with clients.admit("1.2.3.4"):
                    count += 1
        except TooManyRequests as error:
            assert 0 < error.seconds <= 0.1
        return count

    assert (admitted(), admitted()) == (20, 0)
    clock.now += 1.0
    assert admitted() == 10
    with clients.admit("1.2.3.5"):
        pass


def test_the_memory_of_clients_is_bounded() -> None:
    clients = Clients(ServerLimits(), Clock())
    with clients.admit("busy"):
        for number in range(MAX_CLIENTS + 100):
            with clients.admit(str(number)):
                pass
        assert len(clients._clients) <= MAX_CLIENTS + 1
        assert "busy" in clients._clients
    assert clients.running == 0


def test_all_clients_together_have_a_limit() -> None:
    clients = Clients(ServerLimits(all_in_flight=1), Clock())
    with clients.admit("one"), pytest.raises(ServerBusy), clients.admit("other"):
        pass


def test_sessions_expire_and_are_limited() -> None:
    clock = Clock()
    limits = ServerLimits(sessions=2, all_sessions=3, idle_seconds=10)
    sessions = Sessions(limits, "observation", 5, clock)
    first, _ = sessions.open("a", 0, 1), sessions.open("a", 0, 1)
    with pytest.raises(TooManyRequests):
        sessions.open("a", 0, 1)
    sessions.open("b", 0, 1)
    with pytest.raises(ServerBusy):
        sessions.open("b", 0, 1)
    clock.now = 6.0
    assert sessions.find(first.name) is first
    clock.now = 12.0
    assert [each.name for each in sessions] == [first.name]
    clock.now = 17.0
    assert sessions.find(first.name) is None


@pytest.mark.parametrize(
    ("keeps", "observations", "actions", "first"),
    [
        ("observation", (2,), (9,), 2),
        ("actions", (0,), (7, 8, 9), 0),
        ("history", (0, 1, 2), (9,), 2),
    ],
)
def test_a_session_keeps_the_state_that_its_engine_needs(
    keeps, observations, actions, first
) -> None:
    session = Sessions(ServerLimits(), keeps, 2).open("a", 0, 5)
    session.record(7, Step(1, 0.5, False))
    assert not session.is_over
    session.record(8, Step(2, 0.5, False))
    row = session.row(9)
    assert (row.history.observations, row.actions, row.key) == (
        observations,
        actions,
        (5, first, 0),
    )
    assert (session.total, session.truncated, session.terminated) == (1.0, True, False)


SPACES = gym.spaces.Dict(
    {
        "a.b": gym.spaces.Tuple([gym.spaces.Discrete(3, start=-1), gym.spaces.Text(5)]),
        "class": gym.spaces.Box(-1, 1, (2, 2)),
        "_x": gym.spaces.MultiDiscrete([3, 2]),
        "bits": gym.spaces.MultiBinary(3),
        "board": gym.spaces.Box(0, 9, (2, 3), np.int8),
    }
)


@given(st.integers(0, 1 << 30))
def test_values_of_every_space_are_read_back(seed) -> None:
    space = space_of(SPACES)
    SPACES.seed(seed)
    sampled = SPACES.sample()
    adapter = TypeAdapter(list[json_type(space, "Value")])
    [data] = adapter.validate_json(json.dumps([json_value(sampled)]))
    [found] = read_values(space, "observations", [data], bounded=True)
    assert json_value(found) == json_value(sampled)


WRONG = [
    ({"a.b": [9, "x"]}, "a.b"),
    ({"a.b": [0]}, "a.b"),
    ({"a.b": [0, "xxxxxxxxxx"]}, "a.b"),
    ({"class": [[0, 0], [0]]}, "class"),
    ({"class": [[0, 0], [0, "1"]]}, "class"),
    ({"bits": [0, 1, 0.5]}, "bits"),
    ({"more": 1}, "more"),
    ({"_x": None}, "_x"),
    ({"board": [[1 << 70] * 3] * 2}, "board"),
]


@pytest.mark.parametrize(("change", "place"), WRONG)
def test_wrong_values_are_refused_with_their_place(change, place) -> None:
    adapter = TypeAdapter(json_type(space_of(SPACES), "Value"))
    data = json_value(SPACES.sample()) | change
    with pytest.raises(ValidationError) as error:
        adapter.validate_json(json.dumps(data))
    assert place in {each["loc"][0] for each in error.value.errors()}


def test_values_out_of_bounds_are_refused() -> None:
    space = space_of(SPACES)
    data = json_value(SPACES.sample())
    for change in ({"_x": [0, 2]}, {"class": [[0, 0], [0, 1.5]]}, {"bits": [0, 0, 2]}):
        with pytest.raises(ValueError, match="bounds"):
            read_values(space, "actions", [data | change], bounded=True)
    edge = data | {"class": [[1.0000001, -1], [0, 0]]}
    assert read_values(space, "actions", [edge], bounded=True)


def test_a_model_without_generated_code_is_served_too() -> None:
    rows, _ = record("FrozenLake-v1", episodes=3, is_slippery=False)
    engine = TrustedEngine(
        EnvironmentModel(environment("FrozenLake-v1"), {"is_slippery": False}), rows
    )
    asked = [StepRow(EpisodeHistory((cell,)), (2,), (0, 0, n)) for n, cell in enumerate((0, 14, 4))]
    steps = [outcome.step for outcome in engine.step(asked)]
    assert [(step.observation, step.reward, step.terminated) for step in steps] == [
        (1, 0.0, False),
        (15, 1.0, True),
        (5, 0.0, True),
    ]


class Failing(WorldModel):
    """A model that fails for all rows."""

    kind = "failing"

    def predict(self, rows, *, seed=0, draws=1):
        return Predictions({}, Failure(kind="step_error", message="KeyError: 7"))


def test_a_model_that_fails_is_an_error_of_the_request() -> None:
    rows, _ = record("FrozenLake-v1", episodes=3, is_slippery=False)
    with pytest.raises(ModelFailure, match="KeyError: 7"):
        TrustedEngine(Failing(), rows).step([StepRow(EpisodeHistory((0,)), (2,), (0, 0, 0))])


def test_a_picture_is_a_png_file(tmp_path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3)).astype(np.uint8)
    (tmp_path / "x.png").write_bytes(encode_png(pixels))
    with image.open(tmp_path / "x.png") as opened:
        assert (np.asarray(opened) == pixels).all()


def test_loopback_hosts() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "localhost.evil.example", "", "10.0.0.1")))


def test_replies_are_not_delayed() -> None:
    with serving._bound("127.0.0.1", 0) as listener:
        # asyncio sets TCP_NODELAY only if the socket names its protocol
        assert listener.proto == socket.IPPROTO_TCP


def test_a_missing_extra_is_one_line(monkeypatch) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    with pytest.raises(serving.CwmError, match=r"cwm serve needs an extra: pip install .*serve"):
        serving.serve("run")
