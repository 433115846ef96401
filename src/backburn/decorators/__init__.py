"""Decorators that leave numbers as they are: ``Profile`` measures operations, ``Capture`` records and replays them."""

from backburn.decorators.capture.recorder import Capture
from backburn.decorators.profile import Cost, Profile

__all__ = ["Capture", "Cost", "Profile"]
