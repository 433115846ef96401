/* Attention: BLAS matrix products with passes over the scores between them, one block of queries at a time so that the
 * scores stay in the cache. */
#include <stdlib.h>

#include "runtime/kernels.h"
#include "gemm/blas.h"
#include "gemm/gemm_small_m.h"
#include "runtime/thread_pool.h"

void backburn_attention_weights(float *restrict, float, int64_t, int64_t, int64_t, int64_t);
void backburn_attention_scores(float *restrict, const float *restrict, float, int64_t, int64_t);

/* Matrices over two batch axes; all strides are in elements. */
typedef struct {
    const float *at;
    int64_t outer, inner, row;
} Matrices;

/* Indices into the caller's sizes. The strides of the attention and dropout masks are in bytes, over four axes. A float
 * mask is added to the scores; a bool mask is true where a query may attend. */
enum { INNER, QUERIES, KEYS, SIZE, WIDTH, CAUSAL, PART, MASK_IS_ADDED, MASK_STRIDES, KEEP_STRIDES = MASK_STRIDES + 4,
       STRIDES = KEEP_STRIDES + 4 };

typedef struct {
    Sgemm *product;
    Matrices query, key, value, grad;
    float *out, *grad_query, *grad_key, *grad_value;
    const char *mask, *keep; /* NULL: none */
    const int64_t *sizes;
    float scale, factor; /* of kept weights */
    int *failed;
} Attention;

INLINE const float *matrix(const Attention *a, const Matrices *all, int64_t number) {
    return all->at + number / a->sizes[INNER] * all->outer + number % a->sizes[INNER] * all->inner;
}

static Matrices matrices(const float *at, const int64_t *sizes, int number) {
    const int64_t *strides = sizes + STRIDES + 3 * number;
    return (Matrices){at, strides[0], strides[1], strides[2]};
}

/* A row of mask or keep. */
INLINE const char *row_of(const Attention *a, const char *mask, int strides, int64_t number, int64_t row) {
    const int64_t *by = a->sizes + strides;
    return mask + number / a->sizes[INNER] * by[0] + number % a->sizes[INNER] * by[1] + row * by[2];
}

static void hide(const Attention *a, int64_t number, int64_t first, int64_t rows, int64_t seen, float *scores) {
    const int64_t stride = a->sizes[MASK_STRIDES + 3];
    for (int64_t r = 0; r < rows; r++, scores += seen) {
        const char *mask = row_of(a, a->mask, MASK_STRIDES, number, first + r);
        if (a->sizes[MASK_IS_ADDED]) {
            if (stride == sizeof(float)) LOOP for (int64_t i = 0; i < seen; i++) scores[i] += ((const float *)mask)[i];
            else for (int64_t i = 0; i < seen; i++) scores[i] += *(const float *)(mask + i * stride);
        } else {
            for (int64_t i = 0; i < seen; i++) scores[i] = mask[i * stride] ? scores[i] : -INFINITY;
        }
    }
}

/* Applies dropout to rows of x; out may be x. */
static void drop(const Attention *a, int64_t number, int64_t first, int64_t rows, int64_t seen, const float *x,
                 float *out) {
    const int64_t stride = a->sizes[KEEP_STRIDES + 3];
    for (int64_t r = 0; r < rows; r++, x += seen, out += seen) {
        const char *keep = row_of(a, a->keep, KEEP_STRIDES, number, first + r);
        for (int64_t i = 0; i < seen; i++) out[i] = keep[i * stride] ? x[i] * a->factor : 0.0f;
    }
}

/* Whether a bool mask hides a key from all these queries, such as one in a buffer that is not full. */
static int is_hidden(const Attention *a, int64_t number, int64_t first, int64_t last, int64_t key) {
    int any = a->sizes[MASK_IS_ADDED] != 0;
    for (int64_t r = first; r < last; r++)
        any |= row_of(a, a->mask, MASK_STRIDES, number, r)[key * a->sizes[MASK_STRIDES + 3]];
    return !any;
}

/* Fills scores with the attention weights, before dropout, of queries first to last - 1 of a matrix; returns how many
 * keys they can see. */
static int64_t weigh(const Attention *a, int64_t number, int64_t first, int64_t last, float *scores) {
    const int64_t rows = last - first, causal = a->sizes[CAUSAL];
    int64_t seen = causal && last < a->sizes[KEYS] ? last : a->sizes[KEYS];
    if (rows <= MAX_M) {
        while (a->mask && seen > 1 && is_hidden(a, number, first, last, seen - 1)) seen--;
        backburn_small_m_dot(scores, seen, matrix(a, &a->query, number) + first * a->query.row, a->query.row,
                             matrix(a, &a->key, number), a->key.row, a->sizes[SIZE], a->scale, rows, 0, seen);
    } else
        a->product(ROW_MAJOR, NO_TRANS, TRANS, rows, seen, a->sizes[SIZE], a->scale,
                   matrix(a, &a->query, number) + first * a->query.row, a->query.row, matrix(a, &a->key, number),
                   a->key.row, 0.0f, scores, seen);
    if (a->mask) hide(a, number, first, rows, seen, scores);
    backburn_attention_weights(scores, 1.0f, causal ? first : -1, rows, rows, seen);
    return seen;
}

