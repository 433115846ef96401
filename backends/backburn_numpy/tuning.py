"""The thresholds of the NumPy backend: the sizes from which an alternative pays, and how work is divided.

They were measured on x86-64 processors with 2 to 8 cores, AVX2 and AVX-512, as the crossover of both running times;
each comment gives the unit and what was measured. They affect speed only, unless the comment says that results depend
on them. Tests set them to 1 to reach a kernel with few elements.
"""

from __future__ import annotations

# ---- threads ----

#: Elements of a ufunc's result from which a second Python thread pays: handing work over and waiting for it takes 50 to
#: 100 us.
MIN_ELEMENTS_FOR_SECOND_THREAD = 1 << 20
#: Rows below which a ufunc's operands of one shape are divided by elements among Python threads, not by rows.
MIN_ROWS_FOR_THREADS = 16
#: Bytes of an array from which kernels, in several threads, compute what NumPy's functions compute as fast in one. A
#: kernel's call takes 5 us, and recycled memory as much: with 2^18, a chain of 20 operations on 65,536 elements takes
#: 3.6 ms with its gradient instead of 3.0 (an AMD EPYC with AVX2, one thread).
MIN_BYTES_FOR_THREADS = 1 << 19
#: Bytes of an operand from which kernels compute those that broadcast or are slices, and the fewest elements of a run.
MIN_BYTES_FOR_RUNS, MIN_ELEMENTS_OF_RUN = 1 << 18, 32
#: Elements of a row from which, and up to which, a ufunc's buffer is made to hold one row of a broadcast operand.
MIN_ROW_BUFFER, MAX_ROW_BUFFER = 320, 8192
#: Elements of a kernel's result from which a second Python thread pays: a kernel does several times the work of a ufunc
#: per element.
MIN_WORK_FOR_SECOND_THREAD = MIN_ELEMENTS_FOR_SECOND_THREAD >> 2
#: Elements of a sum from which a second Python thread pays: sums are limited by memory bandwidth.
MIN_SUM_ELEMENTS_FOR_SECOND_THREAD = 3 << 20
#: Multiplications of a convolution from which its blocks are distributed over threads.
CONV_MIN_PRODUCTS_FOR_THREADS = 1 << 21
#: Blocks of random numbers from which a second Python thread pays.
MIN_RANDOM_BLOCKS_FOR_THREADS = 8
#: Elements from which a second native thread pays: handing work to a spinning or sleeping thread takes 5 us.
MIN_ELEMENTS_FOR_NATIVE_THREADS = 1 << 15
#: Elements from which a second native thread pays for converting 16-bit floats, which is faster than other kernels.
MIN_HALVES_FOR_NATIVE_THREADS = 1 << 16
#: Elements that a native thread takes at a time.
ELEMENTS_PER_TASK = 1 << 14
#: Elements up to which a pass is a single portion, and so may be a step of a native program. Results depend on it.
MOST_ELEMENTS_OF_ONE_PORTION = 1 << 16

# ---- memory ----

#: Bytes of a result from which its memory is recycled: the first touch of a page costs more than the arithmetic on it.
#: NumPy's own allocator caches smaller results.
MIN_POOLED_BYTES = 1 << 18
#: Bytes of a block freed on import, after which glibc keeps up to twice as many freed bytes (the largest block with
#: that effect). A product in a chain of 100, with its gradient, takes 54 us instead of 80 for 16,384 elements and 28
#: instead of 38 for 8,192; in a chain of 1,000, 18 instead of 22 for 2,048 (a busy Intel Xeon with AVX-512).
BYTES_FREED_AT_FIRST = (1 << 25) - (1 << 13)
#: Bytes below which NumPy allocates the result of non-contiguous operands, in their layout and in less time.
MAX_BYTES_OF_STRIDED_RESULT = 1 << 20

# ---- element-wise operations ----

