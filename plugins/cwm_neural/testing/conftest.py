"""Fixtures of `cwm_cli.testing`."""

from cwm_cli.testing.conftest import material, pytest_configure, recorded, sandbox

__all__ = ["material", "pytest_configure", "recorded", "sandbox"]
