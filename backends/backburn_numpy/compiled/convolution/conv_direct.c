/* Direct convolutions: sums for a tile of output channels by positions stay in registers over all elements of the
 * windows. Only the image is copied; results at positions between rows are discarded. For the gradient of the weight,
 * sums for a tile of inputs by elements by outputs stay there over all positions of a block. */
#define UNROLLED
#include "runtime/kernels.h"

#include "runtime/simd.h"
#include "conv_layout.h"
#include "gemm/epilogue.h"
#include "runtime/thread_pool.h"

enum { CHANNELS = LANES > 8 ? 8 : 4, VECTORS = LANES > 4 ? 3 : 2, POSITIONS = LANES * VECTORS };

/* The sums at the next vectors of `left` positions, of channels y_stride apart in y; the first `outputs` channels are
 * stored, each plus an element of bias, which may be null. Inputs are x_stride apart, weights (inputs, elements,
 * channels). */
INLINE void sum_vectors(float *restrict y, int64_t y_stride, const float *restrict x, int64_t x_stride,
                        const float *restrict weight, const float *restrict bias, const int64_t *restrict offsets,
                        int64_t inputs, int64_t elements, int64_t outputs, int64_t left, const int channels,
                        const int vectors) {
    Lanes sums[CHANNELS][VECTORS];
    for (int m = 0; m < channels; m++)
        for (int n = 0; n < vectors; n++) sums[m][n] = (Lanes){0};
    for (int64_t c = 0; c < inputs; c++, x += x_stride)
        for (int64_t e = 0; e < elements; e++, weight += channels) {
            const float *at = x + offsets[e];
            Lanes values[VECTORS];
            for (int n = 0; n < vectors; n++) values[n] = load_lanes(at + n * LANES);
            for (int m = 0; m < channels; m++)
                for (int n = 0; n < vectors; n++) sums[m][n] += weight[m] * values[n];
        }
    for (int m = 0; m < channels; m++) {
        if (m >= outputs) continue;
        const float plus = bias ? bias[m] : 0.0f;
        for (int n = 0; n < vectors; n++)
            if (n < vectors - 1 || left >= vectors * LANES)
                store_lanes(y + m * y_stride + n * LANES, sums[m][n] + plus);
            else
                store_some(y + m * y_stride + n * LANES, left - n * LANES, sums[m][n] + plus);
    }
}

/* The sums at as many of the remaining positions as fit the registers. */
static void sum_tile(float *restrict y, int64_t y_stride, const float *restrict x, int64_t x_stride,
                     const float *restrict weight, const float *restrict bias, const int64_t *restrict offsets,
                     int64_t inputs, int64_t elements, int64_t outputs, int64_t left, int channels) {
#define OF(channels, vectors)                                                                                          \
    sum_vectors(y, y_stride, x, x_stride, weight, bias, offsets, inputs, elements, outputs, left, channels, vectors)
    if (left > 2 * LANES) channels == CHANNELS ? OF(CHANNELS, VECTORS) : OF(CHANNELS - 1, VECTORS);
    else if (left > LANES) channels == CHANNELS ? OF(CHANNELS, 2) : OF(CHANNELS - 1, 2);
    else channels == CHANNELS ? OF(CHANNELS, 1) : OF(CHANNELS - 1, 1);
#undef OF
}

/* The channels of a tile: CHANNELS, or one less if that takes no more tiles. */
INLINE int channels_of(const Geometry *g) {
    return g->outputs <= (g->outputs + CHANNELS - 1) / CHANNELS * (CHANNELS - 1) ? CHANNELS - 1 : CHANNELS;
}

/* Packs the weight of a group (outputs, depth) as (parts, depth, channels), padding the outputs with zeros; the
 * elements of the windows come in the order of the indices. A flipped one is that of a transposed convolution: (inputs,
 * outputs, elements), in reverse. */
static void pack(float *restrict packed, const float *restrict weight, const int64_t *restrict indices,
                 int64_t elements, const Geometry *g, int flipped) {
    const int64_t output_stride = flipped ? elements : g->inputs * elements;
    const int64_t input_stride = flipped ? g->outputs * elements : elements;
    const int channels = channels_of(g);
    for (int64_t first = 0; first < g->outputs; first += channels)
        for (int64_t c = 0; c < g->inputs; c++)
            for (int64_t e = 0; e < elements; e++) {
                const float *from = weight + c * input_stride + (flipped ? elements - 1 - indices[e] : indices[e]);
                for (int64_t m = first; m < first + channels; m++)
                    *packed++ = m < g->outputs ? from[m * output_stride] : 0.0f;
            }
}