#: Elements from which a kernel pays, if more than one, since NumPy needs only a few passes or products. A kernel's call
#: takes 2 to 3 us, a pass 0.4 plus 0.3 per 1,000 elements (an Intel Xeon with AVX-512).
MIN_ELEMENTS_FOR_KERNEL: dict[str, int] = {
    **dict.fromkeys(("sigmoid", "silu", "relu_backward"), 1 << 10), "sigmoid_slope": 1 << 6, "tanh_slope": 1 << 8,
    **dict.fromkeys(("sigmoid_backward", "tanh_backward"), 1 << 13),
    **dict.fromkeys(("cummax", "cummin", "diff_rows", "attention", "normalize_by", "take_places"), 1 << 10),
}  # fmt: skip
#: Elements from which kernels compute a function faster than NumPy without AVX-512; with AVX-512 NumPy is 1.5 to 3
#: times as fast as a kernel. For 4,096 float32 values tanh takes 7.0 us instead of 11.5, expm1 5.7 instead of 42, tan
#: 15 instead of 68 (an Intel Xeon, NumPy and kernels limited to AVX2); for 262,144, sinh takes 0.07, cosh 0.11 and
#: arctan 0.05 of NumPy's time, arctan2 0.03, and in float64 0.3 and 0.12; for 16,384, exp 0.5, log 0.6, log1p 0.2 and
#: in float64 sin 0.25 (an AMD EPYC with AVX2).
MIN_ELEMENTS_FOR_FUNCTION_OF_AVX2: dict[str, dict[str, int]] = {
    "tanh": {"float32": 1 << 11}, "tan": {"float32": 1 << 9, "float64": 1 << 10},
    **{name: {"float32": 1 << 11, "float64": 1 << 10} for name in ("exp", "log")},
    "log1p": {"float32": 1 << 10, "float64": 1 << 10}, "sin": {"float64": 1 << 9}, "cos": {"float64": 1 << 9},
    **{name: {"float32": 1 << 9} for name in ("expm1", "sinh", "cosh")},
    **{name: {"float32": 1 << 9, "float64": 1 << 9} for name in ("arctan", "arctan2")},
}  # fmt: skip
#: Elements from which an activation without a kernel uses the contract's body.
MIN_ELEMENTS_FOR_BODY = 1 << 10
#: Elements from which a fused formula pays, whose call takes 5 us; fewer for 16-bit floats, for which NumPy is slower.
MIN_ELEMENTS_FOR_FORMULA, MIN_HALVES_FOR_FORMULA = 1 << 13, 1 << 10
#: Elements from which a formula pays, by the number of NumPy passes it replaces; the last is for 5 or more.
MIN_ELEMENTS_BY_PASSES = {4: 1 << 10, 5: 1 << 9}
#: Elements below which no formula pays.
MIN_ELEMENTS_FOR_FORMULAS = min(MIN_ELEMENTS_BY_PASSES.values())
#: Bytes from which bodies are computed in blocks, and the bytes of a block, which stays in the L2 cache.
MIN_BYTES_FOR_BLOCKS, BLOCK_BYTES = 1 << 21, 1 << 17
#: Elements of a block of operations along an axis: a few temporaries fit the last-level cache, and on smaller blocks
#: NumPy's calls take longer than their work.
BLOCK_ELEMENTS = 1 << 18
#: Elements from which a kernel converts 16-bit floats faster than NumPy.
MIN_HALVES_FOR_KERNEL = 1 << 5
#: Bytes of 16-bit floats from which ufuncs compute them in float32.
MIN_HALF_BYTES_FOR_FLOAT32 = 1 << 12
#: Bytes from which a kernel computes remainders and floored quotients: NumPy, without SIMD, takes ten to thirty times
#: as long.
MIN_BYTES_FOR_DIVISION = 1 << 12
#: Elements from which a real power is computed from ``|x|``: NumPy takes 30 to 100 times as long for negative numbers.
MIN_ELEMENTS_FOR_REAL_POWER = 64
#: Elements from which selection is bitwise arithmetic: ``np.where`` branches on each element of the condition, and a
#: mispredicted branch costs ten times as much as the arithmetic.
MIN_ELEMENTS_FOR_MASKS = 4096
#: Bytes of parameters from which a kernel computes a plain SGD step. Two NumPy calls take 1.9 us for 2,048 parameters
#: and a kernel 3.5, for 8,192 2.6 and 3.9; from 16,384 on the kernel wins.
MIN_BYTES_FOR_PLAIN_STEP = 1 << 16
#: Words of a run of random numbers from which each run is drawn separately.
MIN_RUN_OF_WORDS = 1 << 10
#: Elements of a block of random numbers: with its temporaries it stays in the cache.
RANDOM_BLOCK = 1 << 14

# ---- reductions and norms ----

#: Elements from which kernels reduce rows and columns.
MIN_ELEMENTS_FOR_REDUCTION = 1 << 16
#: Elements from which kernels reduce many short rows, for which NumPy takes up to ten times as long.
MIN_ELEMENTS_FOR_SHORT_ROWS = 1 << 12
#: The length below which rows are short when columns of matrices are reduced, and the fewest rows.
MAX_SHORT_ROW, MIN_SHORT_ROWS = 1 << 9, 1 << 8
#: Rows up to which columns are summed in their own dtype: such sums lose hardly any digits. Results depend on it.
MAX_ROWS_SUMMED_IN_DTYPE = 3
#: Elements of the rows into which a full sum is split. Results depend on it.
SUM_ROW_ELEMENTS = 1 << 12
#: Elements of a plane from which kernels standardize it: a SIMD vector.
MIN_PLANE_ELEMENTS = 8
#: A scale's gradient is summed in float32 within blocks of rows, and in float64 across blocks, so that it depends on
#: the shape alone and errors do not grow with the number of rows: the most rows of a block, and the fewest blocks
#: unless they would have fewer elements than the third value. Results depend on them.
MAX_ROWS_OF_PARTIAL_SUM, MIN_PARTIAL_SUMS, MIN_ELEMENTS_OF_PARTIAL_SUM = 64, 16, 1 << 13
#: Below this length norms use float64: subtracting mean and slope cancels most digits. Results depend on it.
MIN_LENGTH_FOR_FLOAT32_NORM = 16

