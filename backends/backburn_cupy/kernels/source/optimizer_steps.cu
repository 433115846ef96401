// Optimizer steps over many tensors in one launch. The table of addresses is a kernel parameter, so that nothing
// is copied to the device beforehand; blocks are assigned by element. 16-bit floats are computed in float; their
// optimizer state (S) may be float as well.
#include "common.cuh"

constexpr int STEP_PACKS = 4;  // per tensor and thread

// For up to COUNT tensors: their sizes, first blocks, and the addresses of LISTS arrays each.
template <int COUNT, int LISTS> struct Tensors {
  index_t count;
  index_t size[COUNT], first_block[COUNT];
  word_t at[LISTS][COUNT];
};

template <class T> __device__ inline T* pointer(word_t address) { return reinterpret_cast<T*>(address); }

// The elements of a pack of T; a pack of S may hold fewer.
template <class T, class S> __device__ inline void read_state(const S* line, index_t start, index_t length, compute<S>* to) {
#pragma unroll
  for (int j = 0; j < PACK<T>; j += PACK<S>) read(line, start + j, length, to + j);
}
template <class T, class S>
__device__ inline void write_state(S* line, index_t start, index_t length, const compute<S>* from) {
#pragma unroll
  for (int j = 0; j < PACK<T>; j += PACK<S>) write(line, start + j, length, from + j);
}

// f(tensor, start, size) for each pack of this thread.
template <class T, int COUNT, int LISTS, class F>
__device__ inline void for_packs(const Tensors<COUNT, LISTS>& tensors, F f) {
  int tensor = 0, after = tensors.count;  // the last tensor whose first block is at most this one
  while (after - tensor > 1) {
    int middle = (tensor + after) / 2;
    (tensors.first_block[middle] <= blockIdx.x ? tensor : after) = middle;
  }
  index_t block = (blockIdx.x - tensors.first_block[tensor]) * (index_t)blockDim.x * STEP_PACKS;
#pragma unroll
  for (int p = 0; p < STEP_PACKS; ++p) {
    index_t start = (block + p * blockDim.x + threadIdx.x) * PACK<T>;
    if (start < tensors.size[tensor]) f(tensor, start, tensors.size[tensor]);
  }
}

// Lists: the sources, and the targets.
template <class T, int COUNT>
__global__ void __launch_bounds__(256) copy_tensors(const __grid_constant__ Tensors<COUNT, 2> tensors) {
  constexpr int P = PACK<T>;
  for_packs<T>(tensors, [&](int t, index_t start, index_t size) {
    const T* from = pointer<T>(tensors.at[0][t]) + start;
    T* to = pointer<T>(tensors.at[1][t]) + start;
    if (start + P <= size && is_aligned(from) && is_aligned(to))
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    else
      for (int j = 0; j < P && start + j < size; ++j) to[j] = from[j];
  });
}

// Lists: param, grad, m, v; the new param, m and v. The numbers that change per step are arguments, or for a replayed
// step computed from the step count and lr on the device; either may be null.
template <class T, class S, int COUNT>
__global__ void __launch_bounds__(256)
adam_step(const __grid_constant__ Tensors<COUNT, 7> tensors, const double* lr_at, const index_t* step_at, double lr_,
          double step_, double eps, double decay, double rate_, double floor_, double shrink_, double beta1_,
          double beta2_, double coupled_) {
  typedef compute<T> C;
  constexpr int P = PACK<T>;
  __shared__ C factors[3];
  if (lr_at || step_at) {
    if (threadIdx.x == 0) {
      double lr = lr_at ? *lr_at : lr_, step = step_at ? *step_at : step_, root = sqrt(1.0 - pow(beta2_, step));
      factors[0] = lr * root / (1.0 - pow(beta1_, step)), factors[1] = eps * root, factors[2] = 1.0 - lr * decay;
    }
    __syncthreads();
    rate_ = factors[0], floor_ = factors[1], shrink_ = factors[2];
  }
  C rate = rate_, floor = floor_, shrink = shrink_;
  C beta1 = beta1_, rest1 = 1.0 - beta1_, beta2 = beta2_, rest2 = 1.0 - beta2_, coupled = coupled_;
  for_packs<T>(tensors, [&](int t, index_t start, index_t size) {
    C param[P], grad[P], m[P], v[P];
    read(pointer<T>(tensors.at[0][t]), start, size, param);
    read(pointer<T>(tensors.at[1][t]), start, size, grad);
    read_state<T>(pointer<S>(tensors.at[2][t]), start, size, m);
    read_state<T>(pointer<S>(tensors.at[3][t]), start, size, v);
#pragma unroll
    for (int j = 0; j < P; ++j) {
      C g = coupled != C(0) ? grad[j] + param[j] * coupled : grad[j];
      m[j] = m[j] * beta1 + g * rest1;
      v[j] = v[j] * beta2 + g * rest2 * g;
      param[j] = param[j] * shrink - m[j] / (sqrt(v[j]) + floor) * rate;
    }
    write(pointer<T>(tensors.at[4][t]), start, size, param);
    write_state<T>(pointer<S>(tensors.at[5][t]), start, size, m);
    write_state<T>(pointer<S>(tensors.at[6][t]), start, size, v);
  });
}

// Lists: param, grad, velocity; the new param and velocity. Either velocity, and lr on the device, may be null.
template <class T, class S, int COUNT>
__global__ void __launch_bounds__(256)
sgd_step(const __grid_constant__ Tensors<COUNT, 5> tensors, const double* lr_at, double lr_, double momentum_,
         double decay_, index_t nesterov) {
  typedef compute<T> C;
  constexpr int P = PACK<T>;
  C lr = lr_at ? *lr_at : lr_, momentum = momentum_, decay = decay_;
  for_packs<T>(tensors, [&](int t, index_t start, index_t size) {
    C param[P], grad[P], velocity[P];
    bool moved = tensors.at[2][t] != 0;
    read(pointer<T>(tensors.at[0][t]), start, size, param);
    read(pointer<T>(tensors.at[1][t]), start, size, grad);
    if (moved) read_state<T>(pointer<S>(tensors.at[2][t]), start, size, velocity);
#pragma unroll
    for (int j = 0; j < P; ++j) {
      C g = decay != C(0) ? grad[j] + param[j] * decay : grad[j];
      velocity[j] = moved ? velocity[j] * momentum + g : g;
      param[j] -= (nesterov ? velocity[j] * momentum + g : velocity[j]) * lr;
    }
    write(pointer<T>(tensors.at[3][t]), start, size, param);
    if (tensors.at[4][t]) write_state<T>(pointer<S>(tensors.at[4][t]), start, size, velocity);
  });
}
