"""One module per verb; each has `register(app)`."""
