"""Tests that trained world models and agents have to pass, and their examples."""
