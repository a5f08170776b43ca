"""Who proposes rules and who weighs them, and the words for an environment, as users name them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cwm_cli.agents.synthesizing import MODEL_VARIABLE
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.text_view import TextView
from cwm_cli.errors import CwmError
from cwm_cli.registry import default, find, names
from cwm_cli.search.contracts import Backend

if TYPE_CHECKING:
    import gymnasium as gym


class Answers(NamedTuple):
    """Who answers: a backend by name, and the model that it is to use, "" where it uses none."""

    backend: str
    model: str = ""

    @property
    def owner(self) -> Any:
        """The class of the backend, whose options can be set."""
        return find("backend", self.backend)

    def __str__(self) -> str:
        return self.model or self.backend

    def made(self, options: Mapping[str, Any]) -> Backend:
        """Make the backend."""
        backend: Backend = self.owner(model=self.model, **options)
        return backend


def answers(
    role: Literal["theorist", "statistician"], named: str | None, model: str | None = None
) -> Answers:
    """Choose who answers in a role: a backend by its name, or PROVIDER/NAME for a language model.

    Where nothing is named it is the `model`, or that of `$CWM_MODEL`, or else what needs none.
    """
    if named is not None and "/" in named:
        return Answers(default("model"), named)
    if named is not None:
        return Answers(named, model or "" if find("backend", named).needs_model else "")
    model = model or os.environ.get(MODEL_VARIABLE, "")
    return Answers(default("model"), model) if model else Answers(default(role))


def view_of(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> TextView:
    """Return the words for a made environment, or say which environments have any."""
    if spec.text is None:
        having = [name for name in names("environment") if find("environment", name)().text]
        raise CwmError(
            f"nothing puts what happens in {spec.id} into words: choose {', '.join(having)}"
        )
    return spec.text(env)
