"""All gradient rules: importing this module fills the table."""

from backburn.autodiff import (  # noqa: F401 - each attaches its rules
    activate,
    alignment,
    arithmetic,
    choice,
    conv,
    create,
    decompose,
    fft,
    functions,
    index,
    kinds,
    linalg,
    loss,
    normalize,
    pool,
    reduce,
    scan,
    sequence,
    shape,
    sort,
)
