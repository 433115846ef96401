"""The thresholds of the NumPy backend: from what size on another way to compute pays, and how work is divided.

Values were found on x86-64 processors with 2 to 8 cores, with AVX2 and AVX-512, as the crossing of the times of both
ways; each comment has the unit and what was measured. They decide about speed only, unless the comment says that bits
depend on them. Tests set them to 1 in order to reach a kernel with few elements.
"""

from __future__ import annotations

# ---- threads ----

#: Elements of a ufunc's result from which a second thread of Python's pays. Handing work over and waiting for it takes
#: 50 to 100 us.
MIN_ELEMENTS_FOR_SECOND_THREAD = 1 << 20
#: Elements of a kernel's result from which a second thread of Python's pays: a kernel does several times the work of a
#: ufunc for each.
MIN_WORK_FOR_SECOND_THREAD = MIN_ELEMENTS_FOR_SECOND_THREAD >> 2
#: Elements of a sum from which a second thread of Python's pays: sums are as fast as memory.
MIN_SUM_ELEMENTS_FOR_SECOND_THREAD = 3 << 20
#: Multiplications of a convolution from which its blocks are distributed over threads.
CONV_MIN_PRODUCTS_FOR_THREADS = 1 << 21
#: Blocks of random numbers from which a second thread of Python's pays.
MIN_RANDOM_BLOCKS_FOR_THREADS = 8
#: Elements from which a second native thread pays: handing over work takes 5 us, since the threads spin or sleep.
MIN_ELEMENTS_FOR_NATIVE_THREADS = 1 << 15
#: Elements from which a second native thread pays for converting 16-bit floats, which is faster than other kernels.
MIN_HALVES_FOR_NATIVE_THREADS = 1 << 16
#: Elements that a native thread takes at a time.
ELEMENTS_PER_TASK = 1 << 14
#: The most elements over which a pass goes in one portion, so that it may be a step of a native program. Bits depend on
#: it.
MOST_ELEMENTS_OF_ONE_PORTION = 1 << 16

# ---- memory ----

#: Bytes of a result from which its memory is recycled: the first touch of a page costs more than the arithmetic on it.
#: NumPy's own allocator caches smaller results.
MIN_POOLED_BYTES = 1 << 18
#: Bytes of a block that is freed at first, for which glibc keeps twice as many of freed memory (the most that have an
#: effect). A product in a chain of 100 with its gradient takes 54 us instead of 80 for 16,384 elements, 28 instead of
#: 38 for 8,192, and in a chain of 1,000 18 instead of 22 for 2,048 (an Intel Xeon with AVX-512, while others worked).
BYTES_FREED_AT_FIRST = (1 << 25) - (1 << 13)
#: Bytes up to which a result of operands with gaps is allocated by NumPy, in their layout and in less time.
MAX_BYTES_OF_STRIDED_RESULT = 1 << 20

# ---- element-wise operations ----

