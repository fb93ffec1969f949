"""Staging: a reindex in three stages with files between them, for what is too large for one sitting."""
