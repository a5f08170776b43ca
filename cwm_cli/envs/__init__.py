"""Environments: what a plugin provides, saving and restoring, episodes and their films."""
