"""backburn's files: safetensors whose metadata holds the kind, the version and all data other than tensors."""

from __future__ import annotations

#: The version of the files that this release writes, and the only one that it reads.
FORMAT_VERSION = 4
#: The metadata entry, a JSON table.
KEY = "backburn"
#: Why files of an earlier version are refused.
REASONS = {
    1: "whose weights of linear, bilinear and recurrent layers are transposed and partly have other names",
    2: "which has one checksum of all tensors together, and no table of them",
    3: "whose checksums are of another kind",
}
MODEL = "backburn model"
STATE = "backburn state"
WEIGHTS = "backburn weights"
