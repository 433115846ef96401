"""Models sharded over a mesh, in one process or several: meshes, placements, plans and batches."""

from typing import TYPE_CHECKING

from backburn.decorators.sharding import created_in_parts
from backburn.distributed import plans
from backburn.distributed.dry_runs import DryRun, dry_run
from backburn.distributed.meshes import Mesh, mesh
from backburn.distributed.placing import place, place_state
from backburn.distributed.plans import Plan, placement
from backburn.distributed.rows import Cutting, Rows
from backburn.hints import lookups

__all__ = [
    "Cutting", "DryRun", "Mesh", "Plan", "Rows", "created_in_parts", "dry_run", "mesh", "place", "place_state",
    "placement", "plans",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.distributed", __all__)
