/* Softmax, cross-entropy, normalizations and attention weights over rows. */
#include "runtime/kernels.h"
#include "runtime/simd.h"
#include "runtime/thread_pool.h"
#include "softmax_short_rows.h"

EXTREME(float, Lanes, Ints, AT, largest_and_nans, larger_lanes, largest_lane, -INFINITY)
INLINE float largest(const float *restrict x, int64_t width) {
    int unordered;
    return largest_and_nans(x, width, &unordered);
}

/* Long sums of floats lose digits. So floats are summed over stretches of a row, of 64 elements in each lane of one or
 * two vectors, and the sums of stretches are added as doubles. Machine code of passes has the same stretches. */
enum { STRETCH = LANES < 8 ? 64 * LANES : 1024 };
#define STRETCHES                                                                                              \
    for (int64_t start = 0, stop; stop = width - start < STRETCH ? width : start + STRETCH, start < width; start = stop)

INLINE double sum_of(const float *restrict x, int64_t width) {
    double total = 0.0;
    STRETCHES total += sum_of_floats(x, start, stop);
    return total;
}

INLINE double product_of(const float *restrict x, const float *restrict y, int64_t width) {
    double total = 0.0;
    STRETCHES {
        Lanes sums[2] = {0};
        BY_VECTORS(LANES, start, stop, sums[turn] += AT(x, 0.0f) * AT(y, 0.0f);)
        total += sum_of_lanes(sums[0] + sums[1]);
    }
    return total;
}

/* exp(x - top) of count elements, from 1 to all lanes; 0 in the other lanes, and in lane `without`. Stores the powers
 * in out, unless it is null. */
INLINE Lanes powers_of_some(float *out, const float *x, float top, int64_t count, int64_t without) {
    _Alignas(Lanes) float some[LANES];
    store_lanes(some, count < LANES ? load_some(x, count, top) : load_lanes(x));
    LOOP for (int k = 0; k < LANES; k++) some[k] = exp_of(some[k] - top);
    if (out && count < LANES) store_some(out, count, load_lanes(some));
    if (out && count >= LANES) store_lanes(out, load_lanes(some));
    if (0 <= without && without < LANES) some[without] = 0.0f;
    return count < LANES ? load_some(some, count, 0.0f) : load_lanes(some);
}

/* The vectors that are computed together: while the processor waits for one, it computes the others. */
enum { SEVERAL = 4 };
#define EACH UNROLL for (int k = 0; k < SEVERAL; k++)
#define SPLAT(number) ((Lanes){0} + (number))

/* exp of several vectors, by the steps of exp_of and so with its bits. */
INLINE void exp_of_several(Lanes *x) {
    typedef VECTOR(uint32_t, LANES) Bits;
    const float shift = 12582912.0f, terms[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                                5.0000001201e-1f};
    Lanes shifted[SEVERAL], n[SEVERAL], r[SEVERAL], p[SEVERAL];
    EACH x[k] = smaller_lanes(SPLAT(89.0f), x[k]);
    EACH x[k] = larger_lanes(SPLAT(-104.0f), x[k]);
    EACH shifted[k] = x[k] * 1.44269504088896341f + shift;
    EACH n[k] = shifted[k] - shift;
    EACH r[k] = x[k] - n[k] * 0.693359375f;
    EACH r[k] = r[k] + n[k] * 2.12194440e-4f;
    EACH p[k] = SPLAT(1.9875691500e-4f);
    UNROLL for (int t = 0; t < 5; t++) EACH p[k] = p[k] * r[k] + terms[t];
    EACH p[k] = p[k] * r[k];
    EACH p[k] = p[k] * r[k] + r[k];
#if defined(__AVX512F__)
    EACH x[k] = (Lanes)_mm512_scalef_ps((__m512)(p[k] + 1.0f), (__m512)n[k]);
#else
    Ints whole[SEVERAL], half[SEVERAL];
    EACH whole[k] = (Ints)((Bits)shifted[k] - (Bits)SPLAT(shift));
    EACH half[k] = whole[k] >> 1;
    EACH x[k] = (p[k] + 1.0f) * (Lanes)(((Bits)half[k] + 127u) << 23);
    EACH x[k] = x[k] * (Lanes)(((Bits)whole[k] - (Bits)half[k] + 127u) << 23);
#endif
}