/* What threads share: the operands, packed weights, scratch memory for each thread, and blocks of rows of the examples.
 * Results get the epilogue if `has_epilogue` (epilogue.h). */
typedef struct {
    float *out;
    const float *x, *weight, *bias, *mask;
    float *memory;
    const Geometry *g;
    const Layout *of;
    int64_t size, rows, blocks;
    int has_epilogue;
} Direct;

static void convolve(const void *context, int64_t start, int64_t stop) {
    const Direct *d = context;
    const Geometry *g = d->g;
    const Layout *of = d->of;
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements, positions = g->rows * g->columns;
    const int channels = channels_of(g);
    const int64_t parts = (g->outputs + channels - 1) / channels, packed = parts * depth * channels;
    const int64_t plane = of->planes[0] * of->planes[1] * of->plane_stride;
    float *planes = d->memory + backburn_pool_place() * d->size, *restrict sums = planes + g->inputs * plane;
    for (int64_t block = start; block < stop; block++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t at = block / d->blocks * g->groups + group, first = block % d->blocks * d->rows;
            const int64_t rows = g->rows - first < d->rows ? g->rows - first : d->rows, count = rows * of->length;
            for (int64_t c = 0; c < g->inputs; c++)
                lay_planes(planes + c * plane, d->x + (at * g->inputs + c) * g->height * g->width, g, of, first, rows);
            for (int64_t part = 0; part < parts; part++) {
                const float *weights = d->weight + group * packed + part * depth * channels;
                const float *bias = d->bias ? d->bias + group * g->outputs + part * channels : 0;
                const int64_t rest = g->outputs - part * channels, outputs = rest < channels ? rest : channels;
                float *to = d->out + (at * g->outputs + part * channels) * positions + first * g->columns;
                float *y = of->flat ? to : sums;
                for (int64_t p = 0; p < count; p += POSITIONS)
                    sum_tile(y + p, of->flat ? positions : count, planes + p, plane, weights, bias, of->offsets,
                             g->inputs, elements, outputs, count - p, channels);
                for (int64_t m = 0; m < outputs; m++, to += positions) {
                    const float *restrict from = sums + m * count;
                    for (int64_t row = 0; !of->flat && row < rows; row++, from += of->length)
                        LOOP for (int64_t i = 0; i < g->columns; i++) to[row * g->columns + i] = from[i];
                    if (d->has_epilogue)
                        backburn_epilogue(to, d->mask ? d->mask + (to - d->out) : NULL, rows * g->columns);
                }
            }
        }
}

/* Convolves x into out, `rows` rows of an example at a time; bias and mask may be null. memory is scratch for the
 * packed weight and, of the given size for each thread, for the planes of the inputs and the outputs; table is that of
 * a layout. */
KERNEL(conv_direct, float *out, const float *x, const float *weight, const float *bias, const float *mask,
       float *memory, int64_t *restrict table, const Geometry *g, int has_epilogue, int64_t examples, int64_t rows,
       int64_t size, int64_t grain, int flat, int flipped, int threads) {
    const Layout of = layout_of(g, rows, POSITIONS, table, flat);
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements;
    const int channels = channels_of(g);
    const int64_t packed = (g->outputs + channels - 1) / channels * channels * depth;
    for (int64_t group = 0; group < g->groups; group++)
        pack(memory + group * packed, weight + group * g->outputs * depth, of.indices, elements, g, flipped);
    const int64_t blocks = (g->rows + rows - 1) / rows;
    const Direct all = {out, x, memory, bias, mask, memory + g->groups * packed, g, &of, size, rows, blocks, has_epilogue};
    backburn_pool_run(convolve, &all, examples * blocks, grain, threads);
}

/* ---- the gradient of the weight ---- */

/* Sums of a tile stay in registers over the positions of a block: of elements of the windows by inputs, each times some
 * vectors of outputs. A position's gradients of all outputs are adjacent, so that a sum is a vector of them. */
enum { ELEMENTS = 3, INPUTS = LANES > 8 ? 4 : 2, OUTPUTS = 2 * LANES };

/* The layout of the inputs of a block: the strides in each direction. */
typedef struct {
    int64_t plane, example, row, column;
} Strides;

/* Adds to the sums at to, of `vectors` vectors each, the products of the gradients with INPUTS inputs at x and ELEMENTS
 * elements of their windows, in count examples of rows by columns. Gradients are OUTPUTS apart. */
