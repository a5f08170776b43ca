"""The world model that the server offers: its spaces, starts, engine and pictures."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np

from cwm_cli._version import __version__
from cwm_cli.commands.subjects import Subject, protected
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.objects import ObjectSchema
from cwm_cli.data.spaces import Space
from cwm_cli.envs.documented import documented_actions
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import step_limit
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import Observer
from cwm_cli.sandbox import Limits
from cwm_cli.sandbox.job import abilities_of
from cwm_cli.text import clean
from cwm_cli.worlds.program import ProgramModel
from cwm_play.keys import ActionKeys, keys_of
from cwm_play.painting import Appearance, Components, NamedComponent, Painter
from cwm_serve.confined import ServedJob
from cwm_serve.engines import Engine, ProgramEngine, TrustedEngine
from cwm_serve.limits import ServerLimits
from cwm_serve.schemas import ActionInfo, ComponentInfo, LimitInfo, ModelInfo


class Picture(NamedTuple):
    """A picture of an observation: a PNG file, or text."""

    media_type: str
    content: bytes


class Artist:
    """Draws observations, always in the same thread, because drawing libraries require that.

    Args:
        make: Creates the painter.
    """

    def __init__(self, make: Callable[[], Painter]) -> None:
        self._thread = ThreadPoolExecutor(1, "cwm-serve-pictures")
        self._painter = self._thread.submit(make).result()

    def kind_of(self, observation: Any) -> Literal["image", "text"] | None:
        """Return the kind of the pictures: image, text, or None if there are none."""
        seen: Appearance = self._thread.submit(self._painter.paint, observation).result()
        if seen.is_empty:
            return None
        return "text" if seen.picture is None else "image"

    async def draw(self, observation: Any) -> Picture | None:
        """Return the picture of an observation, None if it cannot be drawn."""
        loop = asyncio.get_running_loop()
        seen = await loop.run_in_executor(self._thread, self._painter.paint, observation)
        if seen.picture is not None:
            return Picture("image/png", encode_png(seen.picture))
        return Picture("text/plain; charset=utf-8", seen.text.encode()) if seen.text else None

    def close(self) -> None:
        """Close the painter and end its thread."""
        self._thread.submit(self._painter.close)
        self._thread.shutdown()


def encode_png(picture: np.ndarray) -> bytes:
    """Return a picture (height, width, 3) of bytes as a PNG file."""
    height, width, _ = picture.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, -1)], axis=1)

    def chunk(name: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, true colour
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 3)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in parts)


@dataclass(frozen=True)
class ServedWorld:
    """A world model with its description, starts, engine and pictures.

    Args:
        info: The description for clients.
        observation_space: The observations.
        action_space: The actions.
        starts: Recorded initial observations.
        max_steps: The step limit of an episode.
        engine: Steps the model.
        artist: Draws observations.
    """

    info: ModelInfo
    observation_space: Space
    action_space: Space
    starts: Sequence[Any]
    max_steps: int
    engine: Engine
    artist: Artist

    def start(self, seed: int) -> Any:
        """Return the recorded initial observation that a seed selects."""
        return self.starts[int(np.random.default_rng(seed).integers(len(self.starts)))]


class _Surroundings(NamedTuple):
    """What the environment adds to a world model: limit, names, and how to draw."""

    rows: Dataset
    max_steps: int
    description: str
    names: tuple[str, ...]
    schema: ObjectSchema | None


@contextmanager
def open_world(
    subject: Subject,
    rows: Dataset,
    limits: ServerLimits,
    bounds: Limits,
    *,
    tools: Sequence[str],
    allow_gap: Sequence[str],
    observer: Observer,
) -> Iterator[ServedWorld]:
    """Start the processes of a world model.

    Args:
        subject: The program or the model.
        rows: Transitions of the environment, whose initial observations begin episodes.
        limits: The limits of the server.
        bounds: The limits of the sandbox for each request.
        tools: Modules that the program may import.
        allow_gap: Missing protections of the sandbox that are accepted.
        observer: Receives notes.
    """
    around = _inspect(subject, rows)
    with ExitStack() as stack:
        if subject.text is not None:
            sandbox = stack.enter_context(
                protected(
                    bounds,
                    tools=sorted({*subject.tools, *tools}),
                    accepted=allow_gap,
                    workers=limits.workers,
                    handlers=[ServedJob.handler],
                    observer=observer,
                )
            )
            model = ProgramModel(subject.text, sandbox, subject.name)
            engine: Engine = ProgramEngine(model, rows, limits.workers)
        else:
            assert subject.model is not None
            engine = TrustedEngine(subject.model, rows)
        stack.callback(engine.close)
        artist = Artist(
            lambda: Painter(subject.spec, subject.env_args, rows.observation_space, around.schema)
        )
        stack.callback(artist.close)
        _, firsts = np.unique(rows.columns["episodes"], return_index=True)
        starts = [rows.row(row).observation for row in firsts.tolist()]
        info = _describe(subject, around, starts, limits, artist, engine)
        yield ServedWorld(
            info,
            rows.observation_space,
            rows.action_space,
            starts,
            around.max_steps,
            engine,
            artist,
        )


def _inspect(subject: Subject, rows: Dataset) -> _Surroundings:
    """Return facts about the environment of a subject."""
    spec = subject.spec
    if not len(rows):
        raise CwmError(f"{subject.name} has no recorded transitions: record some with cwm collect")
    with closing(spec.make(**subject.env_args)) as made:
        limit = step_limit(made)
        if not spec.has_simulator(subject.env_args):
            limit = rows.longest_episode
        description = spec.describe(made)
        names = tuple(spec.action_names(made)) if spec.action_names else ()
        schema = spec.objects(made) if spec.objects else None
        actions = space_of(made.action_space, "actions")
    if not names and actions.kind == "discrete":
        names = documented_actions(description, actions.count)
    return _Surroundings(rows, limit, description, names, schema)


def _describe(
    subject: Subject,
    around: _Surroundings,
    starts: Sequence[Any],
    limits: ServerLimits,
    artist: Artist,
    engine: Engine,
) -> ModelInfo:
    """Return the description of a world model for clients."""
    rows = around.rows
    seen, taken = rows.observation_space, rows.action_space
    components = Components(seen, around.description, around.schema)
    scores: Mapping[str, Any] = {} if subject.run is None else subject.run.model_scores()
    return ModelInfo(
        name=subject.name,
        environment=subject.env,
        kind="program" if subject.model is None else subject.model.kind,
        contract=None if subject.text is None else abilities_of(subject.text).contract,
        memory=engine.keeps != "observation",
        digest=subject.digest,
        version=__version__,
        observation_space=seen.to_json(),
        action_space=taken.to_json(),
        observation_components=[] if seen.is_picture else list(map(_component, components.entries)),
        action_components=[_action_component(taken, each) for each in Components(taken).entries],
        actions=_name_actions(taken, around.names),
        max_steps=around.max_steps,
        starts=len(starts),
        picture=artist.kind_of(starts[0]),
        scores={name: _plain_score(score) for name, score in scores.items()},
        limits=LimitInfo(
            **{name: getattr(limits, name) for name in LimitInfo.model_fields},
        ),
    )


def _component(named: NamedComponent) -> ComponentInfo:
    low, high = (bound if isfinite(bound) else None for bound in (named.low, named.high))
    return ComponentInfo(name=named.name, low=low, high=high)


def _action_component(space: Space, named: NamedComponent) -> ComponentInfo:
    """Return a component of actions; unnamed ones are called "action", with their place."""
    if not space.children:
        named = named._replace(name="action" + named.name.removeprefix("observation"))
    return _component(named)


def _plain_score(score: Any) -> Any:
    """Return a score as plain JSON data; numbers that are not finite become null."""
    if isinstance(score, Mapping):
        return {str(name): _plain_score(value) for name, value in score.items()}
    if isinstance(score, float):
        return score if isfinite(score) else None
    return score


def _name_actions(space: Space, names: Sequence[str]) -> list[ActionInfo]:
    """Return the discrete actions with their names and keys; an empty list for other actions."""
    if space.kind != "discrete":
        return []
    keys = keys_of(space, names)
    assert isinstance(keys, ActionKeys)
    by_action: dict[int, list[str]] = {}
    for key in keys.named:
        action = keys.press(key)
        if action is not None:
            by_action.setdefault(action, []).append(key)
    first = int(space.low[0])
    return [
        ActionInfo(
            action=action,
            name=clean(keys.action_name(action)),
            keys=by_action.get(action, []),
        )
        for action in range(first, first + space.count)
    ]
