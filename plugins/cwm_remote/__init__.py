"""Runs on object stores: `--run s3://bucket/runs/one`, through fsspec."""

from collections.abc import Mapping

from cwm_cli import hookimpl

SCHEMES = ("gs", "memory", "s3")
"""The schemes that `cwm plugins` lists."""


class EveryScheme(dict[str, str]):
    """A mapping that contains every URL scheme, since other packages add schemes to fsspec.

    fsspec refuses unknown schemes. It is imported only when a URL is used.
    """

    gives_way = True  # to plugins with their own storage for a scheme

    def __contains__(self, scheme: object) -> bool:
        return True

    def __missing__(self, scheme: str) -> str:
        return self["s3"]


@hookimpl
def cwm_storages() -> Mapping[str, str]:
    """Add object stores for every URL scheme that fsspec knows."""
    return EveryScheme.fromkeys(SCHEMES, "cwm_remote.storage:ObjectStorage")


@hookimpl
def cwm_test_examples() -> Mapping[str, str]:
    """Return examples for the conformance tests; the same class handles every scheme."""
    return {f"storage {scheme}": "cwm_remote.examples:storage" for scheme in SCHEMES}