#: Elements from which a kernel pays, where that is more than one: NumPy needs a few passes or products. A kernel's call
#: takes 2 to 3 us, a pass 0.4 and 0.3 for each 1,000 elements (an Intel Xeon with AVX-512).
MIN_ELEMENTS_FOR_KERNEL: dict[str, int] = {
    **dict.fromkeys(("sigmoid", "silu", "relu_backward"), 1 << 10), "sigmoid_slope": 1 << 6, "tanh_slope": 1 << 8,
    **dict.fromkeys(("sigmoid_backward", "tanh_backward"), 1 << 13),
    **dict.fromkeys(("cummax", "cummin", "diff_rows", "attention", "normalize_by", "take_places"), 1 << 10),
}  # fmt: skip
#: Elements from which kernels compute a function faster than NumPy does without AVX-512; with AVX-512 it is 1.5 to 3
#: times as fast as a kernel. For 4,096 float32 numbers tanh takes 7.0 us instead of 11.5, expm1 5.7 instead of 42, tan
#: 15 instead of 68 (an Intel Xeon, NumPy and kernels limited to AVX2). Functions of which random numbers are made are
#: not among them: a short draw begins a long one.
MIN_ELEMENTS_FOR_FUNCTION_OF_AVX2: dict[str, dict[str, int]] = {
    "tanh": {"float32": 1 << 11}, "expm1": {"float32": 1 << 9}, "tan": {"float32": 1 << 9, "float64": 1 << 10},
}  # fmt: skip
#: Elements from which an activation that no kernel computes has its body.
MIN_ELEMENTS_FOR_BODY = 1 << 10
#: Elements from which a fused formula pays, whose call takes 5 us; and fewer for 16-bit floats, which take NumPy
#: longer.
MIN_ELEMENTS_FOR_FORMULA, MIN_HALVES_FOR_FORMULA = 1 << 13, 1 << 10
#: Elements from which a formula pays, by the number of NumPy's passes that it replaces; the last is for 5 and more.
MIN_ELEMENTS_BY_PASSES = {4: 1 << 10, 5: 1 << 9}
#: Elements below which no formula pays.
MIN_ELEMENTS_FOR_FORMULAS = min(MIN_ELEMENTS_BY_PASSES.values())
#: Bytes from which bodies are computed in blocks, and the bytes of a block, which stays in the L2 cache.
MIN_BYTES_FOR_BLOCKS, BLOCK_BYTES = 1 << 21, 1 << 17
#: Elements of a block of operations along an axis: a few temporaries fit in the last level of the cache, and on
#: smaller blocks NumPy's calls take longer than their work.
BLOCK_ELEMENTS = 1 << 18
#: 16-bit floats from which a kernel converts them faster than NumPy.
MIN_HALVES_FOR_KERNEL = 1 << 5
#: Bytes of 16-bit floats from which NumPy's functions compute them in float32.
MIN_HALF_BYTES_FOR_FLOAT32 = 1 << 12
#: Bytes from which remainders and floored quotients are a kernel's: NumPy divides one number after another, and takes
#: ten to thirty times as long.
MIN_BYTES_FOR_DIVISION = 1 << 12
#: Elements from which a real power is computed from ``|x|``: NumPy takes 30 to 100 times as long for negative numbers.
MIN_ELEMENTS_FOR_REAL_POWER = 64
#: Elements from which selection is bitwise arithmetic: ``np.where`` branches on each element of the condition, and a
#: mispredicted branch costs ten times as much as the arithmetic.
MIN_ELEMENTS_FOR_MASKS = 4096
#: Bytes of parameters from which a kernel makes a plain SGD step. Two calls of NumPy take 1.9 us for 2,048 parameters
#: and a kernel 3.5, for 8,192 2.6 and 3.9; from 16,384 on the kernel wins.
MIN_BYTES_FOR_PLAIN_STEP = 1 << 16
#: Words of a run of random numbers from which each run is drawn by itself.
MIN_RUN_OF_WORDS = 1 << 10
#: Elements of a block of random numbers: with its temporaries it stays in the cache.
RANDOM_BLOCK = 1 << 14

# ---- reductions and norms ----

#: Elements from which kernels reduce rows and columns,
MIN_ELEMENTS_FOR_REDUCTION = 1 << 16
#: and many short rows, where NumPy takes up to ten times as long.
MIN_ELEMENTS_FOR_SHORT_ROWS = 1 << 12
#: The longest of these rows if columns of matrices are reduced, and the fewest rows.
MAX_SHORT_ROW, MIN_SHORT_ROWS = 1 << 9, 1 << 8
#: Rows that are added in their own dtype: such sums lose hardly any digits. Bits depend on it.
MAX_ROWS_SUMMED_IN_DTYPE = 3
#: Elements of the rows into which a full sum is split. Bits depend on it.
SUM_ROW_ELEMENTS = 1 << 12
#: Elements of a plane from which kernels standardize it: a SIMD vector.
MIN_PLANE_ELEMENTS = 8
#: The gradient for a scale is summed in float32 over blocks of rows, and in float64 over these: so it depends on the
#: shape alone, and errors do not grow with the number of rows. The most rows of a block, and the fewest blocks unless
#: they would have fewer elements than the third number. Bits depend on them.
MAX_ROWS_OF_PARTIAL_SUM, MIN_PARTIAL_SUMS, MIN_ELEMENTS_OF_PARTIAL_SUM = 64, 16, 1 << 13
#: Below this length norms use float64: subtracting mean and slope cancels most digits. Bits depend on it.
MIN_LENGTH_FOR_FLOAT32_NORM = 16

# ---- moving, sorting, searching ----

