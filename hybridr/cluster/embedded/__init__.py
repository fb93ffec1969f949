"""The embedded node: an OpenSearch on this machine, for trying hybridr and for its tests."""