/* x with 0 in a lane, if there is one of that number. */
INLINE Lanes without_lane(Lanes x, int64_t lane) {
    Ints kept;
    UNROLL for (int k = 0; k < LANES; k++) kept[k] = k == lane ? 0 : -1;
    return (Lanes)((Ints)x & kept);
}

/* Fills out, unless it is null, with exp(x - top) and returns the sum, except of the element at `without`. The vectors
 * of a stretch are added to two sums alternately, and a partial one to the second. */
SHARED float powers(float *out, const float *x, float top, int64_t width, int64_t without) {
    double total = 0.0;
    STRETCHES {
        Lanes now = {0}, next = {0};
        int64_t i = start;
        for (; stop - i >= SEVERAL * LANES; i += SEVERAL * LANES) {
            Lanes some[SEVERAL];
            EACH some[k] = load_lanes(x + i + k * LANES) - top;
            exp_of_several(some);
            if (out) EACH store_lanes(out + i + k * LANES, some[k]);
            if (without >= i && without < i + SEVERAL * LANES)
                EACH some[k] = without_lane(some[k], without - i - k * LANES);
            now = (now + some[0]) + some[2];
            next = (next + some[1]) + some[3];
        }
        for (; stop - i >= LANES; i += LANES) {
            const Lanes sum = now + powers_of_some(out ? out + i : out, x + i, top, LANES, without - i);
            now = next;
            next = sum;
        }
        if (i < stop) {
            const Lanes rest = powers_of_some(out ? out + i : out, x + i, top, stop - i, without - i);
            if ((stop - start) / LANES % 2)
                now += rest;
            else
                next += rest;
        }
        total += sum_of_lanes(now + next);
    }
    return (float)total;
}

/* Loads the vectors that powers stored, which the processor can forward, unlike parts of them. */
INLINE void scale_row(float *x, float factor, int64_t width) {
    BY_VECTORS(LANES, 0, width, STORE(x, AT(x, 0.0f) * factor);)
}

KERNEL(softmax, float *restrict out, const float *restrict x, int64_t rows, int64_t width) {
    if (width < SHORT) return backburn_softmax_short_rows(out, x, rows, width);
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const float factor = 1.0f / powers(out, x, largest(x, width), width, -1);
        scale_row(out, factor, width);
    }
}

/* Whether shares add up to 1, as those of softmax do, even if rounded to bfloat16. */
INLINE int complete(double shares) { return shares > 0.996 && shares < 1.004; }

/* (grad - sum(grad y)) y for shares y. For a share above 1/2 the difference is the sum of those to the others'
 * gradients, weighted by their shares: 1 minus a share near 1 has few digits or none. */
KERNEL(softmax_backward, float *restrict out, const float *restrict grad, const float *restrict y,
       int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, grad += width, y += width, out += width) {
        if (!(largest(y, width) > 0.5f)) {
            const float product = (float)product_of(grad, y, width);
            LOOP for (int64_t i = 0; i < width; i++) out[i] = (grad[i] - product) * y[i];
            continue;
        }
        int64_t at = 0;
        while (!(y[at] > 0.5f)) at++;
        const int64_t next = at + 1, rest = width - next;
        const double others = product_of(grad, y, at) + product_of(grad + next, y + next, rest);
        const double shares = sum_of(y, at) + sum_of(y + next, rest);
        const float product = (float)((double)grad[at] * (double)y[at] + others);
        const float winning = (float)((double)grad[at] * shares - others) * y[at];
        const int wins = complete(shares + y[at]);
        LOOP for (int64_t i = 0; i < width; i++) out[i] = (grad[i] - product) * y[i];
        if (wins) out[at] = winning;
    }
}

KERNEL(log_softmax, float *restrict out, const float *restrict x, int64_t rows, int64_t width) {
    if (width < SHORT) return backburn_log_softmax_short_rows(out, x, rows, width);
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const float top = largest(x, width), logarithm = log_of(powers(0, x, top, width, -1));
        LOOP for (int64_t i = 0; i < width; i++) out[i] = (x[i] - top) - logarithm;
    }
}

