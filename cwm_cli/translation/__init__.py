"""Programs translated to what is fast: tables, plain arithmetic, arrays; each checked first."""
