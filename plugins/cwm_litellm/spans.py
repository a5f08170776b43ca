"""Spans of OpenTelemetry, one for each request, as LiteLLM's own integration writes them."""

from functools import cache
from importlib.util import find_spec
from typing import Any

from cwm_cli.errors import CwmError

SERVICE = "cwm"
"""What spans are said to come from."""


def check() -> None:
    """Say how to install OpenTelemetry if it is missing."""
    try:
        found = all(map(find_spec, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:
        found = False
    if not found:
        raise CwmError("spans of requests need an extra: pip install 'cwm-cli[otel]'")


@cache
def send(litellm: Any, address: str) -> None:
    """Have all requests of this process sent as spans to a collector, by OTLP over HTTP.

    They say the model, tokens, cost and errors, and nothing of what is asked or answered.
    """
    from litellm.integrations.opentelemetry import OpenTelemetry, OpenTelemetryConfig

    told = OpenTelemetryConfig(exporter="otlp_http", endpoint=address, service_name=SERVICE)
    sender = OpenTelemetry(config=told)
    sender.message_logging = False
    litellm.callbacks.append(sender)
