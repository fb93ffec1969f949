"""A further representation in a file of its own: a document's words, weighed by the states of tokens."""

from __future__ import annotations

FIELD = "hybridr_terms"
TERM_WEIGHTS = '''
"""Term weights: what sparse retrieval keeps of a document."""

import json

import numpy as np

from hybridr.indexing.representations import Representation

FIELD = "hybridr_terms"


class TermWeights(Representation):
    """A weight for each word, the larger the less its state is that of most words."""

    name = "throwaway"
    help = "a weight for each word"
    compared = "term weights"
    setting = "representations"
    shows = False

    @classmethod
    def fields(cls, named):
        return (FIELD,)

    def mapping(self, version):
        return {FIELD: {"type": "rank_features"}}

    def fitted(self, sample):
        texts = [text for text in sample(50) if text]
        readings = self.encoder.read_documents(texts, max_tokens=self.settings.max_tokens)
        states = np.concatenate([reading.states for reading in readings])
        return json.dumps([round(float(value), 3) for value in states.mean(axis=0)])

    def keep(self, text, reading):
        usual = np.array(json.loads(self.state or "[0]"), dtype=np.float32)
        apart = np.linalg.norm(reading.states - usual, axis=1)
        words = [text[start:end].lower() for start, end in reading.spans]
        return {word: round(float(one), 3) for word, one in zip(words, apart) if word.isalnum()}

    def values(self, encoded):
        return {FIELD: {word: weight for part in encoded.kept[self.name] for word, weight in part.items()}}

    def bytes_each(self, sample):
        texts = sample(50)
        return 8.0 * sum(len(text.split()) for text in texts) / max(1, len(texts))
'''
