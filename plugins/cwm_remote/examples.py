"""An example of the object store, for the conformance tests."""

import pytest

from cwm_cli.testing.conftest import Material
from cwm_remote.storage import ObjectStorage


def storage(material: Material) -> ObjectStorage:
    """Return a run in memory, since other stores need a server."""
    pytest.importorskip("fsspec")
    return ObjectStorage(material.folder / "copy", f"memory://{material.folder.name}/run")
