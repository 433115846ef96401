"""Decorators that change how operations run, not what they compute.

``Profile`` measures operations, ``Trace`` keeps a timeline of them, ``Capture`` records and replays them;
:mod:`backburn.decorators.sharding` has ``Sharded``, which computes them shard by shard.
"""

from backburn.decorators.capture.recorder import Capture
from backburn.decorators.profile import Cost, Profile
from backburn.decorators.trace import LayerUsage, Trace

__all__ = ["Capture", "Cost", "LayerUsage", "Profile", "Trace"]
