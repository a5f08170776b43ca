"""Kinds of world models, from the same transitions: how right, how far, what for, how large."""
