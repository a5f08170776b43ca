"""Actors of the learning agent: one module per kind of environment."""
