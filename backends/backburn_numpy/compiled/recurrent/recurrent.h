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
/* The slope of tanh at x, also accurate where tanh(x) rounds to 1 or -1. */
INLINE REAL NAMED(slope_of_tanh)(REAL x) {
    const REAL e = EXP_OF(x < 0 ? 2 * x : -2 * x), above = 1 / (1 + e);
    return 4 * e * above * above;
}

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
            const REAL total = grad_cell[at] + through * o[j] * NAMED(slope_of_tanh)(new_cell[at]);
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
    const int given = g_gates != 0;
    NAMED(add)(grad_state, g_state, rows * size);
    for (int64_t row = 0; row < rows; row++) {
        const REAL *reset = gates + 4 * size * row, *update = reset + size, *new = update + size, *inner = new + size;
        REAL *restrict grad_p = grad_projected + 3 * size * row, *restrict grad_r = grad_products + 3 * size * row;
        /* A vector's masked loads of an address that is not mapped, such as null, take hundreds of cycles. */
        const REAL *g = (g_gates ? g_gates : gates) + 4 * size * row;
        LOOP for (int64_t j = 0; j < size; j++) {
            const int64_t at = size * row + j;
            const REAL later = grad_state[at];
            const REAL g_reset = given ? g[j] : 0, g_update = given ? g[size + j] : 0;
            const REAL g_new = given ? g[2 * size + j] : 0, g_inner = given ? g[3 * size + j] : 0;
            const REAL grad_new = (later - later * update[j] + g_new) * NAMED(under_tanh)(new[j]);
            grad_p[j] = grad_r[j] = (grad_new * inner[j] + g_reset) * NAMED(under_sigmoid)(reset[j]);
            grad_p[size + j] = grad_r[size + j] = (later * (old[at] - new[j]) + g_update) * NAMED(under_sigmoid)(update[j]);
            grad_p[2 * size + j] = grad_new;
            grad_r[2 * size + j] = grad_new * reset[j] + g_inner;
            grad_state[at] = later * update[j];
        }
    }
}

/* ---- all steps, with rows shared among threads; where libraries multiply faster, steps are called one by one ---- */
#if defined(__AVX__)

void NAMED(gemm_pack)(REAL *packed, const REAL *b, int64_t n, int64_t k, int64_t rs_b, int64_t cs_b, int threads);
void NAMED(gemm_packed)(REAL *c, const REAL *a, const REAL *packed, int64_t m, int64_t n, int64_t k, int accumulates);

/* Operands of all steps; hidden and cell are the initial states. cells is null for GRUs, products for LSTMs. */
typedef struct {
    REAL *gates, *hiddens, *cells, *products;
    const REAL *projected, *hidden, *cell, *bias, *packed;
    int64_t steps, rows, size;
} NAMED(Sequence);

static void NAMED(run_steps)(const void *context, int64_t first, int64_t last) {
    const NAMED(Sequence) *s = context;
    const int64_t rows = s->rows, size = s->size, count = last - first;
    for (int64_t t = 0; t < s->steps; t++) {
        const int64_t at = t * rows + first;
        REAL *gates = s->gates + 4 * size * at, *hidden = s->hiddens + size * at;
        const REAL *before = t ? hidden - size * rows : s->hidden + size * first;
        if (s->cells) {
            REAL *cell = s->cells + size * at;
            const REAL *old = t ? cell - size * rows : s->cell + size * first;
            NAMED(gemm_packed)(gates, before, s->packed, count, 4 * size, size, 0);
            NAMED(lstm_step)(gates, hidden, cell, old, s->projected + 4 * size * at, s->bias, count, size);
        } else {
            REAL *products = s->products + 3 * size * first;
            NAMED(gemm_packed)(products, before, s->packed, count, 3 * size, size, 0);
            NAMED(gru_step)(gates, hidden, before, products, s->projected + 3 * size * at, s->bias, count, size);
        }
    }
}

/* Rows of a portion: a thread's share, but no more than fit a processor's cache with what is computed from them. */
INLINE int64_t NAMED(share)(int64_t rows, int threads) {
    const int64_t share = (rows + 2 * threads - 1) / (2 * threads) * 2;
    return share < 64 ? share : 64;
}

/* lstm_step for all steps. packed is for the weight's copy: 4 size + 32 columns of size elements and 64 bytes. */
KERNEL(lstm, REAL *gates, REAL *hiddens, REAL *cells, const REAL *projected, const REAL *hidden, const REAL *cell,
       const REAL *bias, const REAL *weight, REAL *packed, int64_t steps, int64_t rows, int64_t size, int threads) {
    const NAMED(Sequence) s = {gates, hiddens, cells, 0, projected, hidden, cell, bias, packed, steps, rows, size};
    NAMED(gemm_pack)(packed, weight, 4 * size, size, 1, size, threads);
    backburn_pool_run(NAMED(run_steps), &s, rows, NAMED(share)(rows, threads), threads);
}

