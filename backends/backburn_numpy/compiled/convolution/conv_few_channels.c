/* Convolutions with one channel in and few out. A sum over the elements of the windows stays in registers; those at
 * positions between rows are discarded, or are 0. */
#define UNROLLED
#include "runtime/kernels.h"

#include "runtime/simd.h"
#include "conv_layout.h"
#include "conv_few_channels.h"

enum { VECTORS = 4, TILE = LANES * VECTORS, TOGETHER = 4, VECTORS_TOGETHER = 2 };

/* Adds to x the elements of the planes, at the places from which lay_out copies them. */
static void add_back(float *restrict x, int64_t height, int64_t width, int64_t top, int64_t row_stride, int64_t first,
                     int64_t stride, const float *restrict from, int64_t rows, int64_t length) {
    int64_t start, end;
    inside(first, stride, width, length, &start, &end);
    for (int64_t row = 0; row < rows; row++, from += length) {
        const int64_t at = top + row * row_stride;
        if (at < 0 || at >= height) continue;
        float *restrict target = x + at * width + first;
        if (stride == 1)
            LOOP for (int64_t i = start; i < end; i++) target[i] += from[i];
        else if (stride == 2)
            LOOP for (int64_t i = start; i < end; i++) target[i * 2] += from[i];
        else
            for (int64_t i = start; i < end; i++) target[i * stride] += from[i];
    }
}

/* Sums over count elements of a window, at these offsets after x (sign 1) or before it (-1), at the positions of a
 * tile. */
INLINE void sum_tile(float *restrict y, const float *restrict x, const int64_t sign, const float *restrict weight,
                     const int64_t *restrict offsets, const int64_t *restrict indices, int64_t count) {
    Lanes sums[VECTORS] = {0};
    for (int64_t e = 0; e < count; e++) {
        const float by = weight[indices[e]], *at = x + sign * offsets[e];
        for (int v = 0; v < VECTORS; v++) sums[v] += by * load_lanes(at + v * LANES);
    }
    for (int v = 0; v < VECTORS; v++) memcpy(y + v * LANES, &sums[v], sizeof(Lanes));
}

/* Adds to each weight the sum over all positions of its element times y, which is 0 from count on. */
static void sum_products(float *restrict weight, const float *restrict x, const float *restrict y, int64_t count,
                         const int64_t *restrict offsets, const int64_t *restrict indices, int64_t number) {
    for (int64_t e = 0; e < number; e += TOGETHER) {
        Lanes sums[TOGETHER][VECTORS_TOGETHER] = {0};
        const float *at[TOGETHER];
        for (int n = 0; n < TOGETHER; n++) at[n] = x + offsets[e + n < number ? e + n : number - 1];
        for (int64_t k = 0; k < count; k += VECTORS_TOGETHER * LANES)
            for (int v = 0; v < VECTORS_TOGETHER; v++) {
                const Lanes slope = load_lanes(y + k + v * LANES);
                for (int n = 0; n < TOGETHER; n++) sums[n][v] += slope * load_lanes(at[n] + k + v * LANES);
            }
        for (int n = 0; n < TOGETHER && e + n < number; n++) {
            const Lanes sum = sums[n][0] + sums[n][1];
            float total = 0.0f;
            for (int i = 0; i < LANES; i++) total += sum[i];
            weight[indices[e + n]] += total;
        }
    }
}

/* Processes one plane of outputs, rows from first on, and one of the image, or its copies in planes. */
static void convolve_plane(float *restrict image, float *restrict planes, float *restrict outputs,
                           float *restrict copy, float *restrict weight, float start, const Geometry *g,
                           const Layout *of, int64_t first, int64_t rows, enum Direction direction) {
    const int64_t length = of->length, count = rows * length, height = rows + of->reach[0];
    const int64_t number = of->planes[0] * of->planes[1];
    float *restrict y = copy + of->margin;
    if (direction == TO_OUTPUTS) {
        for (int64_t k = 0; k < count; k += TILE)
            sum_tile(y + k, planes + k, 1, weight, of->offsets, of->indices, of->starts[number]);
        float *restrict to = outputs + first * g->columns;
        for (int64_t row = 0; row < rows; row++, y += length, to += g->columns)
            LOOP for (int64_t i = 0; i < g->columns; i++) to[i] = y[i] + start;
        return;
    }
    lay_out(y, rows, length, outputs, g->rows, g->columns, first, 1, 0, 1, of->margin + of->slack);
    for (int64_t plane = 0; plane < number; plane++) {
        const int64_t at = of->starts[plane], elements = of->starts[plane + 1] - at;
        const int64_t top = first * g->stride[0] - g->before[0] + plane / of->planes[1];
        const int64_t left = plane % of->planes[1] - g->before[1], row_stride = g->stride[0];
        if (direction == TO_WEIGHT) {
            sum_products(weight, planes, y, count, of->offsets + at, of->indices + at, elements);
            continue;
        }
        if (!elements) continue;
        for (int64_t k = 0; k < height * length; k += TILE)
            sum_tile(planes + k, y + k + plane * of->plane_stride, -1, weight, of->offsets + at, of->indices + at,
                     elements);
        add_back(image, g->height, g->width, top, row_stride, left, g->stride[1], planes, height, length);
    }
}

void conv_few_channels(float *image, float *outputs, float *weight, const float *bias, float *memory, float *table,
                       const Geometry *g, const Block *blocks, int64_t number, enum Direction direction) {
    const Layout of = layout_of(g, g->rows, TILE, (int64_t *)(void *)table, 0);
    const int64_t elements = g->size[0] * g->size[1], plane = g->height * g->width, positions = g->rows * g->columns;
    float *copy = memory + of.planes[0] * of.planes[1] * of.plane_stride;
    memset(copy, 0, (size_t)of.margin * sizeof *copy);
    for (const Block *b = blocks; b < blocks + number; b++) {
        const int64_t rows = b->last - b->first;
        for (int64_t at = b->start * g->groups; at < b->stop * g->groups; at++) {
            const int64_t group = at % g->groups;
            float *x = image + at * plane;
            if (direction != TO_IMAGE) {
                lay_planes(memory, x, g, &of, b->first, rows);
            } else if (b->first == 0) {
                const float start = bias ? bias[group] : 0.0f;
                LOOP for (int64_t k = 0; k < plane; k++) x[k] = start;
            }
            for (int64_t c = 0; c < g->outputs; c++) {
                const int64_t channel = group * g->outputs + c;
                const float start = bias && direction == TO_OUTPUTS ? bias[channel] : 0.0f;
                convolve_plane(x, memory, outputs + (at * g->outputs + c) * positions, copy,
                               weight + channel * elements, start, g, &of, b->first, rows, direction);
            }
        }
    }
}
