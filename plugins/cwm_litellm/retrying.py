"""When to ask again, and for how long."""

from dataclasses import dataclass

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    wait_exponential,
    wait_random,
)

from cwm_litellm.failures import Kind, classify, is_transient, retry_after

UNREACHABLE_RETRIES = 2
"""Nobody listens: asking again rarely helps, so the user soon hears of it."""


@dataclass(frozen=True)
class Patience:
    """How often and after what pauses a request is repeated."""

    retries: int
    backoff: float
    longest_wait: float

    def attempts(self) -> Retrying:
        """Return the loop around one request."""
        return Retrying(
            retry=retry_if_exception(is_transient),
            wait=self.pause,
            stop=self.exhausted,
            reraise=True,
        )

    def pause(self, state: RetryCallState) -> float:
        """Return the seconds to wait: what the server asked for, else exponentially more.

        A random part spreads parallel requests out.
        """
        asked = retry_after(_error(state))
        least = wait_exponential(self.backoff)(state) if asked is None else asked
        return min(least + wait_random(0, self.backoff)(state), self.longest_wait)

    def exhausted(self, state: RetryCallState) -> bool:
        """Tell whether this attempt was the last."""
        unreachable = classify(_error(state)) is Kind.UNREACHABLE
        retries = min(self.retries, UNREACHABLE_RETRIES) if unreachable else self.retries
        return state.attempt_number > retries


def _error(state: RetryCallState) -> BaseException:
    """Return what the attempt failed with."""
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "only failures are retried"
    return error
