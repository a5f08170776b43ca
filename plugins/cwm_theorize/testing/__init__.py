"""Conformance tests of experimenters, and examples for the tests of `cwm_cli.testing`."""
