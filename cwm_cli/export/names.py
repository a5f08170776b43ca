"""What an exported environment is called."""

import re
from typing import NamedTuple

NAMESPACE = "WorldModel"


class Names(NamedTuple):
    """The id of an exported environment, and the name of its module and distribution."""

    id: str
    module: str


def names_of(environment: str) -> Names:
    """Name the world model of an environment; the module that registers that is left out."""
    bare = environment.rpartition(":")[2]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", bare).strip("-.") or "Environment"
    words = re.sub(r"[^a-z0-9]+", "_", bare.lower()).strip("_")
    first = "environment" if words[:1].isdigit() else ""
    module = "_".join(filter(None, (first, words, "world_model")))
    return Names(f"{NAMESPACE}/{name}", module)
