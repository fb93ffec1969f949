"""Re-rankers: what orders the best hits again, one file each."""
