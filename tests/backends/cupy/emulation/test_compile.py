"""Every CUDA source compiles for current GPUs, in every instance that a launcher may request. Needs no GPU."""

from __future__ import annotations

import re

import pytest
from tests.backends.cupy.emulation import formulas, nvrtc
from tests.backends.cupy.emulation.instances import KERNELS, instances
from tests.backends.cupy.emulation.nvrtc import CUPYS

from backburn_cupy.kernels.sources import C_TYPES, FAMILIES, OPTIONS, source

needs_nvrtc = pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))


def test_every_family_has_its_instances() -> None:
    assert set(FAMILIES) == set(KERNELS)


def chosen() -> list[tuple[str, str, str]]:
    """Families, dtypes and architectures. Sources need at most sm_80, which is therefore tried with one dtype only."""
    every: list[tuple[str, str, str]] = []
    for family in FAMILIES:
        dtypes = [dtype for dtype, c_type in C_TYPES.items() if instances(family, c_type)]
        every += [(family, dtypes[0], "sm_80"), *((family, dtype, "sm_90") for dtype in dtypes)]
    return every


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(("family", "dtype", "arch"), chosen())
def test_compiles(family: str, dtype: str, arch: str) -> None:
    expressions = instances(family, C_TYPES[dtype])
    options = (*OPTIONS, *CUPYS, f"-arch={arch}", "--ptxas-options=-v")
    code, names, log = nvrtc.compiled(source(family), options, expressions)
    assert code[:4] == b"\x7fELF"
    assert all(name.encode() in code for name in names)
    assert "warning" not in log
    # Spilled registers are written to memory and read again, as if rows were longer.
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    assert len(spilled) >= len(expressions)
    assert max(spilled) <= 160


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "arch"), [("float32", "sm_80"), *((dtype, "sm_90") for dtype in C_TYPES)])
def test_formulas_compile(dtype: str, arch: str) -> None:
    families = formulas.families(dtype)
    options = (*OPTIONS, *CUPYS, f"-arch={arch}", "--ptxas-options=-v")
    code, names, log = nvrtc.compiled(source(*families), options, [f"{f}<{C_TYPES[dtype]}>" for f in families])
    assert code[:4] == b"\x7fELF"
    assert len(names) == len(families) > 50
    assert "warning" not in log
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    assert len(spilled) >= len(families)
    assert max(spilled) <= 160


#: Kernels that move most of a step's data.
WIDE = {
    "softmax": "softmax<{}, 32, 32>",
    "losses": "label_cross_entropy_backward<{}, 0, 16>",
    "norm": "norm_backward<{}, 0, 8, true>",
    "activations": "gelu_backward<{}>",
    "optimizer_steps": "adam_step<{}, float, 48>",
    "batch_norm": "apply_planes<{}, false>",
    "index": "take_rows<{}>",
}


@needs_nvrtc
@pytest.mark.parametrize("family", WIDE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_16_bytes_are_read_and_written_in_one_access(family: str, dtype: str) -> None:
    expression = WIDE[family].format(C_TYPES[dtype])
    code, _, _ = nvrtc.compiled(source(family), (*OPTIONS, *CUPYS, "-arch=compute_90"), [expression])
    assert re.search(rb"ld\.global\.(nc\.)?v4\.", code)
    assert re.search(rb"st\.global\.v4\.", code)
    assert not re.search(rb"(ld|st)\.local", code)


#: Kernels of 16-bit floats, and the packs of all operands that a thread first loads.
PACKS = {
    "activations": ("gelu_tanh_backward<bfloat16>", 4),
    "softmax": ("softmax<bfloat16, 32, 32>", 4),
    "norm": ("norm_backward<float16, 0, 8, true>", 2),
    "batch_norm": ("sum_planes<float16, false>", 2),
    "optimizer_steps": ("adam_step<bfloat16, float, 48>", 6),
}


@needs_nvrtc
@pytest.mark.parametrize("family", PACKS)
def test_all_packs_are_loaded_before_one_is_used(family: str) -> None:
    """A thread stalls at the first use of a load: single loads have too few bytes in flight for the bandwidth."""
    expression, count = PACKS[family]
    code, _, _ = nvrtc.compiled(source(family), (*OPTIONS, *CUPYS, "-arch=compute_90"), [expression])
    # Between the loads there are only addresses, conditions, and moves of branches.
    used = re.compile(r"(?!mov|ld|set|sel)\w+[.\w]*\.[bfsu](16|32)x?2?\s")
    lines = [line.strip() for line in code.decode(errors="replace").splitlines()]
    loads = [i for i, line in enumerate(lines) if re.search(r"\bld\.global\.(nc\.)?v4\.", line)]
    groups = zip(loads, loads[count - 1 :], strict=False)
    assert any(not any(map(used.match, lines[first:last])) for first, last in groups)


@needs_nvrtc
@pytest.mark.parametrize(("family", "kernel"), [("activations", "gelu_tanh<{}>"), ("softmax", "softmax<{}, 0, 16>")])
def test_16_bit_results_use_approximations(family: str, kernel: str) -> None:
    """Exponentials and quotients with float32 precision would take longer than memory access."""
    counts = []
    for c_type in ("bfloat16", "float"):
        options = (*OPTIONS, *CUPYS, "-arch=compute_90")
        code, _, _ = nvrtc.compiled(source(family), options, [kernel.format(c_type)])
        elements = 16 if c_type == "bfloat16" or family == "softmax" else 8  # per thread, on every path
        counts.append(len(re.findall(rb"(fma|div)\.r[nm]\.ftz\.f32", code)) / elements)
    assert counts[0] <= counts[1] - 3


@needs_nvrtc
@pytest.mark.parametrize("kernel", ["softmax", "log_softmax", "label_cross_entropy"])
def test_the_sums_of_a_long_row_take_one_pass(kernel: str) -> None:
    options = (*OPTIONS, *CUPYS, "-arch=compute_90")
    family = "losses" if "cross" in kernel else "softmax"
    code, _, _ = nvrtc.compiled(source(family), options, [f"{kernel}<bfloat16, 0, 0>"])
    # The first pack of a pass, and in its loop, the next one.
    assert len(re.findall(rb"ld\.global\.(nc\.)?v4\.", code)) == (2 if "cross" in kernel else 4)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["compute_80", "compute_90"])
def test_attention_uses_tensor_cores_and_asynchronous_copies(arch: str) -> None:
    for kernel in KERNELS["attention"]:
        options = (*OPTIONS, *CUPYS, f"-arch={arch}")
        code, _, _ = nvrtc.compiled(source("attention"), options, [f"{kernel}<bfloat16, 64, false>"])
        for instruction in (rb"mma\.sync", rb"ldmatrix\.sync", rb"cp\.async\.cg", rb"st\.global\.v4\."):
            assert re.search(instruction, code), instruction
        assert not re.search(rb"(ld|st)\.local", code)


@needs_nvrtc
def test_an_error_in_a_source_is_found() -> None:
    with pytest.raises(RuntimeError, match="undefined"):
        nvrtc.compiled(source("softmax").replace("largest<LANES>", "biggest<LANES>"), OPTIONS, ["softmax<float, 4, 8>"])
