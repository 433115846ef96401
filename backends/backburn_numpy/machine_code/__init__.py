"""Machine code of x86-64 for loops over vectors: encoded here, written to memory, then made executable."""
