"""Tests that whatever plugs into `cwm` has to pass, built in or a stranger's.

`pytest --pyargs cwm_cli.testing` runs them on everything that is installed, and
`pytest --pyargs cwm_cli.testing -k my_package` on what one package provides. A class that cannot
be made without arguments says how in a classmethod `example(material)`.
"""
