// Linear recurrences h[t] = a[t] h[t-1] + b[t] x[t] over (outer, time, inner): a thread scans one line, with the loads
// of several steps in flight. Accesses are coalesced.
#include "common.cuh"

constexpr int AHEAD = 8;

// If b is null, `factor` takes its place; if h0 is null, 0.
template <class T> __global__ void __launch_bounds__(128)
ssm_scan(const T* a, const T* b, const T* x, const T* h0, T* out, index_t outer, index_t time, index_t inner,
         double factor, index_t reverse) {
  typedef compute<T> C;
  index_t line = blockIdx.x * (index_t)blockDim.x + threadIdx.x;
  if (line >= outer * inner) return;
  index_t first = line / inner * time * inner + line % inner, step = inner;
  if (reverse) first += (time - 1) * inner, step = -inner;
  C state = h0 ? widen(h0[line]) : C(0);
  for (index_t t = 0; t < time; t += AHEAD) {
    C decay[AHEAD], fed[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (t + i < time) {
        index_t at = first + (t + i) * step;
        decay[i] = widen(a[at]);
        fed[i] = (b ? widen(b[at]) : C(factor)) * widen(x[at]);
      }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (t + i < time) {
        // Without h0 nothing decays, even by a factor that is not finite.
        state = t + i == 0 && !h0 ? fed[i] : decay[i] * state + fed[i];
        narrow(state, out[first + (t + i) * step]);
      }
  }
}
