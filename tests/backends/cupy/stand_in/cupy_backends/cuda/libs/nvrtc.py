"""NVRTC: only its presence is checked."""


def getVersion() -> tuple[int, int]:  # noqa: N802 - CuPy's name
    return (12, 9)
