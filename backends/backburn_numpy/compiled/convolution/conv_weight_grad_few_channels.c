/* Gradients of the weights of convolutions with few channels in. Sums for a tile of elements of the windows by outputs
 * stay in registers over the positions of an example, a vector of them at a time, and their lanes are summed at the
 * end. */
#define UNROLLED
#include "runtime/kernels.h"

#include "runtime/simd.h"
#include "conv_layout.h"
#include "runtime/thread_pool.h"

enum { ELEMENTS = LANES > 8 ? 9 : 3, CHANNELS = 3 };

/* Keeps a loaded vector in a register: GCC would load it for each product, and Clang round products of partial ones. */
#if defined(__SSE2__)
#define IN_REGISTER(x) __asm__("" : "+v"(x))
#else
#define IN_REGISTER(x)
#endif

/* Adds to the sums the products at `left` positions from i on, at most a vector. */
INLINE void add_vector(Lanes sums[ELEMENTS][CHANNELS], const float *const x[ELEMENTS], const float *const y[CHANNELS],
                       int64_t i, const int64_t left) {
    Lanes slopes[CHANNELS];
    for (int m = 0; m < CHANNELS; m++) {
        slopes[m] = left == LANES ? load_lanes(y[m] + i) : load_some(y[m] + i, left, 0.0f);
        IN_REGISTER(slopes[m]);
    }
    for (int e = 0; e < ELEMENTS; e++) {
        Lanes value = left == LANES ? load_lanes(x[e] + i) : load_some(x[e] + i, left, 0.0f);
        IN_REGISTER(value);
        for (int m = 0; m < CHANNELS; m++) sums[e][m] += value * slopes[m];
    }
}

/* Adds to the sums at to, whose elements are LANES and whose channels to_stride apart, the products of the elements at
 * x and the channels at y at count positions. Only the first `elements` and `channels` of them are added. */
static void add_tile(float *restrict to, int64_t to_stride, const float *const x[ELEMENTS],
                     const float *const y[CHANNELS], int64_t count, int64_t elements, int64_t channels) {
    Lanes sums[ELEMENTS][CHANNELS];
    for (int e = 0; e < ELEMENTS; e++)
        for (int m = 0; m < CHANNELS; m++) sums[e][m] = (Lanes){0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) add_vector(sums, x, y, i, LANES);
    if (i < count) add_vector(sums, x, y, i, count - i);
    for (int m = 0; m < CHANNELS; m++)
        for (int e = 0; e < ELEMENTS; e++)
            if (m < channels && e < elements) {
                float *sum = to + m * to_stride + e * LANES;
                store_lanes(sum, load_lanes(sum) + sums[e][m]);
            }
}

/* What threads share: the operands, blocks in `parts` parts, channels of each that are summed at a time, and memory for
 * each thread. */
typedef struct {
    float *out;
    const float *x, *grad;
    float *memory;
    const Geometry *g;
    const Layout *of;
    const Block *blocks;
    int64_t size, number, parts, ranges, channels_per_task;
} Few;

/* A part of the blocks for a range of the channels. */
static void sum_part(const Few *f, int64_t part, int64_t first) {
    const Geometry *g = f->g;
    const Layout *of = f->of;
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements, positions = g->rows * g->columns;
    const int64_t plane = of->planes[0] * of->planes[1] * of->plane_stride, rest = g->outputs - first;
    const int64_t channels = rest < f->channels_per_task ? rest : f->channels_per_task;
    float *planes = f->memory + backburn_pool_place() * f->size, *sums = planes + g->inputs * plane;
    float *out = f->out + part * g->groups * g->outputs * depth;
    memset(sums, 0, (size_t)(g->groups * channels * depth * LANES) * sizeof *sums);
    for (const Block *b = f->blocks + f->number * part / f->parts; b < f->blocks + f->number * (part + 1) / f->parts; b++)
        for (int64_t at = b->start * g->groups; at < b->stop * g->groups; at++) {
            const int64_t group = at % g->groups, count = (b->last - b->first) * g->columns;
            for (int64_t c = 0; c < g->inputs; c++)
                lay_planes(planes + c * plane, f->x + (at * g->inputs + c) * g->height * g->width, g, of, b->first,
                           b->last - b->first);
            for (int64_t m = 0; m < channels; m += CHANNELS) {
                const float *y[CHANNELS];
                for (int i = 0; i < CHANNELS; i++) {
                    const int64_t channel = first + (m + i < channels ? m + i : m);
                    y[i] = f->grad + (at * g->outputs + channel) * positions + b->first * g->columns;
                }
                for (int64_t k = 0; k < depth; k += ELEMENTS) {
                    const float *from[ELEMENTS];
                    for (int i = 0; i < ELEMENTS; i++) {
                        const int64_t element = k + i < depth ? k + i : k;
                        from[i] = planes + element / elements * plane + of->offsets[element % elements];
                    }
                    add_tile(sums + ((group * channels + m) * depth + k) * LANES, depth * LANES, from, y, count,
                             depth - k, channels - m);
                }
            }
        }
    for (int64_t group = 0; group < g->groups; group++)
        for (int64_t m = 0; m < channels; m++)
            for (int64_t k = 0; k < depth; k++) {
                const int64_t element = k / elements * elements + of->indices[k % elements];
                const float *sum = sums + ((group * channels + m) * depth + k) * LANES;
                out[(group * g->outputs + first + m) * depth + element] = (float)sum_of_lanes(load_lanes(sum));
            }
}

static void sum_parts(const void *context, int64_t start, int64_t stop) {
    const Few *f = context;
    for (int64_t i = start; i < stop; i++) sum_part(f, i / f->ranges, i % f->ranges * f->channels_per_task);
}

/* The gradient of the weight, as a sum for each part of the blocks: (parts, groups, outputs, depth). Blocks have at
 * most `rows` rows; a thread takes outputs_per_task outputs of each group at a time. memory is scratch of the given
 * size for each thread, for the planes of the inputs and the sums; table that of a flat layout. */
KERNEL(conv_weight_few_channels, float *out, const float *x, const float *grad, float *memory, int64_t *restrict table,
       const Geometry *g, const Block *blocks, int64_t number, int64_t rows, int64_t size, int64_t parts,
       int64_t outputs_per_task, int threads) {
    const Layout of = layout_of(g, rows, LANES, table, 1);
    const int64_t ranges = (g->outputs + outputs_per_task - 1) / outputs_per_task;
    const Few all = {out, x, grad, memory, g, &of, blocks, size, number, parts, ranges, outputs_per_task};
    backburn_pool_run(sum_parts, &all, parts * ranges, 1, threads);
}
