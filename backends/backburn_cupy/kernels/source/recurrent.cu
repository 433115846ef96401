// Steps of LSTMs and GRUs, between the products with their weights: a thread for each unit of each example. Arrays are
// those of all steps, of which the kernels take number `step`; the state before the first one is `first`.
#include "common.cuh"

#define FOR_UNITS(at, count) \
  for (index_t at = blockIdx.x * (index_t)blockDim.x + threadIdx.x; at < (count); at += (index_t)gridDim.x * blockDim.x)

template <class C> __device__ inline C logistic(C x) { return C(1) / (C(1) + exp(-x)); }
template <class C> __device__ inline C under_logistic(C y) { return y * (C(1) - y); }
template <class C> __device__ inline C under_tanh(C y) { return C(1) - y * y; }

// The element at `p`, or 0 without an array.
template <class T> __device__ inline compute<T> widen_or_zero(const T* p, index_t at) {
  return p ? widen(p[at]) : compute<T>(0);
}

// The sum of a product, the projected input and the bias.
template <class T>
__device__ inline compute<T> before_gate(const T* products, const T* projected, const T* bias, index_t at, index_t j) {
  return widen(projected[at]) + (widen(products[at]) + widen_or_zero(bias, j));
}

template <class T>
__global__ void __launch_bounds__(256)
lstm_step(const T* products, const T* projected, const T* bias, const T* first, T* hiddens, T* cells, T* gates,
          index_t step, index_t rows, index_t size) {
  typedef compute<T> C;
  const index_t count = rows * size;
  const T* cell = step ? cells + (step - 1) * count : first;
  projected += 4 * count * step, gates += 4 * count * step, hiddens += count * step, cells += count * step;
  FOR_UNITS(at, count) {
    const index_t j = at % size, wide = at / size * 4 * size + j;
    C gate[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const C sum = before_gate(products, projected, bias, wide + n * size, j + n * size);
      gate[n] = n == 2 ? tanh(sum) : logistic(sum);
      narrow(gate[n], gates[wide + n * size]);
    }
    const C next = gate[1] * widen(cell[at]) + gate[0] * gate[2];
    narrow(next, cells[at]);
    narrow(gate[3] * tanh(next), hiddens[at]);
  }
}

// of_cell holds what later steps contribute to the gradient of the cell state, and gets that of the one before. of_hidden
// is what they contribute to that of the hidden state; it and g_* may be null.
template <class T>
__global__ void __launch_bounds__(256)
lstm_step_backward(T* of_sums, compute<T>* of_cell, const T* of_hidden, const T* g_hiddens, const T* g_cells,
                   const T* g_gates, const T* first, const T* cells, const T* gates, index_t step, index_t rows,
                   index_t size) {
  typedef compute<T> C;
  const index_t count = rows * size, states = count * step, sums = 4 * states;
  const T* cell = step ? cells + states - count : first;
  FOR_UNITS(at, count) {
    const index_t wide = sums + at / size * 4 * size + at % size;
    const C i = widen(gates[wide]), f = widen(gates[wide + size]);
    const C g = widen(gates[wide + 2 * size]), o = widen(gates[wide + 3 * size]);
    const C new_cell = tanh(widen(cells[states + at]));
    const C through = widen_or_zero(of_hidden, at) + widen_or_zero(g_hiddens, states + at);
    const C total = of_cell[at] + widen_or_zero(g_cells, states + at) + through * o * under_tanh(new_cell);
    const C of_gates[4] = {total * g, total * widen(cell[at]), total * i, through * new_cell};
    const C slopes[4] = {under_logistic(i), under_logistic(f), under_tanh(g), under_logistic(o)};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const index_t to = wide + n * size;
      narrow((of_gates[n] + widen_or_zero(g_gates, to)) * slopes[n], of_sums[to]);
    }
    of_cell[at] = total * f;
  }
}

template <class T>
__global__ void __launch_bounds__(256)
gru_step(const T* products, const T* projected, const T* bias, const T* first, T* hiddens, T* gates, index_t step,
         index_t rows, index_t size) {
  typedef compute<T> C;
  const index_t count = rows * size;
  const T* old = step ? hiddens + (step - 1) * count : first;
  projected += 3 * count * step, gates += 4 * count * step, hiddens += count * step;
  FOR_UNITS(at, count) {
    const index_t j = at % size, from = at / size * 3 * size + j, to = at / size * 4 * size + j;
    const C reset = logistic(before_gate(products, projected, bias, from, j));
    const C update = logistic(before_gate(products, projected, bias, from + size, j + size));
    const C inner = widen(products[from + 2 * size]) + widen_or_zero(bias, j + 2 * size);
    const C candidate = tanh(widen(projected[from + 2 * size]) + reset * inner);
    narrow(reset, gates[to]);
    narrow(update, gates[to + size]);
    narrow(candidate, gates[to + 2 * size]);
    narrow(inner, gates[to + 3 * size]);
    narrow(candidate + update * (widen(old[at]) - candidate), hiddens[at]);
  }
}

// of_state holds what later steps contribute to the gradient of the state besides the product, which is of_hidden, and
// gets that for the state before. of_hidden and g_* may be null.
template <class T>
__global__ void __launch_bounds__(256)
gru_step_backward(T* of_projected, T* of_products, compute<T>* of_state, const T* of_hidden, const T* g_hiddens,
                  const T* g_gates, const T* first, const T* hiddens, const T* gates, index_t step, index_t rows,
                  index_t size) {
  typedef compute<T> C;
  const index_t count = rows * size, states = count * step;
  const T* old = step ? hiddens + states - count : first;
  FOR_UNITS(at, count) {
    const index_t j = at % size, from = 4 * states + at / size * 4 * size + j, to = 3 * states + at / size * 3 * size + j;
    const C reset = widen(gates[from]), update = widen(gates[from + size]);
    const C candidate = widen(gates[from + 2 * size]), inner = widen(gates[from + 3 * size]);
    const C later = of_state[at] + widen_or_zero(of_hidden, at) + widen_or_zero(g_hiddens, states + at);
    const C of_new = (later - later * update + widen_or_zero(g_gates, from + 2 * size)) * under_tanh(candidate);
    const C of_reset = (of_new * inner + widen_or_zero(g_gates, from)) * under_logistic(reset);
    const C of_update =
        (later * (widen(old[at]) - candidate) + widen_or_zero(g_gates, from + size)) * under_logistic(update);
    narrow(of_reset, of_projected[to]), narrow(of_reset, of_products[to]);
    narrow(of_update, of_projected[to + size]), narrow(of_update, of_products[to + size]);
    narrow(of_new, of_projected[to + 2 * size]);
    narrow(of_new * reset + widen_or_zero(g_gates, from + 3 * size), of_products[to + 2 * size]);
    of_state[at] = later * update;
  }
}