# ---- moving, sorting, searching ----

#: Bytes up to which a broadcast is copied: NumPy takes longer to create a view.
MAX_BYTES_COPIED_FOR_VIEW = 1 << 12
#: Bytes from which a kernel concatenates rows faster than NumPy, and that a thread copies at a time. For 2 x 100,000 x
#: 8 elements it takes a third of NumPy's time.
MIN_BYTES_FOR_CONCAT = 1 << 15
#: Elements from which sorting keys packed with their indices pays.
MIN_ELEMENTS_FOR_KEY_SORT = 1024
#: Results of ``topk`` up to which each is found by a search, and the elements from which that pays.
MAX_COUNT_BY_SEARCH, MIN_ELEMENTS_FOR_SEARCH = 8, 8 * MIN_ELEMENTS_FOR_KEY_SORT
#: The fewest elements of a block where ``topk`` searches only the blocks with the topmost extremes.
MIN_TOPK_BLOCK = 16

# ---- matrix products ----

#: Multiplications from which our kernel is faster than NumPy's library, by instruction set: below, OpenBLAS uses one
#: thread, too. With AVX-512 OpenBLAS has kernels that pack nothing for up to a million, but not for a right operand
#: that is transposed in memory. Without vector fused multiply-adds the library is always faster.
MIN_GEMM_PRODUCTS: dict[str | None, float] = {"x86-64-v3": 1 << 18, "x86-64-v4": 10**6}
MIN_TRANSPOSED_GEMM_PRODUCTS = 1 << 18
#: Rows up to which ``gemm_small_m`` multiplies by a matrix, read once; and the matrix's elements from which that pays.
MAX_SMALL_M, MIN_SMALL_M_ELEMENTS = 4, 1 << 14
#: Elements of a row from which an outer product is element-wise, two to four times as fast as by BLAS.
MIN_OUTER_ROW = 8
#: Rows up to which OpenBLAS computes ``(weight @ x.T).T`` faster than ``x @ weight.T``, in as little as a third of the
#: time with AVX-512; and the multiplications from which that outweighs the copy into rows.
MAX_ROWS_BY_TRANSPOSE, MIN_PRODUCTS_BY_TRANSPOSE = 64, 5 << 14
#: Rows of a matrix from which specialized BLAS and LAPACK functions are called: for 200 rows a triangular solve takes a
#: sixth of the time of a general one.
MIN_ROWS_FOR_LAPACK = 32
#: Rows up to which, and number of matrices from which, a kernel solves matrices side by side, in a tenth to a quarter
#: of LAPACK's time.
MAX_SMALL_MATRIX_SIDE, MIN_SMALL_MATRICES = 8, 16
#: Steps and rows from which a recurrent weight is transposed in memory: products with a view take up to 4 times as
#: long.
MIN_STEPS_FOR_TRANSPOSED_WEIGHT, MIN_ROWS_FOR_TRANSPOSED_WEIGHT = 8, 4
#: Rows of all steps together from which a recurrent weight is packed; for fewer, packing costs more than it saves.
MIN_ROWS_FOR_PACKED_WEIGHT = 4
#: Scores of a block of attention, which fits the L2 cache.
SCORES_PER_BLOCK = 1 << 17
#: Scores from which a second thread of Python's pays, without kernels.
MIN_SCORES_FOR_SECOND_THREAD = 1 << 19
#: Queries up to which a score costs more, since few queries share the reads of its key and value; and by what factor.
MAX_FEW_QUERIES, COST_OF_FEW_QUERIES = 4, 4
#: Elements of a quantized weight that each thread dequantizes at a time, which fit the L2 cache.
EXPANDED_BY_THREAD = 1 << 17
#: Elements of a quantized weight that all threads dequantize together, for one product in all threads.
EXPANDED_AT_A_TIME = 1 << 21
#: Rows of ``x`` up to which a quantized weight is multiplied as it is read, not expanded.
MAX_ROWS_BY_READING = 16
#: Multiplications of a quantized product that a thread takes at a time, within a factor of 4.
PRODUCTS_PER_TASK = 1 << 18

# ---- native programs ----

