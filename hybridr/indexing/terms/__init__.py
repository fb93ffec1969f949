"""Terms: how an index reads texts as words, and what its encoder makes of these words."""
