"""Playing in a world by keys, beside what is true: games, what is seen of them, films of it."""