#: Bytes up to which an array is copied in less time than NumPy takes to make a view.
MAX_BYTES_COPIED_FOR_VIEW = 1 << 12
#: Bytes from which a kernel joins rows faster than NumPy, and that a thread joins at a time. For 2 x 100,000 x 8
#: elements it takes a third of NumPy's time.
MIN_BYTES_FOR_CONCAT = 1 << 15
#: Elements from which sorting keys with their indices pays.
MIN_ELEMENTS_FOR_KEY_SORT = 1024
#: The most of the largest elements that are found by one search each, and the elements from which that pays.
MAX_COUNT_BY_SEARCH, MIN_ELEMENTS_FOR_SEARCH = 8, 8 * MIN_ELEMENTS_FOR_KEY_SORT
#: Elements of the blocks of which only those with the topmost extremes are searched, at least.
MIN_TOPK_BLOCK = 16

# ---- matrix products ----

#: Multiplications from which the kernel multiplies faster than NumPy's library, by instruction set: below, OpenBLAS
#: takes one thread, too. With AVX-512 it has kernels for up to a million that copy nothing, but not for a right
#: operand that lies in memory as rows. Without vector fused multiply-adds the library is always faster.
MIN_GEMM_PRODUCTS: dict[str | None, float] = {"x86-64-v3": 1 << 18, "x86-64-v4": 10**6}
MIN_TRANSPOSED_GEMM_PRODUCTS = 1 << 18
#: Rows up to which a matrix is read once by ``gemm_small_m``, and its elements from which that pays.
MAX_SMALL_M, MIN_SMALL_M_ELEMENTS = 4, 1 << 14
#: Elements of a row from which its product with a column is element-wise, two to four times as fast as by BLAS.
MIN_OUTER_ROW = 8
#: Rows up to which OpenBLAS computes ``(weight @ x.T).T`` faster than ``x @ weight.T``, in down to a third of the time
#: on processors with AVX-512; and the multiplications from which that is worth the copy into rows.
MAX_ROWS_BY_TRANSPOSE, MIN_PRODUCTS_BY_TRANSPOSE = 64, 5 << 14
#: Rows of a matrix from which functions of LAPACK are called for each: for 200 rows a triangular solution takes a
#: sixth of the time of a general one.
MIN_ROWS_FOR_LAPACK = 32
#: Rows of matrices up to which, and their number from which, a kernel solves them side by side, in a tenth to a
#: quarter of LAPACK's time.
MAX_SMALL_MATRIX_SIDE, MIN_SMALL_MATRICES = 8, 16
#: Steps and rows from which a recurrent weight is transposed in memory: products with a view take up to 4 times as
#: long.
MIN_STEPS_FOR_TRANSPOSED_WEIGHT, MIN_ROWS_FOR_TRANSPOSED_WEIGHT = 8, 4
#: Rows of all steps together from which a recurrent weight is packed; for fewer, the copy takes longer than it saves.
MIN_ROWS_FOR_PACKED_WEIGHT = 4
#: Scores of a block of attention, which fits the L2 cache.
SCORES_PER_BLOCK = 1 << 17
#: Scores from which a second thread of Python's pays, without kernels.
MIN_SCORES_FOR_SECOND_THREAD = 1 << 19
#: Queries up to which a score costs more, since its key and value are read for these alone; and how many times as
#: much.
MAX_FEW_QUERIES, COST_OF_FEW_QUERIES = 4, 4
#: Elements of a quantized weight that each thread dequantizes at a time, which fit the L2 cache;
EXPANDED_BY_THREAD = 1 << 17
#: and all threads together, for a product that takes all of them.
EXPANDED_AT_A_TIME = 1 << 21
#: Rows of ``x`` up to which a quantized weight is multiplied as it is read, and not expanded.
MAX_ROWS_BY_READING = 16
#: Multiplications per row of ``x`` that a thread takes at a time.
PRODUCTS_PER_TASK = 1 << 18

# ---- native programs ----

#: Elements of a result up to which a native program computes it: for larger ones it gains nothing, and keeps their
#: memory.
NATIVE_MAX_ELEMENTS = 1 << 16
#: Groups of rows, or matrices with a diagonal, that are one step each, at most.
NATIVE_MAX_GROUPS = 64
#: Bytes of a row, and elements of a result, up to which a broadcast row is repeated in memory, rather than the formula
#: run row by row.
NATIVE_MAX_REPEATED_ROW_BYTES, NATIVE_MAX_REPEATED_ELEMENTS = 1 << 10, 1 << 14
#: Multiplications of a matrix product up to which kernels compute it in a native program, and up to which OpenBLAS
#: does, which uses only the calling thread for so few; and the most products of a stack.
NATIVE_MAX_MULTIPLICATIONS, NATIVE_MAX_LIBRARY_MULTIPLICATIONS, NATIVE_MAX_PRODUCTS = 1 << 24, 1 << 18, 32

