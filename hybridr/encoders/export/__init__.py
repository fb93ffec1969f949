"""Export: encoder folders that Hugging Face, sentence-transformers and ONNX Runtime open."""
