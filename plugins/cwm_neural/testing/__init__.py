"""Conformance tests of trainers and agents, and examples."""
