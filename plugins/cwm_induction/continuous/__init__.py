"""Programs for real numbers: equations, regimes, rules, and how they are chosen."""
