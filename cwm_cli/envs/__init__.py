"""Environments: the interface of plugins, saving and restoring, episodes and films."""