/* gru_step for all steps. products is for (rows, 3 size), packed for 3 size + 32 columns of size elements and 64
 * bytes. */
KERNEL(gru, REAL *gates, REAL *hiddens, REAL *products, const REAL *projected, const REAL *hidden, const REAL *bias,
       const REAL *weight, REAL *packed, int64_t steps, int64_t rows, int64_t size, int threads) {
    const NAMED(Sequence) s = {gates, hiddens, 0, products, projected, hidden, 0, bias, packed, steps, rows, size};
    NAMED(gemm_pack)(packed, weight, 3 * size, size, 1, size, threads);
    backburn_pool_run(NAMED(run_steps), &s, rows, NAMED(share)(rows, threads), threads);
}

/* The same for gradients. grad_projected is null for LSTMs, grad_cell for GRUs; states are an LSTM's cell states and a
 * GRU's hidden states, and g_states the gradients of the LSTM's. */
typedef struct {
    REAL *grad_projected, *grad_sums, *grad_cell, *grad_hidden;
    const REAL *g_hiddens, *g_states, *g_gates, *state, *states, *gates, *packed;
    int64_t steps, rows, size;
} NAMED(Gradients);

static void NAMED(run_steps_backward)(const void *context, int64_t first, int64_t last) {
    const NAMED(Gradients) *s = context;
    const int64_t rows = s->rows, size = s->size, count = last - first, own = size * first;
    for (int64_t t = s->steps - 1; t >= 0; t--) {
        const int64_t at = t * rows + first;
        const REAL *states = s->states + size * at, *gates = s->gates + 4 * size * at;
        const REAL *before = t ? states - size * rows : s->state + own;
        const REAL *g_hidden = s->g_hiddens ? s->g_hiddens + size * at : 0;
        const REAL *g_gates = s->g_gates ? s->g_gates + 4 * size * at : 0;
        REAL *hidden = s->grad_hidden + own;
        if (s->grad_cell) {
            REAL *sums = s->grad_sums + 4 * size * at;
            NAMED(lstm_step_backward)(sums, s->grad_cell + own, hidden, g_hidden, s->g_states ? s->g_states + size * at : 0,
                                      g_gates, before, states, gates, count, size);
            NAMED(gemm_packed)(hidden, sums, s->packed, count, size, 4 * size, 0);
        } else {
            REAL *sums = s->grad_sums + 3 * size * at;
            NAMED(gru_step_backward)(s->grad_projected + 3 * size * at, sums, hidden, g_hidden, g_gates, before, gates, count,
                                     size);
            NAMED(gemm_packed)(hidden, sums, s->packed, count, size, 3 * size, 1);
        }
    }
}

/* lstm_step_backward for all steps, the last first. grad_cell and grad_hidden hold zeros, and receive the gradients of
 * the first states. packed is for size + 32 columns of 4 size elements and 64 bytes. */
KERNEL(lstm_backward, REAL *grad_sums, REAL *grad_cell, REAL *grad_hidden, const REAL *g_hiddens, const REAL *g_cells,
       const REAL *g_gates, const REAL *cell, const REAL *cells, const REAL *gates, const REAL *weight, REAL *packed,
       int64_t steps, int64_t rows, int64_t size, int threads) {
    const NAMED(Gradients) s = {0,    grad_sums, grad_cell, grad_hidden, g_hiddens, g_cells, g_gates,
                                cell, cells,     gates,     packed,      steps,     rows,    size};
    NAMED(gemm_pack)(packed, weight, size, 4 * size, size, 1, threads);
    backburn_pool_run(NAMED(run_steps_backward), &s, rows, NAMED(share)(rows, threads), threads);
}

/* gru_step_backward for all steps, the last first. grad_hidden holds zeros, and gets the gradient of the first state.
 * packed is for size + 32 columns of 3 size elements and 64 bytes. */
KERNEL(gru_backward, REAL *grad_projected, REAL *grad_products, REAL *grad_hidden, const REAL *g_hiddens,
       const REAL *g_gates, const REAL *hidden, const REAL *hiddens, const REAL *gates, const REAL *weight,
       REAL *packed, int64_t steps, int64_t rows, int64_t size, int threads) {
    const NAMED(Gradients) s = {grad_projected, grad_products, 0, grad_hidden, g_hiddens, 0,    g_gates, hidden,
                                hiddens,        gates,         packed, steps,  rows,      size};
    NAMED(gemm_pack)(packed, weight, size, 3 * size, size, 1, threads);
    backburn_pool_run(NAMED(run_steps_backward), &s, rows, NAMED(share)(rows, threads), threads);
}

#endif
