"""Rows and the spaces of their values: what everything else is about."""