KERNEL(logsumexp, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        const float top = largest(x, width), shift = fabsf(top) == INFINITY ? 0.0f : top;
        out[r] = log_of(powers(0, x, shift, width, -1)) + shift;
    }
}

KERNEL(log_softmax_backward, float *restrict out, const float *restrict grad, const float *restrict y,
       int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, grad += width, y += width, out += width) {
        if (!(largest(y, width) > -0.6931f)) {
            const float total = (float)sum_of(grad, width);
            LOOP for (int64_t i = 0; i < width; i++) out[i] = grad[i] - exp_of(y[i]) * total;
            continue;
        }
        int64_t at = 0; /* of a share above 1/2, as in softmax_backward */
        while (!(y[at] > -0.6931f)) at++;
        const double others = sum_of(grad, at) + sum_of(grad + at + 1, width - at - 1);
        const double shares = powers(0, y, 0.0f, width, at);
        const float total = (float)(others + grad[at]);
        const float winning = (float)(grad[at] * shares - exp_of(y[at]) * others);
        const int wins = complete(shares + exp_of(y[at]));
        LOOP for (int64_t i = 0; i < width; i++) out[i] = grad[i] - exp_of(y[i]) * total;
        if (wins) out[at] = winning;
    }
}

/* -log softmax(x)[label] of each row; labels are in range. */
KERNEL(label_cross_entropy, const float *restrict x, float *restrict out, const int64_t *restrict labels,
       int64_t rows, int64_t width) {
    if (width < SHORT) return backburn_cross_entropy_short_rows(x, out, labels, rows, width);
    for (int64_t r = 0; r < rows; r++, x += width) {
        const float top = largest(x, width);
        out[r] = loss_of(x[labels[r]], top, powers(0, x, top, width, labels[r]));
    }
}

KERNEL(label_cross_entropy_backward, float *restrict out, const float *restrict grads,
       const float *restrict x, const int64_t *restrict labels,
       int64_t rows, int64_t width) {
    if (width < SHORT) return backburn_cross_entropy_short_rows_backward(out, grads, x, labels, rows, width);
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const int64_t label = labels[r], next = label + 1;
        const float total = powers(out, x, largest(x, width), width, -1), factor = grads[r] / total;
        const int wins = 2.0f * out[label] > total; /* 1 minus its share has few digits or none */
        const double others = wins ? sum_of(out, label) + sum_of(out + next, width - next) : 0.0;
        scale_row(out, factor, width);
        out[label] = wins ? -factor * (float)others : out[label] - grads[r];
    }
}

/* ---- layer norm (centred) and RMS norm ---- */

/* Means and factors, 1 / sqrt(variance + eps), of rows that are computed together, and the numbers derived for
 * floats. */
enum { TOGETHER = 16 };
typedef struct {
    double means[TOGETHER], factors[TOGETHER];
    float origins[TOGETHER], firsts[TOGETHER], seconds[TOGETHER], shifts[TOGETHER];
} Moments;

/* The number of rows to compute next. Long rows come from memory, faster one by one. */
INLINE int together(int64_t rows, int64_t width) {
    const int64_t most = width * TOGETHER < 4096 ? TOGETHER : 1;
    return (int)(rows < most ? rows : most);
}

/* The mean is corrected by the mean of x - mean, its rounding error, which would show in rows of equal elements or far
 * from 0. */
INLINE double variance_of(double *exact_mean, const float *restrict x, int64_t width, int centred) {
    const double each = 1.0 / (double)width;
    const float mean = centred ? (float)(sum_of(x, width) * each) : 0.0f;
    double squares = 0.0, rest = 0.0;
    STRETCHES {
        Lanes parts[2] = {0}, rests[2] = {0};
        BY_VECTORS(LANES, start, stop, const Lanes centre = AT(x, mean) - mean; parts[turn] += centre * centre;
                   rests[turn] += centre;)
        squares += sum_of_lanes(parts[0] + parts[1]);
        rest += sum_of_lanes(rests[0] + rests[1]);
    }
    rest = centred ? rest * each : 0.0;
    *exact_mean = mean + rest;
    const double variance = squares * each - rest * rest;
    return 0.0 > variance ? 0.0 : variance;
}