INLINE void add_tile(float *const to[INPUTS][ELEMENTS], const float *const x[INPUTS],
                     const int64_t offsets[ELEMENTS], const float *restrict slopes, int64_t count, int64_t rows,
                     int64_t columns, const Strides *by, const int vectors) {
    Lanes sums[INPUTS][ELEMENTS][2] = {0};
    for (int64_t n = 0; n < count; n++)
        for (int64_t row = 0; row < rows; row++) {
            const int64_t start = n * by->example + row * by->row;
            for (int64_t i = 0; i < columns; i++, slopes += OUTPUTS) {
                Lanes slope[2];
                for (int v = 0; v < vectors; v++) slope[v] = load_lanes(slopes + v * LANES);
                for (int c = 0; c < INPUTS; c++)
                    for (int e = 0; e < ELEMENTS; e++) {
                        const float value = x[c][start + offsets[e] + i * by->column];
                        for (int v = 0; v < vectors; v++) sums[c][e][v] += value * slope[v];
                    }
            }
        }
    for (int c = 0; c < INPUTS; c++)
        for (int e = 0; e < ELEMENTS; e++)
            for (int v = 0; to[c][e] && v < vectors; v++) {
                const Lanes sum = load_lanes(to[c][e] + v * LANES) + sums[c][e][v];
                memcpy(to[c][e] + v * LANES, &sum, sizeof sum);
            }
}

/* The gradients of outputs from first on, up to `number`, side by side for each position; 0 where there are no more. */
static void lay_slopes(float *restrict to, const float *restrict grad, const Geometry *g, const Block *b, int64_t group,
                       int64_t first, int64_t number) {
    const int64_t plane = g->rows * g->columns, count = (b->last - b->first) * g->columns;
    const int64_t left = g->outputs - first < number ? g->outputs - first : number;
    for (int64_t n = b->start; n < b->stop; n++, to += count * OUTPUTS) {
        const float *from = grad + ((n * g->groups + group) * g->outputs + first) * plane + b->first * g->columns;
        for (int64_t i = 0; i < count; i += 4)
            for (int64_t m = 0; m < number; m += LANES) {
                float *target = to + i * OUTPUTS + m;
                if (m + LANES <= left && i + 4 <= count) {
                    Lanes columns[4];
                    load_columns(columns, from + m * plane + i, plane);
                    for (int k = 0; k < 4; k++) store_lanes(target + k * OUTPUTS, columns[k]);
                    continue;
                }
                for (int64_t k = 0; k < 4 && i + k < count; k++)
                    for (int64_t j = 0; j < LANES; j++)
                        target[k * OUTPUTS + j] = m + j < left ? from[(m + j) * plane + i + k] : 0.0f;
            }
    }
}

/* What threads share: the operands, blocks in `parts` parts, outputs of each group that are summed at a time, and
 * memory for each thread. Sums are (parts, groups, depth, width). */
typedef struct {
    float *out;
    const float *x, *grad;
    float *memory;
    const Geometry *g;
    const Block *blocks;
    int64_t size, number, width, parts, ranges, outputs_per_task;
} Weight;

/* A part of the blocks for outputs first to last - 1 of each group. */
static void sum_part(const Weight *w, int64_t part, int64_t first, int64_t last) {
    const Geometry *g = w->g;
    const int64_t elements = g->size[0] * g->size[1], width = w->width;
    float *memory = w->memory + backburn_pool_place() * w->size;
    float *out = w->out + part * g->groups * g->inputs * elements * width;
    const Block *end = w->blocks + w->number * (part + 1) / w->parts;
    for (const Block *b = w->blocks + w->number * part / w->parts; b < end; b++) {
        const int64_t rows = b->last - b->first, count = b->stop - b->start;
        const int64_t height = (rows - 1) * g->stride[0] + (g->size[0] - 1) * g->dilation[0] + 1;
        const int64_t length = (g->columns - 1) * g->stride[1] + (g->size[1] - 1) * g->dilation[1] + 1;
        const Strides by = {height * length, g->inputs * height * length, g->stride[0] * length, g->stride[1]};
        float *slopes = memory + count * by.example;
        for (int64_t group = 0; group < g->groups; group++) {
            for (int64_t n = 0; n < count; n++)
                for (int64_t c = 0; c < g->inputs; c++) {
                    const int64_t at = ((b->start + n) * g->groups + group) * g->inputs + c;
                    lay_out(memory + n * by.example + c * by.plane, height, length, w->x + at * g->height * g->width,
                            g->height, g->width, b->first * g->stride[0] - g->before[0], 1, -g->before[1], 1, 0);
                }
            for (int64_t m = first; m < last; m += OUTPUTS) { /* not to the width, which may be a tile more */
                const int vectors = last - m > LANES ? 2 : 1;
                lay_slopes(slopes, w->grad, g, b, group, m, vectors * LANES);
                for (int64_t c = 0; c < g->inputs; c += INPUTS)
                    for (int64_t e = 0; e < elements; e += ELEMENTS) {
                        float *to[INPUTS][ELEMENTS];
                        const float *from[INPUTS];
                        int64_t offsets[ELEMENTS];
                        for (int j = 0; j < ELEMENTS; j++) {
                            const int64_t at = e + j < elements ? e + j : e;
                            offsets[j] = at / g->size[1] * g->dilation[0] * length + at % g->size[1] * g->dilation[1];
                        }
                        for (int i = 0; i < INPUTS; i++) {
                            const int64_t depth = (group * g->inputs + c + i) * elements + e;
                            from[i] = memory + (c + i < g->inputs ? c + i : c) * by.plane;
                            for (int j = 0; j < ELEMENTS; j++)
                                to[i][j] = c + i < g->inputs && e + j < elements ? out + (depth + j) * width + m : 0;
                        }
                        if (vectors == 2)
                            add_tile(to, from, offsets, slopes, count, rows, g->columns, &by, 2);
                        else
                            add_tile(to, from, offsets, slopes, count, rows, g->columns, &by, 1);
                    }
            }
        }
    }
}