# ---- passes ----

#: Bytes of a value in a tile, about.
PASS_TILE_BYTES = 1 << 14
#: Bytes of a value in a tile of a pass without rows: all values fit the L1 cache.
PASS_FLAT_TILE_BYTES = 1 << 12
#: Portions into which a pass is split, at most. Bits depend on it.
PASS_MAX_PORTIONS = 32
#: Cheap kernels that a loop runs again rather than read a value, at most.
PASS_MAX_RECOMPUTED = 3

# ---- resampling ----

#: Elements of an image below which kernels resample it, since they count positions in 32 bits; and of an axis below
#: which they sample it, since they round positions in float32. Larger values give wrong results.
MAX_RESAMPLED_ELEMENTS, MAX_SAMPLED_LENGTH = 1 << 29, 1 << 22

# ---- convolutions ----

#: Elements of the columns of a block, which fit the L2 cache with their operands, and the fewest columns: a smaller
#: product spends its time packing the weight.
CONV_BLOCK_ELEMENTS, CONV_MIN_BLOCK_COLUMNS = 1 << 18, 512
#: Outputs below which gradients of weights are computed transposed, if the window has more elements.
CONV_MIN_OUTPUTS_FIRST = 128
#: Elements of the columns of a sequence up to which kernels take it: they do not split it along its axis.
CONV_MAX_SEQUENCE = 1 << 22
#: For the direct kernel, the fewest output channels, elements of a window in all channels, and windows.
CONV_MIN_OUTPUTS, CONV_MIN_DEPTH, CONV_MIN_WINDOWS = 8, 9, 256
#: For the direct kernels of small images and of gradients of weights, the fewest input channels and columns.
CONV_MIN_INPUTS, CONV_MIN_COLUMNS = 4, 4
#: Elements of a weight up to which it does not matter that each thread packs it: two threads with 64 windows each and
#: larger weights took 1.1 to 1.3 times as long as products.
CONV_MAX_PACKED_WEIGHT = 1 << 20
#: The largest factor by which padding may increase the number of positions, and the most planes of an image unless
#: windows overlap: most of the time would go into copying them.
CONV_MAX_PADDING_RATIO, CONV_MAX_PLANES = 1.8, 4
#: The most copies of an image for the direct kernel, and the most inputs, unless rows with gaps between them are
#: longer by this factor than without.
CONV_MAX_COPIES, CONV_MAX_COPIED_INPUTS, CONV_MIN_GAP_RATIO = 5, 32, 1.05
#: Columns of a product from which the time of its call does not matter.
CONV_MIN_GEMM_COLUMNS = 48
#: Partial sums of the gradient of a weight, at most; the fewest windows of one for weights of so many elements, and
#: for larger ones; and the fewest multiplications. Its call and its sum take a twentieth of its time. Bits depend on
#: them.
CONV_MAX_PARTIALS, CONV_MIN_PRODUCTS_OF_PARTIAL = 8, 1 << 24
CONV_SMALL_WEIGHT, CONV_MIN_WINDOWS_SMALL_WEIGHT, CONV_MIN_WINDOWS_LARGE_WEIGHT = 1 << 16, 1 << 8, 1 << 11
#: The share of a block that inputs and gradients take, so that both fit the L2 cache.
CONV_BLOCK_SHARE = 2
#: Elements of the image rows that the direct kernel copies at a time, which fit the L2 cache; and the fewest rows
#: where threads share an example.
CONV_ROW_ELEMENTS, CONV_MIN_ROWS_OF_TASK = 1 << 18, 4
#: Sums of vectors up to which the kernel for few inputs takes the gradient of a weight: they fit the L2 cache.
CONV_MAX_VECTOR_SUMS = 1 << 14
#: The time in which that kernel reads and writes a sum, in positions, and the share of the direct kernel's time that
#: it must seem to take at most.
CONV_SUM_COST, CONV_MAX_TIME_RATIO = 90, 0.65
