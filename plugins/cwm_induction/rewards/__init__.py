"""Rewards: formulas, and the cases in which others are paid."""
