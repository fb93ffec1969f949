"""Indexing: documents to vectors in an index, verified, resumable, and undone.

`representations/` says what an encoder leaves in a document, `targets/` where it goes, `runners/` who works
on it. `terms/` is what the encoder makes of the words of an index; `stages/` does a reindex in three parts.
"""
