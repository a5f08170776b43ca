"""Send a span of OpenTelemetry for each request, by LiteLLM's own integration."""

from functools import cache
from importlib.util import find_spec
from typing import Any

from cwm_cli.errors import CwmError, install_command


def check() -> None:
    """Raise for `-o spans=` if the extra `otel` is missing."""
    try:
        found = all(map(find_spec, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:
        found = False
    if not found:
        raise CwmError(f"spans of requests need an extra: {install_command('cwm-cli[otel]')}")


@cache
def send(litellm: Any, address: str) -> None:
    """Send a span of each request of this process to a collector, by OTLP over HTTP.

    A span holds the model, tokens, cost and errors, but no prompts and answers.

    Raises:
        CwmError: This version of LiteLLM has another integration.
    """
    try:
        from litellm.integrations.opentelemetry import OpenTelemetry, OpenTelemetryConfig

        service = "cwm"  # the `service.name` of the spans
        settings = OpenTelemetryConfig(exporter="otlp_http", endpoint=address, service_name=service)
        sender = OpenTelemetry(config=settings)
    except (ImportError, TypeError):
        raise CwmError(
            "this version of LiteLLM sends no spans: leave out -o spans, or install the versions "
            "of constraints.txt"
        ) from None
    sender.message_logging = False
    litellm.callbacks.append(sender)
