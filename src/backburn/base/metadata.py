"""Keys in files that others write: those that are known, and a warning about the rest.

Each reader has lists of the keys that it reads, of those that change nothing, and of those that it refuses.
``tools/compare_metadata_keys.py`` compares the lists with the libraries that write the files.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from backburn.base.foreign import quoted


class MetadataWarning(UserWarning):
    """A file has keys that its reader does not know, and which may change what is computed."""


def warn_of(where: str, keys: Iterable[str], stacklevel: int = 3) -> None:
    """Warn about keys that are on no list."""
    unknown = sorted(keys)
    if unknown:
        words = ", ".join(quoted(key, 60) for key in unknown[:20]) + (" and others" if len(unknown) > 20 else "")
        warnings.warn(
            f"{where}: {words}: not known here, and ignored; if it changes what the model computes, results differ "
            f"from those of the library that wrote it",
            MetadataWarning,
            stacklevel=stacklevel,
        )
