"""Conformance tests for plugins, both built-in and external ones.

`pytest --pyargs cwm_cli.testing` tests all installed plugins, and `pytest --pyargs cwm_cli.testing
-k my_package` the plugins of one package. The hook `cwm_test_examples` returns examples of classes
that need arguments.
"""