static void sum_parts(const void *context, int64_t start, int64_t stop) {
    const Weight *w = context;
    for (int64_t i = start; i < stop; i++) {
        const int64_t first = i % w->ranges * w->outputs_per_task, rest = w->g->outputs - first;
        sum_part(w, i / w->ranges, first, rest < w->outputs_per_task ? w->g->outputs : first + w->outputs_per_task);
    }
}

/* Adds the gradient of the weight, as a sum for each part of the blocks, to out: (parts, groups, depth, width), of
 * which the first outputs are wanted. A thread takes outputs_per_task at a time; it and width are multiples of LANES.
 * memory is scratch of the given size for each thread, for the padded inputs and the gradients of a block. */
KERNEL(conv_weight_direct, float *out, const float *x, const float *grad, float *memory, const Geometry *g,
       const Block *blocks, int64_t number, int64_t size, int64_t width, int64_t parts, int64_t outputs_per_task,
       int threads) {
    const int64_t ranges = (g->outputs + outputs_per_task - 1) / outputs_per_task;
    const Weight all = {out, x, grad, memory, g, blocks, size, number, width, parts, ranges, outputs_per_task};
    backburn_pool_run(sum_parts, &all, parts * ranges, 1, threads);
}

/* ---- small images ---- */

/* Here rows of equal length would waste too much. Sums of a tile of PIECES pieces of rows, ACROSS positions each, by
 * vectors of outputs stay in registers over all elements of the windows. */
enum { PIECES = 3, ACROSS = LANES > 8 ? 4 : 2 };

/* The sums for pieces that begin at x. Weights are (inputs, elements, OUTPUTS), sums OUTPUTS apart. */
INLINE void sum_pieces(float *const to[PIECES], const float *const x[PIECES], const float *restrict weight,
                       const int64_t *restrict offsets, int64_t inputs, int64_t elements, const Strides *by,
                       const int vectors) {
    Lanes sums[PIECES][ACROSS][2] = {0};
    for (int64_t c = 0; c < inputs; c++)
        for (int64_t e = 0; e < elements; e++, weight += OUTPUTS) {
            const int64_t at = c * by->plane + offsets[e];
            Lanes some[2];
            for (int v = 0; v < vectors; v++) some[v] = load_lanes(weight + v * LANES);
            for (int p = 0; p < PIECES; p++)
                for (int i = 0; i < ACROSS; i++) {
                    const float value = x[p][at + i * by->column];
                    for (int v = 0; v < vectors; v++) sums[p][i][v] += value * some[v];
                }
        }
    for (int p = 0; p < PIECES; p++)
        for (int i = 0; i < ACROSS; i++)
            for (int v = 0; v < vectors; v++) memcpy(to[p] + i * OUTPUTS + v * LANES, &sums[p][i][v], sizeof(Lanes));
}

/* The weights of outputs from first on, side by side for each element of a window: (inputs, elements, OUTPUTS), 0 where
 * there are no more. Flipped ones are those of a transposed convolution: (inputs, outputs, elements), in reverse. */
