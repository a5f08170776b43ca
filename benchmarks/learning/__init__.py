"""Environment steps that `cwm learn` and tuned reinforcement learning need to play well."""
