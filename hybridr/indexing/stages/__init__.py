"""Stages: a reindex in three parts with files between them, for what is too large for one sitting."""