/* Shorter rows are computed in doubles: subtracting mean and slope may cancel most digits of a gradient. Rows of 16 to
 * 31 elements take as long in doubles where vectors have 16 lanes. */
enum { FEW = LANES == 16 ? 32 : 16 };
INLINE double variance_of_few(double *exact_mean, const float *restrict x, int64_t width, int centred) {
    double mean = 0.0, squares = 0.0;
    for (int64_t i = 0; i < width; i++) mean += x[i];
    *exact_mean = mean = centred ? mean / (double)width : 0.0;
    for (int64_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
    return squares / (double)width;
}

/* In floats a standardized element is (x - origin) factor + shift. The factor is the sum of two floats. The origin is
 * the mean, or 0 where the mean is less than half a standard deviation: then x is not rounded before it is
 * multiplied. */
__attribute__((noinline)) static void moments_of(Moments *of, const float *restrict x, int rows, int64_t width,
                                                 double eps, int centred) {
    for (int r = 0; r < rows; r++)
        of->factors[r] = width < FEW ? variance_of_few(&of->means[r], x + r * width, width, centred)
                                     : variance_of(&of->means[r], x + r * width, width, centred);
    LOOP for (int r = 0; r < rows; r++) {
        const double mean = of->means[r], factor = 1.0 / sqrt(of->factors[r] + eps);
        const float first = (float)factor, origin = fabs(mean * factor) < 0.5 ? 0.0f : (float)mean;
        of->factors[r] = factor;
        of->firsts[r] = first;
        of->seconds[r] = (float)(factor - first);
        of->origins[r] = origin;
        of->shifts[r] = (float)((origin - mean) * factor);
    }
}

/* The origin, the two parts of the factor, and the shift of each row, for passes that standardize long rows. */
KERNEL(moments, float *restrict out, const float *restrict x, float eps, int centred, int64_t rows, int64_t width) {
    Moments of;
    for (int64_t count; rows; rows -= count, x += count * width) {
        count = rows < TOGETHER ? rows : TOGETHER;
        moments_of(&of, x, (int)count, width, eps, centred);
        for (int64_t r = 0; r < count; r++, out += 4) {
            const float numbers[] = {of.origins[r], of.firsts[r], of.seconds[r], of.shifts[r]};
            memcpy(out, numbers, sizeof numbers);
        }
    }
}

#define MOMENTS_float                                                                                                  \
    const float origin = of->origins[r], first = of->firsts[r], second = of->seconds[r], shift = of->shifts[r],        \
                factor = first
#define NORMAL_float(x) (((x) - origin) * first + (((x) - origin) * second + shift))
#define MOMENTS_double const double mean = of->means[r], factor = of->factors[r]
#define NORMAL_double(x) (((x) - mean) * factor)

/* scale and bias are rows, or null. */
#define STANDARDIZE(type)                                                                                              \
    INLINE void type##_standardize(float *restrict out, const float *restrict x, const float *restrict scale,          \
                                   const float *restrict bias, const Moments *of, int r, int64_t width) {              \
        MOMENTS_##type;                                                                                                \
        if (scale && bias) {                                                                                           \
            LOOP for (int64_t i = 0; i < width; i++) out[i] = (float)(NORMAL_##type(x[i]) * scale[i] + bias[i]);       \
        } else if (scale) {                                                                                            \
            LOOP for (int64_t i = 0; i < width; i++) out[i] = (float)(NORMAL_##type(x[i]) * scale[i]);                 \
        } else if (bias) {                                                                                             \
            LOOP for (int64_t i = 0; i < width; i++) out[i] = (float)(NORMAL_##type(x[i]) + bias[i]);                  \
        } else {                                                                                                       \
            LOOP for (int64_t i = 0; i < width; i++) out[i] = (float)NORMAL_##type(x[i]);                              \
        }                                                                                                              \
    }
STANDARDIZE(float)
STANDARDIZE(double)

/* Elements of an array that the L2 cache does not hold. The rows after those that are computed are then loaded into it:
 * while a row's sums are computed, nothing else would be. */
enum { MANY = 1 << 20, LINE = 16 };

INLINE void fetch(const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i += LINE) __builtin_prefetch(x + i, 0, 3);
}

INLINE void fetch_to_write(const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i += LINE) __builtin_prefetch(x + i, 1, 3);
}

INLINE void standardize(float *restrict out, const float *restrict x, const float *restrict scale,
                        const float *restrict bias, float eps, int centred, int64_t rows, int64_t width, int is_large) {
    Moments of;
    for (int count; rows; rows -= count) {
        count = together(rows, width);
        if (is_large) {
            fetch(x + count * width, count * width);
            fetch_to_write(out, count * width);
        }
        moments_of(&of, x, count, width, eps, centred);
        for (int r = 0; r < count; r++, x += width, out += width)
            if (width < FEW)
                double_standardize(out, x, scale, bias, &of, r, width);
            else
                float_standardize(out, x, scale, bias, &of, r, width);
    }
}

KERNEL(standardize, float *restrict out, const float *restrict x, const float *restrict scale,
       const float *restrict bias, float eps, int centred, int64_t rows, int64_t width) {
    standardize(out, x, scale, bias, eps, centred, rows, width, rows * width >= MANY);
}

typedef struct {
    float *out;
    const float *x, *scale, *bias;
    float eps;
    int centred, is_large;
    int64_t width;
} Standardize;

static void standardize_rows(const void *context, int64_t first, int64_t last) {
    const Standardize *s = context;
    const int64_t at = first * s->width;
    standardize(s->out + at, s->x + at, s->scale, s->bias, s->eps, s->centred, last - first, s->width, s->is_large);
}

KERNEL(parallel_standardize, float *out, const float *x, const float *scale, const float *bias, float eps,
       int centred, int64_t rows, int64_t width, int64_t grain, int threads) {
    const Standardize all = {out, x, scale, bias, eps, centred, rows * width >= MANY, width};
    backburn_pool_run(standardize_rows, &all, rows, grain, threads);
}

/* The sums of slope n and of slope = grad scale over a row; in squares, unless it is null, that of slope squared. */
INLINE void float_slopes(double *along, double *total, double *squares, const float *restrict grad,
                         const float *restrict x, const float *restrict scale, const Moments *of, int r,
                         int64_t width) {
    MOMENTS_float;
    (void)factor;
    STRETCHES {
        Lanes products[2] = {0}, slopes[2] = {0}, powers[2] = {0};
        BY_VECTORS(LANES, start, stop, const Lanes slope = AT(grad, 0.0f) * AT(scale, 0.0f); slopes[turn] += slope;
                   products[turn] += slope * NORMAL_float(AT(x, origin)); if (squares) powers[turn] += slope * slope;)
        *along += sum_of_lanes(products[0] + products[1]);
        *total += sum_of_lanes(slopes[0] + slopes[1]);
        if (squares) *squares += sum_of_lanes(powers[0] + powers[1]);
    }
}

INLINE void double_slopes(double *along, double *total, const float *restrict grad, const float *restrict x,
                          const float *restrict scale, const Moments *of, int r, int64_t width) {
    MOMENTS_double;
    for (int64_t i = 0; i < width; i++) {
        const double slope = (double)grad[i] * scale[i];
        *along += slope * NORMAL_double(x[i]);
        *total += slope;
    }
}

/* With n = (x - mean) factor, tilt = mean(grad scale n), level = mean(grad scale), or 0 unless centred:
 * out = factor (grad scale - n tilt - level). Adds grad n to sums. */
#define GRADIENT(type)                                                                                                 \
    INLINE void type##_row(float *restrict out, type *restrict sums, const float *restrict grad,                       \
                           const float *restrict x, const float *restrict scale, const Moments *of, int r,             \
                           type tilt, type level, int64_t width) {                                                     \
        MOMENTS_##type;                                                                                                \
        LOOP for (int64_t i = 0; i < width; i++) {                                                                     \
            const type n = NORMAL_##type(x[i]);                                                                        \
            out[i] = (float)(factor * (((type)grad[i] * scale[i] - level) - n * tilt));                                \
            sums[i] += grad[i] * n;                                                                                    \
        }                                                                                                              \
    }
