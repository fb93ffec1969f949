"""An OpenSearch node of our own, for trying hybridr and for its tests."""
