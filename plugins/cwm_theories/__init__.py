"""Rules in words: a grammar that proposes them, their exact reading, and searches among them."""
