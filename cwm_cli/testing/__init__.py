"""Tests that every plugin of `cwm` must pass.

`pytest --pyargs cwm_cli.testing` tests all installed plugins, and
`pytest --pyargs cwm_cli.testing -k my_package` tests the plugins of one package. The hook
`cwm_test_examples` returns examples of classes that need arguments.
"""
