"""The JSON of requests and replies: these models validate it, and `openapi` describes it."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model, model_validator

from cwm_cli.data.spaces import Space
from cwm_serve.engines import Keeps
from cwm_serve.values import Number, json_type

O = TypeVar("O")  # noqa: E741
A = TypeVar("A")
H = TypeVar("H")

Seed = Annotated[
    int, Field(strict=True, ge=0, lt=1 << 31, description="Seed of all random choices.")
]
Reward = Annotated[float, Field(description="The predicted reward.")]


class ApiModel(BaseModel):
    """Base class of requests and replies; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class EpisodeStartRequest(ApiModel, Generic[O]):
    """The start of an episode."""

    seed: Seed | None = Field(
        None, description="Seed of the start and of random outcomes. Default: a random seed."
    )
    observation: O | None = Field(
        None, description="The first observation. Default: a recorded initial observation."
    )


class StepRequest(ApiModel, Generic[A]):
    """The next action of a session."""

    action: A


class EpisodeState(ApiModel, Generic[O, A]):
    """The present state of a session, and its latest step."""

    session: str = Field(description="The name of the session, for later requests.")
    seed: Seed
    step: int = Field(description="The number of steps so far.")
    action: A | None = Field(description="The latest action; null at the start.")
    observation: O
    reward: Reward
    total: float = Field(description="The sum of the rewards so far.")
    terminated: bool = Field(description="Whether the model predicts the end of the episode.")
    truncated: bool = Field(description="Whether the step limit is reached.")
    valid_actions: list[int] | None = Field(description="The valid actions; null if all are.")


class SessionEntry(ApiModel):
    """A session in the list of sessions."""

    session: str
    step: int
    total: float
    idle_seconds: float


class SessionList(ApiModel):
    """All sessions, the latest used one last."""

    sessions: list[SessionEntry]


class PredictRequest(ApiModel, Generic[O, A]):
    """Observations and actions: one prediction for each pair."""

    observations: list[O]
    actions: list[A]
    seed: Seed = 0

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.observations) != len(self.actions):
            raise ValueError("observations and actions must have the same length")
        return self


class HistoryData(ApiModel, Generic[O, A]):
    """The history of an episode; it has one more observation than actions and rewards."""

    observations: Annotated[list[O], Field(min_length=1)]
    actions: list[A] = []
    rewards: list[Number] = []

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        count = len(self.observations) - 1
        if len(self.actions) != count or len(self.rewards) != count:
            raise ValueError("a history has one more observation than actions and rewards")
        return self


class HistoryRequest(ApiModel, Generic[H, A]):
    """Histories and actions: one prediction for each pair, by a model with memory."""

    histories: list[H]
    actions: list[A]
    seed: Seed = 0

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.histories) != len(self.actions):
            raise ValueError("histories and actions must have the same length")
        return self


class RowFailure(ApiModel):
    """A row that the model cannot predict."""

    row: int = Field(description="The number of the row, counted from 0.")
    cause: str


class PredictReply(ApiModel, Generic[O]):
    """Predictions in the order of the rows; null in the rows of `failures`."""

    observations: list[O | None]
    rewards: list[float | None]
    terminated: list[bool | None]
    valid_actions: list[list[int] | None] | None = Field(
        description="The valid actions of each row; null if the model names none."
    )
    failures: list[RowFailure]


class ComponentInfo(ApiModel):
    """A component of observations or actions; null bounds are infinite."""

    name: str
    low: float | None
    high: float | None


class ActionInfo(ApiModel):
    """A discrete action, its name, and the keys of the page for it."""

    action: int
    name: str
    keys: list[str]


class LimitInfo(ApiModel):
    """The limits of a client."""

    rows: int
    body_bytes: int
    sessions: int
    idle_seconds: float
    in_flight: int
    rate: float


class ModelInfo(ApiModel):
    """The world model, its spaces, and its limits."""

    name: str
    environment: str
    kind: str = Field(description="`program`, or the name of another kind of world model.")
    contract: str | None = Field(description="Contract of a program: plain, chance or memory.")
    memory: bool = Field(description="Whether predictions need the history of an episode.")
    digest: str = Field(description="SHA-256 hash of the program.")
    version: str = Field(description="The version of cwm.")
    observation_space: dict[str, JsonValue]
    action_space: dict[str, JsonValue]
    observation_components: list[ComponentInfo] = Field(description="Empty for pictures.")
    action_components: list[ComponentInfo]
    actions: list[ActionInfo] = Field(description="The discrete actions; else empty.")
    max_steps: int = Field(description="The step limit of an episode.")
    starts: int = Field(description="The number of recorded initial observations.")
    picture: Literal["image", "text"] | None = Field(description="The type of pictures.")
    scores: dict[str, JsonValue] = Field(description="Scores of the run, by part of the data.")
    limits: LimitInfo


class Health(ApiModel):
    """The server accepts requests."""

    status: Literal["ok"] = "ok"


class ErrorDetail(ApiModel):
    """A mistake in a request."""

    at: str = Field(description="The place in the body, such as `actions.3`.")
    problem: str


class ErrorInfo(ApiModel):
    """The cause of an error, and its remedy."""

    code: str
    cause: str
    remedy: str
    details: list[ErrorDetail] = []


class ErrorReply(ApiModel):
    """The body of every reply with an error."""

    error: ErrorInfo


class Schemas(NamedTuple):
    """The models of one world model, with the types of its observations and actions."""

    episode: type[EpisodeStartRequest[Any]]
    step: type[StepRequest[Any]]
    state: type[EpisodeState[Any, Any]]
    predict: type[PredictRequest[Any, Any]] | type[HistoryRequest[Any, Any]]
    predictions: type[PredictReply[Any]]


def make_schemas(observations: Space, actions: Space, keeps: Keeps) -> Schemas:
    """Return the models for the spaces of a world model."""
    seen, taken = json_type(observations, "Observation"), json_type(actions, "Action")
    predict: Any = _named(PredictRequest, seen, taken)
    if keeps != "observation":
        predict = _named(HistoryRequest, _named(HistoryData, seen, taken), taken)
    return Schemas(
        _named(EpisodeStartRequest, seen),
        _named(StepRequest, taken),
        _named(EpisodeState, seen, taken),
        predict,
        _named(PredictReply, seen),
    )


def _named(generic: Any, *types: Any) -> Any:
    """Return a generic model with its types, and with its name and text in the document."""
    parameters = types[0] if len(types) == 1 else types
    base = generic[parameters]
    return create_model(generic.__name__, __base__=base, __doc__=generic.__doc__)
