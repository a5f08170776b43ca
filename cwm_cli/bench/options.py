"""The options of a benchmark, each given to the strategies that have it."""

from collections.abc import Iterator

from cwm_cli.agents.synthesizing import check_flags, owners_of
from cwm_cli.bench.configuration import Access, Configuration
from cwm_cli.errors import UnknownNameError
from cwm_cli.registry import find, read_options


def check(configuration: Configuration, access: Access) -> None:
    """Refuse at once what every search would refuse: names, and options that nobody has."""
    check_flags(configuration.backend, flags(configuration, access))
    for strategy in configuration.strategies:
        find("strategy", strategy)
    for pair in configuration.options:
        takers = [s for s in configuration.strategies if _takes(configuration, s, pair)]
        if not takers:
            read_options([pair], owners_of(configuration.strategies[0], configuration.backend))


def options_of(configuration: Configuration, strategy: str) -> list[str]:
    """Return the options that are for a strategy, or for all."""
    return [pair for pair in configuration.options if _takes(configuration, strategy, pair)]


def flags(configuration: Configuration, access: Access) -> dict[str, object]:
    """Return the options of the backend that have flags of their own."""
    return dict(_flags(configuration, access))


def _flags(configuration: Configuration, access: Access) -> Iterator[tuple[str, object]]:
    if access.api_base is not None:
        yield "api_base", access.api_base
    if configuration.temperature is not None:
        yield "temperature", configuration.temperature


def _takes(configuration: Configuration, strategy: str, pair: str) -> bool:
    """Whether an option is for a strategy or for all; a value that is refused raises."""
    try:
        read_options([pair], owners_of(strategy, configuration.backend))
    except UnknownNameError:
        return False
    return True
