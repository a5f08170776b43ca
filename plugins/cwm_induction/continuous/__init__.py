"""Programs of equations for observations of real numbers; `inducing` is where to begin.

`samples`, `variables` and `terms` say what is seen; `regression`, `inner_constants` and `rules`
find one formula or one rule; `chains`, `regimes` and `ending` explain variables and ends with
them; `dynamics` tries one family of explanations after another.
"""
