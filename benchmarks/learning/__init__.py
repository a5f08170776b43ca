"""How few steps `cwm learn` needs, beside tuned deep and tabular reinforcement learning."""