#: Elements of a result up to which a native program computes it: for larger ones it gains nothing, and keeps their
#: memory.
NATIVE_MAX_ELEMENTS = 1 << 16
#: Steps of one call, at most: one per group of rows, or per matrix whose diagonal is copied.
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
#: Bytes of an array, which the L2 cache does not hold, from which passes of several loops and kernels load the next
#: tile's elements into it: a layer norm with its gradient takes 0.7 of the time (an Intel Xeon with AVX-512).
MIN_BYTES_TO_FETCH = 1 << 22
#: Bytes of a value in a tile of a pass without rows: all values fit the L1 cache.
PASS_FLAT_TILE_BYTES = 1 << 12
#: Portions into which a pass is split, at most. Results depend on it.
PASS_MAX_PORTIONS = 32
#: Rows of a portion with sums of columns, at least: each portion has separate sums, which are cleared, written and
#: added. Results depend on it.
PASS_MIN_ROWS_OF_SUMS = 64
#: Cheap kernels that a loop reruns to recompute a value instead of reading it, at most.
PASS_MAX_RECOMPUTED = 3

# ---- resampling ----

#: Elements of an image below which kernels resample it, since they count positions in 32 bits; and of an axis below
#: which they sample it, since they round positions in float32. Larger values give wrong results.
MAX_RESAMPLED_ELEMENTS, MAX_SAMPLED_LENGTH = 1 << 29, 1 << 22

# ---- convolutions ----

#: Elements of a block's matrix of columns, which fits the L2 cache with its operands, and the fewest columns: a smaller
#: product spends its time packing the weight.
CONV_BLOCK_ELEMENTS, CONV_MIN_BLOCK_COLUMNS = 1 << 18, 512
#: Outputs below which gradients of weights are computed transposed, if the window has more elements.
CONV_MIN_OUTPUTS_FIRST = 128
#: Elements of a sequence's matrix of columns up to which kernels take it: they do not split its axis.
CONV_MAX_SEQUENCE = 1 << 22
#: For the direct kernel, the fewest output channels, elements of a window in all channels, and windows.
CONV_MIN_OUTPUTS, CONV_MIN_DEPTH, CONV_MIN_WINDOWS = 8, 9, 256
#: For the direct kernels of small images and of gradients of weights, the fewest input channels and columns.
CONV_MIN_INPUTS, CONV_MIN_COLUMNS = 4, 4
#: Elements of a window in all channels from which the direct kernel computes gradients of weights: with fewer, most of
#: its time goes into copying the gradients of the outputs.
CONV_MIN_DEPTH_FOR_WEIGHT_GRAD = 36
#: Elements of a weight up to which packing it in each thread does not matter: two threads with 64 windows each and
#: larger weights took 1.1 to 1.3 times as long as products.
CONV_MAX_PACKED_WEIGHT = 1 << 20
#: The largest factor by which padding may increase the number of positions, and the most planes of an image unless
#: windows overlap: most of the time would go into copying them.
CONV_MAX_PADDING_RATIO, CONV_MAX_PLANES = 1.8, 4
#: The most copies of an image for the direct kernel, and the most inputs unless gaps between rows lengthen them by this
#: factor.
CONV_MAX_COPIES, CONV_MAX_COPIED_INPUTS, CONV_MIN_GAP_RATIO = 5, 32, 1.05
#: Columns of a product from which call overhead does not matter.
CONV_MIN_GEMM_COLUMNS = 48
#: Partial sums of a weight's gradient, at most, and the fewest multiplications of one; the fewest windows of one for
#: weights up to a size, and for larger ones. Call and sum then take a twentieth of the time. Results depend on them.
CONV_MAX_PARTIALS, CONV_MIN_PRODUCTS_OF_PARTIAL = 8, 1 << 24
CONV_SMALL_WEIGHT, CONV_MIN_WINDOWS_SMALL_WEIGHT, CONV_MIN_WINDOWS_LARGE_WEIGHT = 1 << 16, 1 << 8, 1 << 11
#: The divisor of a block's size where a kernel reads inputs and gradients, so that both fit the L2 cache.
CONV_BLOCK_SHARE = 2
#: Elements of the image rows that the direct kernel copies at a time, which fit the L2 cache; and the fewest rows
#: where threads share an example.
CONV_ROW_ELEMENTS, CONV_MIN_ROWS_OF_TASK = 1 << 18, 4
#: Vectors of sums up to which the kernel for few inputs computes a weight's gradient: they fit the L2 cache.
CONV_MAX_VECTOR_SUMS = 1 << 14
#: The cost for that kernel of reading and writing a sum, in positions, and the fraction of the direct kernel's
#: estimated time below which it is chosen.
CONV_SUM_COST, CONV_MAX_TIME_RATIO = 90, 0.65
