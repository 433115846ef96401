// Steps of LSTMs and GRUs, between the products with their weights: a thread for each unit of each example. Arrays have
// all steps, of which a kernel computes number `step`; `first` is the state before the first step.
#include "common.cuh"

#define FOR_UNITS(at, count) \
  for (index_t at = blockIdx.x * (index_t)blockDim.x + threadIdx.x; at < (count); at += (index_t)gridDim.x * blockDim.x)

template <class C> __device__ inline C logistic(C x) { return C(1) / (C(1) + exp(-x)); }
template <class C> __device__ inline C logistic_slope(C y) { return y * (C(1) - y); }
template <class C> __device__ inline C tanh_slope(C y) { return C(1) - y * y; }
// The slope of tanh at x, accurate at both ends, where its result is 1.
template <class C> __device__ inline C tanh_slope_at(C x) {
  const C power = exp(C(-2) * fabs(x)), root = C(1) + power;
  return C(4) * power / (root * root);
}

// The element at `p`, or 0 without an array.
template <class T> __device__ inline compute<T> widen_or_zero(const T* p, index_t at) {
  return p ? widen(p[at]) : compute<T>(0);
}

// The sum of a product, the projected input and the bias.
template <class T>
__device__ inline compute<T> gate_sum(const T* products, const T* projected, const T* bias, index_t at, index_t j) {
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
      const C sum = gate_sum(products, projected, bias, wide + n * size, j + n * size);
      gate[n] = n == 2 ? tanh(sum) : logistic(sum);
      narrow(gate[n], gates[wide + n * size]);
    }
    const C next = gate[1] * widen(cell[at]) + gate[0] * gate[2];
    narrow(next, cells[at]);
    narrow(gate[3] * tanh(next), hiddens[at]);
  }
}

// grad_cell has the contribution of later steps to the cell state's gradient, and gets the one for the step before.
// grad_hidden is their contribution to the hidden state's gradient; grad_hidden and g_* may be null.
template <class T>
__global__ void __launch_bounds__(256)
lstm_step_backward(T* grad_sums, compute<T>* grad_cell, const T* grad_hidden, const T* g_hiddens, const T* g_cells,
                   const T* g_gates, const T* first, const T* cells, const T* gates, index_t step, index_t rows,
                   index_t size) {
  typedef compute<T> C;
  const index_t count = rows * size, states = count * step, sums = 4 * states;
  const T* cell = step ? cells + states - count : first;
  FOR_UNITS(at, count) {
    const index_t wide = sums + at / size * 4 * size + at % size;
    const C i = widen(gates[wide]), f = widen(gates[wide + size]);
    const C g = widen(gates[wide + 2 * size]), o = widen(gates[wide + 3 * size]);
    const C argument = widen(cells[states + at]), new_cell = tanh(argument);
    const C grad_output = widen_or_zero(grad_hidden, at) + widen_or_zero(g_hiddens, states + at);
    const C grad_next = grad_cell[at] + widen_or_zero(g_cells, states + at) + grad_output * o * tanh_slope_at(argument);
    const C grad_gates[4] = {grad_next * g, grad_next * widen(cell[at]), grad_next * i, grad_output * new_cell};
    const C slopes[4] = {logistic_slope(i), logistic_slope(f), tanh_slope(g), logistic_slope(o)};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const index_t to = wide + n * size;
      narrow((grad_gates[n] + widen_or_zero(g_gates, to)) * slopes[n], grad_sums[to]);
    }
    grad_cell[at] = grad_next * f;
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
    const C reset = logistic(gate_sum(products, projected, bias, from, j));
    const C update = logistic(gate_sum(products, projected, bias, from + size, j + size));
    const C inner = widen(products[from + 2 * size]) + widen_or_zero(bias, j + 2 * size);
    const C candidate = tanh(widen(projected[from + 2 * size]) + reset * inner);
    narrow(reset, gates[to]);
    narrow(update, gates[to + size]);
    narrow(candidate, gates[to + 2 * size]);
    narrow(inner, gates[to + 3 * size]);
    narrow(candidate + update * (widen(old[at]) - candidate), hiddens[at]);
  }
}

// grad_state has the contribution of later steps to the state's gradient, apart from their products (grad_hidden), and
// gets the one for the step before. grad_hidden and g_* may be null.
template <class T>
__global__ void __launch_bounds__(256)
gru_step_backward(T* grad_projected, T* grad_products, compute<T>* grad_state, const T* grad_hidden, const T* g_hiddens,
                  const T* g_gates, const T* first, const T* hiddens, const T* gates, index_t step, index_t rows,
                  index_t size) {
  typedef compute<T> C;
  const index_t count = rows * size, states = count * step;
  const T* old = step ? hiddens + states - count : first;
  FOR_UNITS(at, count) {
    const index_t j = at % size, from = 4 * states + at / size * 4 * size + j, to = 3 * states + at / size * 3 * size + j;
    const C reset = widen(gates[from]), update = widen(gates[from + size]);
    const C candidate = widen(gates[from + 2 * size]), inner = widen(gates[from + 3 * size]);
    const C grad_next = grad_state[at] + widen_or_zero(grad_hidden, at) + widen_or_zero(g_hiddens, states + at);
    const C grad_candidate = (grad_next - grad_next * update + widen_or_zero(g_gates, from + 2 * size)) * tanh_slope(candidate);
    const C grad_reset = (grad_candidate * inner + widen_or_zero(g_gates, from)) * logistic_slope(reset);
    const C grad_update =
        (grad_next * (widen(old[at]) - candidate) + widen_or_zero(g_gates, from + size)) * logistic_slope(update);
    narrow(grad_reset, grad_projected[to]), narrow(grad_reset, grad_products[to]);
    narrow(grad_update, grad_projected[to + size]), narrow(grad_update, grad_products[to + size]);
    narrow(grad_candidate, grad_projected[to + 2 * size]);
    narrow(grad_candidate * reset + widen_or_zero(g_gates, from + 3 * size), grad_products[to + 2 * size]);
    grad_state[at] = grad_next * update;
  }
}
