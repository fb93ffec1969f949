"""Work: one job on an index that several processes share."""
