/* Products with at most MAX_M rows. */
#ifndef BACKBURN_GEMM_SMALL_M_H
#define BACKBURN_GEMM_SMALL_M_H

/* The most rows of x that are multiplied at a time. */
enum { MAX_M = 4 };

/* out[n][r] = x[n] . w[r] scale, for count rows of x, at most MAX_M, and rows first to last - 1 of w. */
void backburn_small_m_dot(float *out, int64_t out_stride, const float *x, int64_t x_stride, const float *w,
                          int64_t w_stride, int64_t inputs, float scale, int64_t count, int64_t first, int64_t last);

/* out[n] = the sum of x[n][k] w[k] over the rows k of w, for count rows of x, at most MAX_M. */
void backburn_small_m_axpy(float *out, int64_t out_stride, const float *x, int64_t x_stride, const float *w,
                           int64_t w_stride, int64_t depth, int64_t width, int64_t count);

#endif
