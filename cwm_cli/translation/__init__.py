"""Translation of a program into a faster model: a table, plain arithmetic or NumPy code.

`forms.find_fastest_form` takes a program and returns the fastest model that agrees with it on real
rows. Notes on the program explain why there is no faster form.

- A program with few states becomes a table (`models`).
- Any other program is executed symbolically. `instrumentation` marks the regions of its text that
  may fork. `regions` and `paths` run a region once for each outcome of its decisions and merge the
  results. `numbers` provides symbolic numbers and arrays, and `modules` replaces NumPy, `math` and
  the built-in functions (NumPy's own functions are in `functions`).
- `states` and `expressions` reduce a step to one expression for each output.
- `emission` writes these expressions as plain Python and as NumPy code for many states at a time.
- `models` runs tables and emitted code; `forms` chooses the fastest model and verifies it.

If exact equality with the program is not certain, the translation raises `Unsupported`, or the
model asks the program itself for the states in question.
"""