GRADIENT(float)
GRADIENT(double)

INLINE void double_gradient(float *restrict out, double *restrict sums, const float *restrict grad,
                            const float *restrict x, const float *restrict scale, const Moments *of, int r, int centred,
                            int64_t width) {
    double along = 0.0, total = 0.0;
    double_slopes(&along, &total, grad, x, scale, of, r, width);
    double_row(out, sums, grad, x, scale, of, r, along / (double)width, centred ? total / (double)width : 0.0, width);
}

/* In narrower rows, mean and tilt may cancel most of the slopes; the gradient is then computed in doubles. */
enum { NARROW = 32 };
static const double MUCH = 0.4; /* of the sum of their squares */
INLINE void float_gradient(float *restrict out, float *restrict sums, const float *restrict grad,
                           const float *restrict x, const float *restrict scale, const Moments *of, int r, int centred,
                           int64_t width) {
    double along = 0.0, total = 0.0, squares = 0.0;
    if (width < NARROW)
        float_slopes(&along, &total, &squares, grad, x, scale, of, r, width);
    else
        float_slopes(&along, &total, NULL, grad, x, scale, of, r, width);
    const double each = 1.0 / (double)width, tilt = along * each, level = centred ? total * each : 0.0;
    float_row(out, sums, grad, x, scale, of, r, (float)tilt, (float)level, width);
    if (width < NARROW && along * tilt + total * level > MUCH * squares) {
        double unused[NARROW] = {0};
        double_gradient(out, unused, grad, x, scale, of, r, centred, width);
    }
}

