"""A program that plans calls with the real cuDNN for an H200, without one. Reads pickled kinds, prints their plans.

The device's description has NVIDIA's public figures in cuDNN's JSON format.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import pickle
import sys
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).parents[1] / "stand_in"
H200 = {
    "cudaDeviceId": 0, "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "isTccDriver": 0,
    "l2CacheSize": 62914560, "maxBlockSize": [1024, 1024, 64], "maxCtasPerSM": 32,
    "maxGridSize": [2147483647, 65535, 65535], "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
    "memClockRateKHz": 3201000, "memoryBusWidth": 6144, "multiProcessorCount": 132, "pciDeviceId": 0,
    "regsPerBlock": 65536, "reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": 1980000, "supportCoopLaunch": 1,
    "totalGlobalMem": 150754820096, "warpSize": 32,
}  # fmt: skip


def cublaslt() -> list[Path]:
    """The paths of cuBLASLt, without which cuDNN aborts the process."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or () if spec is not None else ()
    return sorted(path for folder in folders for path in Path(folder).glob("*/lib/libcublasLt.so.1*"))


def missing() -> str | None:
    """Why cuDNN cannot plan; None if it can."""
    if importlib.util.find_spec("cudnn") is None:
        return "the frontend of cuDNN is not installed"
    if not cublaslt():
        return "cuBLASLt, which cuDNN needs, is not installed"
    return None


def _workspace(cudnn: Any, kind: Any) -> Any:
    """The bytes of a plan's workspace, or why there is no plan."""
    plan = cudnn.Plan(kind)
    return cudnn.REFUSED.get(kind, plan.workspace)


def main() -> dict[str, Any]:
    """For each kind of call, the bytes of its workspace or why there is no plan, and the error of its graph, if any."""
    if importlib.util.find_spec("cupy") is None:
        sys.path.append(str(STAND_IN))
    if reason := missing():
        return {"skipped": reason}
    ctypes.CDLL(str(cublaslt()[0]))
    import cudnn as frontend  # type: ignore[import-not-found,import-untyped,unused-ignore]

    from backburn_cupy import cudnn

    try:
        version = frontend.backend_version()
        device = frontend.create_device_properties(json.dumps(H200))
    except RuntimeError as error:
        return {"skipped": f"this cuDNN describes no device without a driver ({str(error).splitlines()[0]})"}
    where = {"device_property": device, "sm_version": 90}
    vars(cudnn).update(found=lambda: cudnn.Frontend(frontend, ""), target=lambda device: where)
    plans, described = [], []
    for kind in pickle.load(sys.stdin.buffer):
        try:
            plans.append(_workspace(cudnn, kind))
        except cudnn.CUDNNError as error:
            plans.append(str(error))
        try:
            cudnn.describe_graph(kind, where)
            described.append("")
        except (RuntimeError, frontend.cudnnGraphNotSupportedError) as error:
            described.append(str(error))
    return {"version": version, "plans": plans, "described": described}


if __name__ == "__main__":
    print(json.dumps(main()))
