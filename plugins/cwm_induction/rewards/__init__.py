"""Formulas and rules for rewards; the entry point is `reward.reward_of`."""