/* The gradients in blocks first to last - 1, of `block` rows each; sums has a row for each block. */
KERNEL(standardize_backward, float *restrict out, float *restrict sums, const float *restrict grad,
       const float *restrict x, const float *restrict scale, float eps, int centred, int64_t block, int64_t rows,
       int64_t width, int64_t first, int64_t last) {
    Moments of;
    for (; first < last; first++) {
        const int64_t start = first * block, stop = rows - start < block ? rows : start + block;
        float *restrict some = sums + first * width;
        double exact[FEW] = {0};
        if (width >= FEW) memset(some, 0, (size_t)width * sizeof *some);
        for (int64_t row = start, count; row < stop; row += count) {
            count = together(stop - row, width);
            if (rows * width >= MANY) {
                fetch(x + (row + count) * width, count * width);
                fetch(grad + (row + count) * width, count * width);
                fetch_to_write(out + row * width, count * width);
            }
            moments_of(&of, x + row * width, (int)count, width, eps, centred);
            for (int r = 0; r < count; r++) {
                const int64_t at = (row + r) * width;
                if (width < FEW)
                    double_gradient(out + at, exact, grad + at, x + at, scale, &of, r, centred, width);
                else
                    float_gradient(out + at, some, grad + at, x + at, scale, &of, r, centred, width);
            }
        }
        for (int64_t i = 0; width < FEW && i < width; i++) some[i] = (float)exact[i];
    }
}

/* ---- attention ---- */

/* Replaces scores by attention weights: softmax of scale times a row, or 0 where all of it is minus infinity. Row r is
 * query first + r % queries; unless first is negative, attention is causal: a query sees keys up to its own index. */
KERNEL(attention_weights, float *restrict scores, float scale, int64_t first, int64_t queries,
       int64_t rows, int64_t keys) {
    for (int64_t r = 0; r < rows; r++, scores += keys) {
        const int64_t number = first + r % queries + 1, seen = first < 0 || number > keys ? keys : number;
        if (scale != 1.0f) LOOP for (int64_t i = 0; i < seen; i++) scores[i] *= scale;
        const float top = largest(scores, seen);
        const float shift = top == -INFINITY ? 0.0f : top;
        const float total = powers(scores, scores, shift, seen, -1);
        const float factor = total == 0.0f ? 0.0f : 1.0f / total;
        scale_row(scores, factor, seen);
        memset(scores + seen, 0, (size_t)(keys - seen) * sizeof *scores);
    }
}

/* Replaces the gradients of the weights by those of the unscaled scores. */
KERNEL(attention_scores, float *restrict grad, const float *restrict weights, float scale, int64_t rows,
       int64_t keys) {
    for (int64_t r = 0; r < rows; r++, grad += keys, weights += keys) {
        const float mean = (float)product_of(grad, weights, keys);
        LOOP for (int64_t i = 0; i < keys; i++) grad[i] = (grad[i] - mean) * weights[i] * scale;
    }
}
