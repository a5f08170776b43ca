"""Import LiteLLM on first use, quiet and offline.

Importing it takes two to three seconds, so a command that calls no model does not import it.
"""

import logging
import os
import sys
import threading
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

from cwm_cli.errors import CwmError, install_command

SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # use the price list in the package
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "REPEATED_STREAMING_CHUNK_LIMIT": str(sys.maxsize),  # a table of zeros is no failure
}
"""Environment variables that LiteLLM reads when it is imported."""

_lock = threading.Lock()


def check(missing_key: str | None = None) -> None:
    """Raise an error if the extra `llm` is missing. Import nothing.

    Args:
        missing_key: The environment variable that the user has to set as well, if any.

    Raises:
        CwmError: The extra is not installed.
    """
    if not all(map(find_spec, ("litellm", "tenacity"))):
        key = f", then export {missing_key}=KEY" if missing_key else ""
        raise CwmError(f"language models need an extra: {install_command('cwm-cli[llm]')}{key}")


def load() -> Any:
    """Return the module `litellm`. Threads may call this concurrently."""
    with _lock:
        return _load()


@cache
def _load() -> Any:
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    # of its own models of pydantic, which no user can change
    with warnings.catch_warnings(action="ignore"):
        import litellm

        from cwm_litellm.transport import install
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_hf_tokenizer_download = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
    warnings.filterwarnings("ignore", category=UserWarning, module="pydantic")
    install(litellm)
    return litellm
