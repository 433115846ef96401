"""Element-wise operations: ufuncs, formulas in one pass over memory, blocks of large arrays, 16-bit floats."""
