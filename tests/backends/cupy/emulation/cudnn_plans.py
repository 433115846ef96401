"""A program: plans by the real cuDNN for an H200 that is not there. Takes pickled kinds, prints what became of each.

The description of the device is typed from NVIDIA's public figures, in the form in which cuDNN writes one down.
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
    """The library that cuDNN calls, and without which it ends the process."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or () if spec is not None else ()
    return sorted(path for folder in folders for path in Path(folder).glob("*/lib/libcublasLt.so.1*"))


def missing() -> str | None:
    """Why there can be no plans here; None where there can."""
    if importlib.util.find_spec("cudnn") is None:
        return "the frontend of cuDNN is not installed"
    if not cublaslt():
        return "cuBLASLt, which cuDNN needs, is not installed"
    return None


def _workspace(cudnn: Any, kind: Any) -> Any:
    """The bytes that a plan needs, or why there is none."""
    plan = cudnn.Plan(kind)
    return cudnn.REFUSED.get(kind, plan.workspace)


def main() -> dict[str, Any]:
    """Result for each kind of call: the bytes of its workspace, or the reason why there is no plan."""
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
