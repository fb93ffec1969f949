"""Search: text in, ranked hits out."""
