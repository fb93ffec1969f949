"""The cluster: connection, reading, writing, legs of a search and the index's record; knows no encoder."""
