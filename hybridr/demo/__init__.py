"""The demo: all of hybridr on one machine, with a corpus that needs no download."""
