"""Retry failed requests, and keep all requests of a provider within its rate limit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openai import OpenAIError  # the base class of LiteLLM's errors
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    wait_exponential,
    wait_random,
)

from cwm_cli.search.contracts import unheard
from cwm_cli.search.spending import RateLimit
from cwm_litellm.failures import Kind, classify, is_transient, retry_after
from cwm_litellm.responses import tokens_of


@dataclass(frozen=True)
class Patience:
    """How often a request is repeated, and after which pauses.

    Args:
        retries: Attempts after the first.
        backoff: Seconds before the second attempt, doubled before each further one.
        longest_wait: Upper limit of a pause in seconds.
    """

    retries: int
    backoff: float
    longest_wait: float

    def attempts(self, before_pause: Callable[[RetryCallState], None] | None = None) -> Retrying:
        """Return the retry loop around one request; `before_pause` is called before each pause."""
        return Retrying(
            retry=retry_if_exception(is_transient),
            wait=self.pause,
            stop=self.exhausted,
            before_sleep=before_pause,
            reraise=True,
        )

    def in_turn(
        self,
        rate: RateLimit,
        ask: Callable[[], Any],
        expected: Callable[[], int],
        *,
        tell: Callable[[str], None] = unheard,
        log: Callable[[str], None] = unheard,
    ) -> Any:
        """Send a request as soon as the rate limit of its provider allows; return the response.

        All processes share the rate limit. All pause if the provider reports that the limit is
        exceeded, or asks for a pause.

        Args:
            rate: The rate limit.
            ask: Sends the request.
            expected: Estimates its tokens, which count until the response states their number.
            tell: Shows the user that the request waits.
            log: Writes to the log of the run.
        """
        tokens = expected() if rate.tokens_per_minute else 0
        seconds = rate.wait(tokens, tell)
        min_logged_seconds = 0.1  # shorter waits for a turn are not logged
        if seconds >= min_logged_seconds:
            log(f"waited {seconds:.1f} s for the shared rate limit of {rate.provider}")
        try:
            response = ask()
        except (OpenAIError, TimeoutError) as error:
            is_limited, pause = classify(error) is Kind.RATE_LIMIT, retry_after(error)
            if is_limited:
                rate.correct(-tokens)  # a rejected request used none; the next attempt counts
            if is_limited or pause is not None:
                rate.pause(min(self.backoff if pause is None else pause, self.longest_wait))
            raise
        took = tokens_of(response)
        rate.correct(sum(took) - tokens if took else 0)
        return response

    def pause(self, state: RetryCallState) -> float:
        """Return the seconds until the next attempt.

        The server's own request has priority; without one, pauses grow exponentially. A random
        part spreads parallel requests.
        """
        asked = retry_after(error_of(state))
        least = wait_exponential(self.backoff)(state) if asked is None else asked
        return min(least + wait_random(0, self.backoff)(state), self.longest_wait)

    def exhausted(self, state: RetryCallState) -> bool:
        """Return whether this attempt was the last."""
        # upper limits for failures that retries rarely cure: a server that does not run, and late
        # answers, which cost money each time
        max_retries = {Kind.UNREACHABLE: 2, Kind.TIMEOUT: 2}
        most = max_retries.get(classify(error_of(state)), self.retries)
        return state.attempt_number > min(self.retries, most)


def error_of(state: RetryCallState) -> BaseException:
    """Return the error of a failed attempt."""
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "only failures are retried"
    return error
