"""Programs translated to what is fast: tables, plain arithmetic, arrays; each checked first.

A program goes in; out comes the fastest model that agrees with it on real rows,
and notes on why there is no faster one. A program with few states becomes a
table (`tables`). Of another one the text is run on symbols (`rewriting`,
`regions`, `paths`, `numbers`, `functions`): it forks where a decision depends on
them and rejoins, until what a step computes is one expression per output
(`states`, `actions`, `expressions`), which is then written as plain Python and
for numpy (`emission`, `scalar`, `lanes`). What is not known to be just what the
program does is refused, for a program as a whole or for the state in question,
where the program itself then answers.
"""

from cwm_cli.translation.forms import Form, Rows, Source, fastest

__all__ = ["Form", "Rows", "Source", "fastest"]
