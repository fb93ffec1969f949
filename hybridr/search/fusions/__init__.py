"""Fusions: how the legs of a hybrid search become one ranking, one file each."""
