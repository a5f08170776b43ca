"""Runs on object stores: `--run s3://bucket/runs/one`, through fsspec."""

from collections.abc import Iterator, Mapping

from cwm_cli import hookimpl


class Schemes(Mapping[str, str]):
    """All URL schemes, of which the usual ones are listed; fsspec refuses those it does not know.

    fsspec learns schemes from other packages, and may not be installed: it is imported only when a
    URL is used.
    """

    gives_way = True  # to plugins with an own storage for a scheme

    listed = ("gs", "memory", "s3")

    def __getitem__(self, scheme: str) -> str:
        return "cwm_remote.storage:ObjectStorage"

    def __contains__(self, scheme: object) -> bool:
        return isinstance(scheme, str)

    def __iter__(self) -> Iterator[str]:
        return iter(self.listed)

    def __len__(self) -> int:
        return len(self.listed)


@hookimpl
def cwm_storages() -> Mapping[str, str]:
    """Offer object stores for every URL scheme that fsspec knows."""
    return Schemes()


@hookimpl
def cwm_test_examples() -> Mapping[str, str]:
    """Offer examples for the conformance tests: the same class serves every scheme."""
    return {f"storage {scheme}": "cwm_remote.examples:storage" for scheme in Schemes.listed}
