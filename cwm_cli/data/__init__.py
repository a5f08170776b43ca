"""Spaces, datasets of transitions, and safe reading of files."""