/* Blocks of queries, numbered over all matrices. */
static void forward(const void *context, int64_t start, int64_t stop) {
    const Attention *a = context;
    const int64_t queries = a->sizes[QUERIES], width = a->sizes[WIDTH], part = a->sizes[PART];
    const int64_t parts = (queries + part - 1) / part;
    float *scores = malloc((size_t)(part * a->sizes[KEYS]) * sizeof *scores);
    if (!scores) {
        *a->failed = 1;
        return;
    }
    for (int64_t i = start; i < stop; i++) {
        const int64_t number = i / parts, first = i % parts * part;
        const int64_t last = first + part < queries ? first + part : queries;
        const int64_t seen = weigh(a, number, first, last, scores);
        if (a->keep) drop(a, number, first, last - first, seen, scores, scores);
        const float *value = matrix(a, &a->value, number);
        float *out = a->out + (number * queries + first) * width;
        if (last - first <= MAX_M)
            backburn_small_m_axpy(out, width, scores, seen, value, a->value.row, seen, width, last - first);
        else
            a->product(ROW_MAJOR, NO_TRANS, NO_TRANS, last - first, width, seen, 1.0f, scores, seen, value,
                       a->value.row, 0.0f, out, width);
    }
    free(scores);
}

/* Whole matrices: all queries add to the gradients of the keys and values. */
static void backward(const void *context, int64_t start, int64_t stop) {
    const Attention *a = context;
    const int64_t queries = a->sizes[QUERIES], keys = a->sizes[KEYS], size = a->sizes[SIZE], width = a->sizes[WIDTH];
    const int64_t part = a->sizes[PART];
    float *weights = malloc(2 * (size_t)(part * keys) * sizeof *weights), *scores = weights + part * keys;
    if (!weights) {
        *a->failed = 1;
        return;
    }
    for (int64_t i = start; i < stop; i++) {
        const float *query = matrix(a, &a->query, i), *key = matrix(a, &a->key, i), *value = matrix(a, &a->value, i);
        const float *grad = matrix(a, &a->grad, i);
        float *grad_query = a->grad_query + i * queries * size, *grad_key = a->grad_key + i * keys * size;
        float *grad_value = a->grad_value + i * keys * width;
        memset(grad_key, 0, (size_t)(keys * size) * sizeof *grad_key);
        memset(grad_value, 0, (size_t)(keys * width) * sizeof *grad_value);
        for (int64_t first = 0; first < queries; first += part) {
            const int64_t last = first + part < queries ? first + part : queries, rows = last - first;
            const int64_t seen = weigh(a, i, first, last, weights);
            const float *g = grad + first * a->grad.row;
            if (a->keep) drop(a, i, first, rows, seen, weights, scores);
            a->product(ROW_MAJOR, TRANS, NO_TRANS, seen, width, rows, 1.0f, a->keep ? scores : weights, seen, g,
                       a->grad.row, 1.0f, grad_value, width);
            a->product(ROW_MAJOR, NO_TRANS, TRANS, rows, seen, width, 1.0f, g, a->grad.row, value, a->value.row, 0.0f,
                       scores, seen);
            if (a->keep) drop(a, i, first, rows, seen, scores, scores);
            backburn_attention_scores(scores, weights, a->scale, rows, seen);
            a->product(ROW_MAJOR, NO_TRANS, NO_TRANS, rows, size, seen, 1.0f, scores, seen, key, a->key.row, 0.0f,
                       grad_query + first * size, size);
            a->product(ROW_MAJOR, TRANS, NO_TRANS, seen, size, rows, 1.0f, scores, seen, query + first * a->query.row,
                       a->query.row, 1.0f, grad_key, size);
        }
    }
    free(weights);
}

KERNEL(attention, float *out, const float *query, const float *key, const float *value, const char *mask,
       const char *keep, Sgemm *product, const int64_t *sizes, float scale, float factor,
       int *failed, int64_t parts, int64_t grain, int threads) {
    const Attention all = {.product = product, .query = matrices(query, sizes, 0), .key = matrices(key, sizes, 1),
                           .value = matrices(value, sizes, 2), .out = out, .mask = mask, .keep = keep,
                           .sizes = sizes, .scale = scale, .factor = factor, .failed = failed};
    backburn_pool_run(forward, &all, parts, grain, threads);
}

KERNEL(attention_backward, float *grad_query, float *grad_key, float *grad_value, const float *query,
       const float *key, const float *value, const float *grad, const char *mask,
       const char *keep, Sgemm *product, const int64_t *sizes, float scale,
       float factor, int *failed, int64_t count, int64_t grain, int threads) {
    const Attention all = {.product = product, .query = matrices(query, sizes, 0), .key = matrices(key, sizes, 1),
                           .value = matrices(value, sizes, 2), .grad = matrices(grad, sizes, 3),
                           .grad_query = grad_query, .grad_key = grad_key, .grad_value = grad_value, .mask = mask,
                           .keep = keep, .sizes = sizes, .scale = scale, .factor = factor, .failed = failed};
    backburn_pool_run(backward, &all, count, grain, threads);
}
