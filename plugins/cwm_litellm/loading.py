"""Import LiteLLM so that it neither speaks nor fetches anything."""

import logging
import os
import threading
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

from cwm_cli.errors import CwmError

OFFLINE = ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS")
LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")

_lock = threading.Lock()


def check() -> None:
    """Say how to install LiteLLM if it is missing, without the time that importing it takes."""
    if not all(map(find_spec, ("litellm", "tenacity"))):
        raise CwmError("language models need an extra: pip install 'cwm-cli[llm]'")


def load() -> Any:
    """Return LiteLLM, imported and quiet.

    It takes three seconds, so it is only loaded when a model is called.
    """
    with _lock:
        return _load()


@cache
def _load() -> Any:
    """Import LiteLLM."""
    for variable in OFFLINE:
        os.environ.setdefault(variable, "True")
    import litellm

    _silence(litellm)
    return litellm


def _silence(litellm: Any) -> None:
    """Keep it from printing over the live view and from fetching tokenizers."""
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_hf_tokenizer_download = True
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
    warnings.filterwarnings("ignore", category=UserWarning, module="pydantic")
