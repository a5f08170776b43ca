"""Formulas for rewards, and the cases in which they do not hold alone; `reward` is the face."""
