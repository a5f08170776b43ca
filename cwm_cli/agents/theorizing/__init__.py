"""Rules in words, weighed by likelihood: what `cwm theorize` and `cwm score` do.

`theorize` collects, weighs and proposes, phase by phase, and `runs` is the folder in which all of
it is kept; `experimenters` choose what is collected; `scoring` ranks what rules say of rows.
"""
