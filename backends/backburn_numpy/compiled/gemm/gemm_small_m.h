/* Products of few rows. */
#ifndef BACKBURN_FEW_ROWS_H
#define BACKBURN_FEW_ROWS_H

/* The most rows together. */
enum { FEW = 4 };

/* out[n][r] = x[n] . w[r] scale, for count rows of x, at most FEW, and rows first to last - 1 of w. */
void backburn_few_by_rows(float *out, int64_t out_step, const float *x, int64_t x_step, const float *w, int64_t w_step,
                          int64_t inputs, float scale, int64_t count, int64_t first, int64_t last);

/* out[n] = the sum of x[n][k] w[k] over the rows k of w, for count rows of x, at most FEW. */
void backburn_few_by_columns(float *out, int64_t out_step, const float *x, int64_t x_step, const float *w,
                             int64_t w_step, int64_t depth, int64_t width, int64_t count);

#endif
