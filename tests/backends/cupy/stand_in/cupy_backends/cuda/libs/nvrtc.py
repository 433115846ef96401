"""NVRTC, of which only the presence is asked."""


def getVersion() -> tuple[int, int]:  # noqa: N802 - CuPy's name
    return (12, 9)
