"""Tests that every learning strategy has to pass."""
