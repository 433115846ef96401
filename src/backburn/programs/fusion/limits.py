"""How many elements and calls a pass has. They affect speed only; tests set them to reach passes with few elements."""

#: The fewest elements for which calls are joined, and the most calls of a group with arrays of one shape.
MIN_ELEMENTS, MAX_CALLS = 1 << 12, 16
#: The fewest elements of a pass over rows, the most calls of such a group, and the width of its rows.
MIN_ELEMENTS_OF_ROWS, MAX_CALLS_OF_ROWS = 1 << 9, 48
MIN_WIDTH, MAX_WIDTH = 32, 1 << 12
#: The most rows that may be narrower.
MAX_SHORT_ROWS = 1 << 8
#: The fewest elements of a block of rows in a pass with repeated operands: kernels are called for each.
MIN_ELEMENTS_OF_BLOCK = 1 << 10
#: The most elements of an array that is treated as one row, and the width of the rows of larger ones.
MAX_FLAT_ROW, FLAT_WIDTH = 1 << 16, 1 << 10
#: The most elements for which a norm, softmax or loss is a pass alone: backends put these in native programs.
MAX_ELEMENTS_ALONE = 1 << 16
#: How many of the latest groups a call may still join.
RECENT = 16
