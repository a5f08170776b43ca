"""Datasets that ship: `cwm_cli.collection.default_dataset` finds them."""
