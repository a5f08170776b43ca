"""Translation of a program into a faster model: a table, plain arithmetic or NumPy code.

`forms.find_fastest_form` takes a program and returns the fastest model that agrees with it on real
rows. Notes on the program explain why there is no faster form.

- A program with few states becomes a table (`tables`).
- Any other program is executed symbolically. `instrumentation` marks the regions of its text that
  may fork. `regions` and `paths` run a region once for each outcome of its decisions and merge the
  results. `numbers` and `functions` provide symbolic numbers, arrays and NumPy functions.
- `states`, `actions` and `expressions` reduce a step to one expression for each output.
- `emission` writes these expressions as plain Python (`scalar`) and as NumPy code for many states
  at a time (`forms`).

If exact equality with the program is not certain, the translation raises `Unsupported`, or the
model asks the program itself for the states in question.
"""