static void lay_weights(float *restrict to, const float *restrict weight, const Geometry *g, int64_t first,
                        int flipped) {
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements;
    const int64_t left = g->outputs - first < OUTPUTS ? g->outputs - first : OUTPUTS;
    const int64_t most = flipped ? elements : 16; /* a cache line: those of all outputs may be in one set */
    for (int64_t k = 0; k < depth; k += most) {
        const int64_t end = k + most < depth ? k + most : depth;
        for (int64_t m = 0; m < left; m++)
            if (flipped) {
                const float *last = weight + (k / elements * g->outputs + first + m + 1) * elements - 1;
                for (int64_t i = k; i < end; i++) to[i * OUTPUTS + m] = last[k - i];
            } else {
                const float *from = weight + (first + m) * depth;
                for (int64_t i = k; i < end; i++) to[i * OUTPUTS + m] = from[i];
            }
        for (int64_t m = left; m < OUTPUTS; m++)
            for (int64_t i = k; i < end; i++) to[i * OUTPUTS + m] = 0.0f;
    }
}

/* Fills the outputs from first on, `left` of them, with the sums of an example's positions and the bias. */
static void put_sums(float *restrict out, const float *restrict sums, const float *restrict bias, const Geometry *g,
                     const Block *b, int64_t first, int64_t left, int64_t positions) {
    for (int64_t n = b->start; n < b->stop; n++, sums += positions * OUTPUTS)
        for (int64_t m = 0; m < left; m++) {
            const float plus = bias ? bias[first + m] : 0.0f;
            float *restrict to = out + ((n * g->groups * g->outputs + first + m) * g->rows + b->first) * g->columns;
            for (int64_t i = 0; i < positions; i++) to[i] = sums[i * OUTPUTS + m] + plus;
        }
}

/* Convolves x into out, whose rows have ACROSS positions or more; bias may be null. memory is scratch for the weights
 * of a group, the padded inputs and the sums of a block; offsets for those of a window's elements. */
KERNEL(conv_small, float *restrict out, const float *restrict x, const float *restrict weight,
       const float *restrict bias, float *restrict memory, int64_t *restrict offsets, const Geometry *g, int flipped,
       const Block *blocks, int64_t number) {
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements;
    const int64_t length = (g->columns - 1) * g->stride[1] + (g->size[1] - 1) * g->dilation[1] + 1;
    const int64_t pieces = (g->columns + ACROSS - 1) / ACROSS, parts = (g->outputs + OUTPUTS - 1) / OUTPUTS;
    float *planes = memory + parts * depth * OUTPUTS;
    for (int64_t e = 0; e < elements; e++)
        offsets[e] = e / g->size[1] * g->dilation[0] * length + e % g->size[1] * g->dilation[1];
    for (int64_t group = 0; group < g->groups; group++) {
        for (int64_t part = 0; part < parts; part++)
            lay_weights(memory + part * depth * OUTPUTS, weight + group * g->outputs * depth, g, part * OUTPUTS,
                        flipped);
        for (const Block *b = blocks; b < blocks + number; b++) {
            const int64_t rows = b->last - b->first, count = b->stop - b->start, all = count * rows * pieces;
            const int64_t height = (rows - 1) * g->stride[0] + (g->size[0] - 1) * g->dilation[0] + 1;
            const Strides by = {height * length, g->inputs * height * length, g->stride[0] * length, g->stride[1]};
            float *sums = planes + count * by.example;
            for (int64_t n = 0; n < count * g->inputs; n++) {
                const int64_t at = ((b->start + n / g->inputs) * g->groups + group) * g->inputs + n % g->inputs;
                lay_out(planes + n * by.plane, height, length, x + at * g->height * g->width, g->height, g->width,
                        b->first * g->stride[0] - g->before[0], 1, -g->before[1], 1, 0);
            }
            for (int64_t part = 0; part < parts; part++) {
                const float *weights = memory + part * depth * OUTPUTS;
                const int64_t first = part * OUTPUTS, rest = g->outputs - first, left = rest < OUTPUTS ? rest : OUTPUTS;
                for (int64_t t = 0; t < all; t += PIECES) {
                    float *to[PIECES];
                    const float *from[PIECES];
                    for (int p = 0; p < PIECES; p++) {
                        const int64_t piece = t + p < all ? t + p : all - 1, line = piece / pieces;
                        const int64_t next = piece % pieces * ACROSS, last = g->columns - ACROSS;
                        const int64_t column = next < last ? next : last; /* pieces may overlap */
                        to[p] = sums + (line * g->columns + column) * OUTPUTS;
                        from[p] = planes + line / rows * by.example + line % rows * by.row + column * by.column;
                    }
                    if (left > LANES)
                        sum_pieces(to, from, weights, offsets, g->inputs, elements, &by, 2);
                    else
                        sum_pieces(to, from, weights, offsets, g->inputs, elements, &by, 1);
                }
                put_sums(out, sums, bias, g, b, group * g->outputs + first, left, rows * g->columns);
            }
        }
    }
}
