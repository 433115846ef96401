/* Direct convolutions of stride 1: sums for a tile of output channels by positions stay in registers over all elements
 * of the windows. Only the image is copied, to padded rows, so that a window's elements have the same offsets at
 * every position; results at positions between rows are discarded. */
#define UNROLLED
#include "kernels.h"

#include "geometry.h"
#include "lanes.h"

enum { CHANNELS = LANES > 8 ? 8 : 4, VECTORS = LANES > 4 ? 3 : 2, POSITIONS = LANES * VECTORS };

/* The sums at POSITIONS positions of CHANNELS channels, y_step apart in y. Weights are (inputs, elements, CHANNELS). */
static void sum_tile(float *restrict y, int64_t y_step, const float *restrict x, const float *restrict weight,
                     const int64_t *restrict offsets, int64_t inputs, int64_t elements, int64_t plane) {
    Lanes sums[CHANNELS][VECTORS] = {0};
    for (int64_t c = 0; c < inputs; c++, x += plane)
        for (int64_t e = 0; e < elements; e++, weight += CHANNELS) {
            const float *at = x + offsets[e];
            Lanes values[VECTORS];
            for (int n = 0; n < VECTORS; n++) values[n] = lanes_at(at + n * LANES);
            for (int m = 0; m < CHANNELS; m++)
                for (int n = 0; n < VECTORS; n++) sums[m][n] += weight[m] * values[n];
        }
    for (int m = 0; m < CHANNELS; m++)
        for (int n = 0; n < VECTORS; n++) memcpy(y + m * y_step + n * LANES, &sums[m][n], sizeof(Lanes));
}

/* Packs the weight of a group (outputs, depth) as (parts, depth, CHANNELS), padding the outputs with zeros. */
static void lay_out(float *restrict packed, const float *restrict weight, int64_t outputs, int64_t depth) {
    for (int64_t first = 0; first < outputs; first += CHANNELS)
        for (int64_t k = 0; k < depth; k++)
            for (int64_t m = first; m < first + CHANNELS; m++)
                *packed++ = m < outputs ? weight[m * depth + k] : 0.0f;
}

/* Copies some rows of an image's channels to padded rows. */
static void lay_rows(float *restrict padded, const float *restrict x, const Geometry *g, int64_t first, int64_t height,
                     int64_t length) {
    const int64_t top = first - g->before[0], left = g->before[1];
    const int64_t from = left > 0 ? left : 0, to = g->width + left < length ? g->width + left : length;
    memset(padded, 0, (size_t)(g->inputs * height * length + POSITIONS) * sizeof *padded);
    for (int64_t c = 0; c < g->inputs; c++, x += g->height * g->width, padded += height * length)
        for (int64_t row = 0; row < height; row++)
            if (top + row >= 0 && top + row < g->height && from < to)
                memcpy(padded + row * length + from, x + (top + row) * g->width + from - left,
                       (size_t)(to - from) * sizeof *padded);
}

/* Convolves x into out; bias may be null. Each block is rows of one example. memory is scratch for the packed weight,
 * padded rows and outputs; offsets is scratch for those of a window's elements. */
KERNEL(conv_direct, float *restrict out, const float *restrict x, const float *restrict weight,
       const float *restrict bias, float *restrict memory, int64_t *restrict offsets,
       const Geometry *g, const Block *blocks, int64_t number) {
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements;
    const int64_t length = g->columns + (g->size[1] - 1) * g->dilation[1];
    const int64_t parts = (g->outputs + CHANNELS - 1) / CHANNELS, packed = parts * depth * CHANNELS;
    for (int64_t group = 0; group < g->groups; group++)
        lay_out(memory + group * packed, weight + group * g->outputs * depth, g->outputs, depth);
    for (int64_t e = 0; e < elements; e++)
        offsets[e] = e / g->size[1] * g->dilation[0] * length + e % g->size[1] * g->dilation[1];
    float *padded = memory + g->groups * packed;
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t rows = b->last - b->first, height = rows + (g->size[0] - 1) * g->dilation[0];
            const int64_t plane = height * length, count = rows * length, step = count + POSITIONS;
            const int64_t channel = b->start * g->groups + group;
            float *restrict y = padded + g->inputs * plane + POSITIONS;
            lay_rows(padded, x + channel * g->inputs * g->height * g->width, g, b->first, height, length);
            for (int64_t part = 0; part < parts; part++) {
                for (int64_t p = 0; p < count; p += POSITIONS)
                    sum_tile(y + p, step, padded + p, memory + group * packed + part * depth * CHANNELS, offsets,
                             g->inputs, elements, plane);
                for (int64_t m = part * CHANNELS; m < (part + 1) * CHANNELS && m < g->outputs; m++) {
                    const float plus = bias ? bias[group * g->outputs + m] : 0.0f;
                    const float *restrict from = y + (m - part * CHANNELS) * step;
                    float *restrict to = out + ((channel * g->outputs + m) * g->rows + b->first) * g->columns;
                    for (int64_t row = 0; row < rows; row++, from += length, to += g->columns)
                        LOOP for (int64_t i = 0; i < g->columns; i++) to[i] = from[i] + plus;
                }
            }
        }
}
