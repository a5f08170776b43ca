"""Who answers the questions of a search: a language model, or the backend that needs none."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cwm_cli.errors import CwmError
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from cwm_cli.evaluation import Score

OFFLINE = "induction"
HINT = (
    f"no model named: the offline backend {OFFLINE!r} writes the program from data alone; "
    "--model PROVIDER/NAME asks a language model"
)

POOR = 0.9
"""Share of what lies above the floor below which a result is poor."""


def answering(backend: str | None, models: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Choose the backend, and the models it is to use; one without a name where it uses none."""
    named = tuple(dict.fromkeys(filter(None, models)))
    if backend in (None, "litellm") and not named:
        named = tuple(filter(None, [os.environ.get("CWM_MODEL")]))
    if backend == "litellm" and not named:
        raise CwmError("the backend 'litellm' needs a model: add --model PROVIDER/NAME")
    if not (backend or named):
        complain(HINT, kind="Note")
    return backend or ("litellm" if named else OFFLINE), named or ("",)


def advice(backend: str, score: "Score | None") -> str | None:
    """Say what might help where the offline backend found little."""
    if backend != OFFLINE or score is None:
        return None
    above = score.accuracy if score.normalised is None else score.normalised
    if above >= POOR:
        return None
    return (
        "a language model may find more than data alone tell: "
        "--model PROVIDER/NAME, such as --model openai/gpt-5 (needs cwm-cli[llm])"
    )
