"""The embedded node: an OpenSearch server started on this machine, for trying hybridr and for its tests."""
