"""Who answers the questions of a search: a language model, or the backend that needs none."""

import os
from collections.abc import Sequence

from cwm_cli.cli.boundary import complain
from cwm_cli.errors import CwmError

OFFLINE = "induction"
HINT = (
    f"no model named: the offline backend {OFFLINE!r} writes the program from data alone; "
    "--model PROVIDER/NAME asks a language model"
)


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
