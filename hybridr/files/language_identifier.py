"""The language identifier of py3langid, with its model unpacked in the cache.

Unpacking the model takes half a second, too long for every search. The unpacked model takes 60 MB on disk, of
which a search reads only the few pages that its query needs.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from ..errors import DownloadError
from .local import cache_folder, child_path
from .staging import staged_folder

MIN_CONFIDENCE = 0.5
"""Below this confidence the language counts as unknown, since py3langid mistakes product names for German."""

ARRAYS = ("weights", "prior", "labels", "moves", "rows", "features")


@cache
def identifier() -> Any:
    """Return py3langid's identifier, limited to languages with a two-letter code.

    The others are mostly dialects that it confuses with large languages, such as Wu with Chinese. If the
    cache cannot be written, the model is unpacked in memory only.
    """
    from py3langid import __version__
    from py3langid.langid import LanguageIdentifier

    folder = child_path(cache_folder(), f"languages-{__version__}")
    try:
        model = {name: np.load(child_path(folder, f"{name}.npy"), mmap_mode="r") for name in ARRAYS}
    except (OSError, ValueError):  # missing or damaged
        model = unpacked_model()
        with suppress(DownloadError), staged_folder(folder) as new_folder:
            for name, array in model.items():
                np.save(child_path(new_folder, f"{name}.npy"), array)
    return LanguageIdentifier(
        model["weights"],
        model["prior"],
        model["labels"].tolist(),
        memoryview(model["moves"]),
        model["features"].tolist(),
        tk_row=model["rows"].tolist(),
        norm_probs=True,
        min_confidence=MIN_CONFIDENCE,
    )


def unpacked_model() -> dict[str, Any]:
    """Return the arrays of py3langid's model, with the weights as (features, languages)."""
    from py3langid.langid import MODEL_DIR, MODEL_FILE
    from py3langid.modelio import load_model

    weights, prior, labels, moves, rows, features = load_model(MODEL_DIR / MODEL_FILE)
    columns = [column for column, label in enumerate(labels) if len(label) == 2]
    arrays = (
        np.ascontiguousarray(weights[:, columns]),
        prior[columns],
        np.array([labels[column] for column in columns]),
        np.asarray(moves),
        np.asarray(rows),
        np.array(features, dtype=np.int32),
    )
    return dict(zip(ARRAYS, arrays, strict=True))
