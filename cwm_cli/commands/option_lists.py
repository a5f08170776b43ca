"""The options that `-o KEY=VALUE` takes, by strategy, backend, planner and other parts."""

from collections.abc import Iterator
from typing import NamedTuple

from cwm_cli import registry
from cwm_cli.commands.choices import SearchOptions
from cwm_cli.commands.transfer import TransferOptions
from cwm_cli.errors import UnknownNameError
from cwm_cli.evaluation.support import Doubt
from cwm_cli.registry import Owner
from cwm_cli.sandbox import Limits


class NamedOwner(NamedTuple):
    """A part with options, by kind and name."""

    kind: str
    name: str
    owner: Owner


def option_owners(name: str | None = None, kind: str | None = None) -> Iterator[NamedOwner]:
    """Yield the parts with options, of one name or one kind if given.

    Args:
        name: A name, or `package:name`. If several plugins provide the name, yield all parts.
        kind: An extension point, or a group of options.

    Raises:
        UnknownNameError: if no part has the name.
    """
    points = registry.extension_points().items()
    kinds = [each for each, point in points if point.has_options and kind in (None, each)]
    known = [(each, one) for each in kinds for one in registry.names(each)]
    groups = {
        "planning": Doubt,
        "sandbox": Limits,
        "search": SearchOptions,
        "transfer": TransferOptions,
        **registry.option_groups(),
    }
    known += [(group, group) for group in groups if kind in (None, group)]
    chosen = [pair for pair in known if name in (None, pair[1], pair[1].rpartition(":")[2])]
    if name is not None and not chosen:
        chosen = [(each, name) for each in kinds if registry.is_known(each, name)]
    if name is not None and not chosen:
        raise UnknownNameError("name", name, [*groups, *(one for _, one in known)])
    for each, one in chosen:
        factory = groups[one] if each in groups else registry.find(each, one)
        yield NamedOwner(each, one, Owner(each, factory))
