"""Local files: reading, writing, downloading, and where hybridr keeps them."""
