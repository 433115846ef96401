"""Files of backburn's own: safetensors whose metadata say what they are, of which version, and what is not a tensor."""

from __future__ import annotations

#: The version of the files that this release writes, and the only one that it reads.
FORMAT_VERSION = 4
#: The entry of the metadata, a table in JSON.
KEY = "backburn"
#: Why files of an earlier version are refused.
REASONS = {
    1: "whose weights of linear, bilinear and recurrent layers are transposed and in part named otherwise",
    2: "which has one checksum of all tensors together, and no table of them",
    3: "whose checksums are of another kind",
}
MODEL = "backburn model"
STATE = "backburn state"
WEIGHTS = "backburn weights"
