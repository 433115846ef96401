/* Direct convolutions: sums for a tile of output channels by positions stay in registers over all elements of the
 * windows. Only the image is copied; results at positions between rows are discarded. */
#define UNROLLED
#include "kernels.h"

#include "lanes.h"
#include "layout.h"

enum { CHANNELS = LANES > 8 ? 8 : 4, VECTORS = LANES > 4 ? 3 : 2, POSITIONS = LANES * VECTORS };

/* The sums at positions of some vectors of CHANNELS channels, y_step apart in y, of inputs x_step apart. Weights are
 * (inputs, elements, CHANNELS). */
INLINE void sum_vectors(float *restrict y, int64_t y_step, const float *restrict x, int64_t x_step,
                        const float *restrict weight, const int64_t *restrict offsets, int64_t inputs,
                        int64_t elements, const int vectors) {
    Lanes sums[CHANNELS][VECTORS] = {0};
    for (int64_t c = 0; c < inputs; c++, x += x_step)
        for (int64_t e = 0; e < elements; e++, weight += CHANNELS) {
            const float *at = x + offsets[e];
            Lanes values[VECTORS];
            for (int n = 0; n < vectors; n++) values[n] = lanes_at(at + n * LANES);
            for (int m = 0; m < CHANNELS; m++)
                for (int n = 0; n < vectors; n++) sums[m][n] += weight[m] * values[n];
        }
    for (int m = 0; m < CHANNELS; m++)
        for (int n = 0; n < vectors; n++) memcpy(y + m * y_step + n * LANES, &sums[m][n], sizeof(Lanes));
}

/* The same for the next positions of count that are left, as many as fit the registers. */
static void sum_tile(float *restrict y, int64_t y_step, const float *restrict x, int64_t x_step,
                     const float *restrict weight, const int64_t *restrict offsets, int64_t inputs, int64_t elements,
                     int64_t left) {
    if (left > 2 * LANES)
        sum_vectors(y, y_step, x, x_step, weight, offsets, inputs, elements, VECTORS);
    else if (left > LANES)
        sum_vectors(y, y_step, x, x_step, weight, offsets, inputs, elements, 2);
    else
        sum_vectors(y, y_step, x, x_step, weight, offsets, inputs, elements, 1);
}

/* Packs the weight of a group (outputs, depth) as (parts, depth, CHANNELS), padding the outputs with zeros; the
 * elements of the windows come in the order of the indices. */
static void pack(float *restrict packed, const float *restrict weight, const int64_t *restrict indices,
                 int64_t elements, const Geometry *g) {
    const int64_t depth = g->inputs * elements;
    for (int64_t first = 0; first < g->outputs; first += CHANNELS)
        for (int64_t k = 0; k < depth; k += elements)
            for (int64_t e = 0; e < elements; e++)
                for (int64_t m = first; m < first + CHANNELS; m++)
                    *packed++ = m < g->outputs ? weight[m * depth + k + indices[e]] : 0.0f;
}

/* Convolves x into out; bias may be null. Each block is rows of one example, at most `most`. memory is scratch for the
 * packed weight, the planes of the inputs and the outputs; table is that of a layout. */
KERNEL(conv_direct, float *restrict out, const float *restrict x, const float *restrict weight,
       const float *restrict bias, float *restrict memory, int64_t *restrict table, const Geometry *g,
       const Block *blocks, int64_t number, int64_t most) {
    const Layout of = layout_of(g, most, POSITIONS, table);
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements;
    const int64_t parts = (g->outputs + CHANNELS - 1) / CHANNELS, packed = parts * depth * CHANNELS;
    const int64_t plane = of.planes[0] * of.planes[1] * of.step;
    for (int64_t group = 0; group < g->groups; group++)
        pack(memory + group * packed, weight + group * g->outputs * depth, of.indices, elements, g);
    float *planes = memory + g->groups * packed, *restrict sums = planes + g->inputs * plane;
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t rows = b->last - b->first, count = rows * of.length, step = count + POSITIONS;
            const int64_t at = b->start * g->groups + group;
            for (int64_t c = 0; c < g->inputs; c++)
                lay_planes(planes + c * plane, x + (at * g->inputs + c) * g->height * g->width, g, &of, b->first, rows);
            for (int64_t part = 0; part < parts; part++) {
                const float *weights = memory + group * packed + part * depth * CHANNELS;
                for (int64_t p = 0; p < count; p += POSITIONS)
                    sum_tile(sums + p, step, planes + p, plane, weights, of.offsets, g->inputs, elements, count - p);
                for (int64_t m = part * CHANNELS; m < (part + 1) * CHANNELS && m < g->outputs; m++) {
                    const float plus = bias ? bias[group * g->outputs + m] : 0.0f;
                    const float *restrict from = sums + (m - part * CHANNELS) * step;
                    float *restrict to = out + ((at * g->outputs + m) * g->rows + b->first) * g->columns;
                    for (int64_t row = 0; row < rows; row++, from += of.length, to += g->columns)
                        LOOP for (int64_t i = 0; i < g->columns; i++) to[i] = from[i] + plus;
                }
            }
        }
}
