"""A tiny language model that reads rules and predicts in words, for want of a large one."""
