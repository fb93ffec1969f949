"""Local files: what hybridr reads and writes beside a cluster."""
