"""Encoders: from text to vectors.

Folders of models, tokenizers, quantisation, the registry and the packaged models. They run by ONNX Runtime
and know no cluster; `export/` writes encoder folders.
"""
