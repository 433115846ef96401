/* Steps of LSTMs and GRUs, between the products with their weights, of the type REAL. Included once for each type. */

/* gates holds, for each row, the pre-activations of input gate, forget gate, candidate and output gate without the
 * projected input and the bias (which may be null), and is overwritten with the activations. */
KERNEL(lstm_step, REAL *restrict gates, REAL *restrict hidden, REAL *restrict new_cell,
       const REAL *restrict cell, const REAL *restrict projected,
       const REAL *restrict bias, int64_t rows, int64_t size) {
    for (int64_t row = 0; row < rows; row++) {
        REAL *restrict i = gates + 4 * size * row, *f = i + size, *g = f + size, *o = g + size;
        const REAL *p = projected + 4 * size * row;
        if (bias) {
            LOOP for (int64_t j = 0; j < 4 * size; j++) i[j] = i[j] + (p[j] + bias[j]);
        } else {
            LOOP for (int64_t j = 0; j < 4 * size; j++) i[j] = i[j] + p[j];
        }
        LOOP for (int64_t j = 0; j < 2 * size; j++) i[j] = SIGMOID_OF(i[j]);
        LOOP for (int64_t j = 0; j < size; j++) {
            const int64_t at = size * row + j;
            const REAL candidate = TANH_OF(g[j]), opened = SIGMOID_OF(o[j]), next = f[j] * cell[at] + i[j] * candidate;
            g[j] = candidate;
            o[j] = opened;
            new_cell[at] = next;
            hidden[at] = opened * TANH_OF(next);
        }
    }
}

INLINE REAL NAMED(under_sigmoid)(REAL y) { return y * (1 - y); }
INLINE REAL NAMED(under_tanh)(REAL y) { return FUSED(-y, y, 1); }

INLINE void NAMED(add)(REAL *restrict sum, const REAL *restrict more, int64_t count) {
    if (more) {
        LOOP for (int64_t j = 0; j < count; j++) sum[j] += more[j];
    }
}

/* grad_sums gets the gradients of the pre-activations. grad_hidden and grad_cell hold the gradients of the new states
 * from later steps; grad_cell is overwritten with the gradient of the previous cell state. g_* may be null. */
KERNEL(lstm_step_backward, REAL *restrict grad_sums, REAL *restrict grad_cell, REAL *restrict grad_hidden,
       const REAL *restrict g_hidden, const REAL *restrict g_cell,
       const REAL *restrict g_gates, const REAL *restrict cell,
       const REAL *restrict new_cell, const REAL *restrict gates, int64_t rows,
       int64_t size) {
    NAMED(add)(grad_hidden, g_hidden, rows * size);
    NAMED(add)(grad_cell, g_cell, rows * size);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t wide = 4 * size * row;
        const REAL *i = gates + wide, *f = i + size, *g = f + size, *o = g + size;
        REAL *grad_i = grad_sums + wide, *grad_f = grad_i + size, *grad_g = grad_f + size, *grad_o = grad_g + size;
        if (g_gates) {
            memcpy(grad_i, g_gates + wide, 4 * size * sizeof *grad_i);
        } else {
            memset(grad_i, 0, 4 * size * sizeof *grad_i);
        }
        LOOP for (int64_t j = 0; j < size; j++) {
            const int64_t at = size * row + j;
            const REAL state = TANH_OF(new_cell[at]), through = grad_hidden[at];
            const REAL total = grad_cell[at] + through * o[j] * NAMED(under_tanh)(state);
            grad_i[j] = (grad_i[j] + total * g[j]) * NAMED(under_sigmoid)(i[j]);
            grad_f[j] = (grad_f[j] + total * cell[at]) * NAMED(under_sigmoid)(f[j]);
            grad_g[j] = (grad_g[j] + total * i[j]) * NAMED(under_tanh)(g[j]);
            grad_o[j] = (grad_o[j] + through * state) * NAMED(under_sigmoid)(o[j]);
            grad_cell[at] = total * f[j];
        }
    }
}

/* products holds, for each row, those of reset gate, update gate and candidate without the bias (which may be null).
 * gates gets the activations of the three, and the candidate's product with its bias. */
KERNEL(gru_step, REAL *restrict gates, REAL *restrict state, const REAL *restrict old, const REAL *restrict products,
       const REAL *restrict projected, const REAL *restrict bias, int64_t rows, int64_t size) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *r = products + 3 * size * row, *p = projected + 3 * size * row;
        REAL *restrict reset = gates + 4 * size * row, *update = reset + size, *new = update + size, *inner = new + size;
        if (bias) {
            LOOP for (int64_t j = 0; j < 2 * size; j++) reset[j] = SIGMOID_OF(p[j] + (r[j] + bias[j]));
            LOOP for (int64_t j = 0; j < size; j++) inner[j] = r[2 * size + j] + bias[2 * size + j];
        } else {
            LOOP for (int64_t j = 0; j < 2 * size; j++) reset[j] = SIGMOID_OF(p[j] + r[j]);
            LOOP for (int64_t j = 0; j < size; j++) inner[j] = r[2 * size + j];
        }
        LOOP for (int64_t j = 0; j < size; j++) {
            const int64_t at = size * row + j;
            const REAL candidate = TANH_OF(p[2 * size + j] + reset[j] * inner[j]);
            new[j] = candidate;
            state[at] = candidate + update[j] * (old[at] - candidate);
        }
    }
}

/* grad_projected and grad_products get the gradients of both sums. grad_state holds the gradient of the new state from
 * later steps, and is overwritten with the gradient of the old state, without its part through the product.
 * g_* may be null. */
KERNEL(gru_step_backward, REAL *restrict grad_projected, REAL *restrict grad_products, REAL *restrict grad_state,
       const REAL *restrict g_state, const REAL *restrict g_gates, const REAL *restrict old,
       const REAL *restrict gates, int64_t rows, int64_t size) {
    NAMED(add)(grad_state, g_state, rows * size);
    for (int64_t row = 0; row < rows; row++) {
        const REAL *reset = gates + 4 * size * row, *update = reset + size, *new = update + size, *inner = new + size;
        REAL *restrict grad_p = grad_projected + 3 * size * row, *restrict grad_r = grad_products + 3 * size * row;
        const REAL *g = g_gates ? g_gates + 4 * size * row : 0;
        LOOP for (int64_t j = 0; j < size; j++) {
            const int64_t at = size * row + j;
            const REAL later = grad_state[at];
            const REAL g_reset = g ? g[j] : 0, g_update = g ? g[size + j] : 0;
            const REAL g_new = g ? g[2 * size + j] : 0, g_inner = g ? g[3 * size + j] : 0;
            const REAL grad_new = (later - later * update[j] + g_new) * NAMED(under_tanh)(new[j]);
            grad_p[j] = grad_r[j] = (grad_new * inner[j] + g_reset) * NAMED(under_sigmoid)(reset[j]);
            grad_p[size + j] = grad_r[size + j] = (later * (old[at] - new[j]) + g_update) * NAMED(under_sigmoid)(update[j]);
            grad_p[2 * size + j] = grad_new;
            grad_r[2 * size + j] = grad_new * reset[j] + g_inner;
            grad_state[at] = later * update[j];
        }
    }
}
