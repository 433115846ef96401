// Batch norm and sums of x as (outer, channels, inner): sums per channel in two stages, then one pass that applies them.
//
// If inner is 1 the channels are contiguous and a thread has a pack of them ("columns"); otherwise a block has planes
// of one channel ("planes"). Each channel has five coefficients, COEFFICIENTS rows of `channels`.
#include "common.cuh"

enum { CENTRE, SLOPE, OFFSET, WEIGHT, INVERSE, COEFFICIENTS };

__device__ inline void divide(index_t n, index_t d, index_t& quotient, index_t& rest) {
  if (((n | d) >> 32) == 0)
    quotient = (unsigned)n / (unsigned)d, rest = (unsigned)n % (unsigned)d;
  else
    quotient = n / d, rest = n % d;
}

// The mean of a channel's first elements, close enough to its mean that sums of squares about it do not cancel; 0 if
// not finite. One thread per channel.
template <class T>
__global__ void pilot(const T* x, compute<T>* centre, index_t outer, index_t channels, index_t inner) {
  typedef compute<T> C;
  index_t channel = blockIdx.x * (index_t)blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  C sum = 0;
  int count = outer * inner < 32 ? outer * inner : 32;
  const T* plane = x + channel * inner;
  index_t i = 0;
#pragma unroll 8  // the loads of eight elements are under way together
  for (int n = 0; n < count; ++n) {
    sum += widen(plane[i]);
    if (++i == inner) i = 0, plane += channels * inner;
  }
  C mean = sum / count;
  centre[channel] = mean - mean == C(0) ? mean : C(0);
}

// partial[part][0 or 1][channel] = the sums of a and of a * (x - centre), where a is grad, or x - centre without it;
// centre may be null, and is then 0.
template <class T>
__global__ void __launch_bounds__(256)
sum_planes(const T* x, const T* grad, const compute<T>* centre, compute<T>* partial, index_t outer, index_t channels,
           index_t inner, index_t parts) {
  typedef compute<T> C;
  constexpr int P = PACK<T>;
  index_t channel = blockIdx.x % channels, part = blockIdx.x / channels;
  index_t packs = (inner + 2 * P - 2) / P;  // of a plane that may be unaligned
  C middle = centre ? centre[channel] : C(0), first = 0, second = 0;
  index_t skip = (int)blockDim.x / packs, rest = (int)blockDim.x % packs;
  index_t n = threadIdx.x / packs * parts + part, pack = threadIdx.x % packs;
  for (; n < outer; n += skip * parts, pack += rest) {
    if (pack >= packs && (pack -= packs, n += parts) >= outer) break;
    const T* plane = x + (n * channels + channel) * inner;
    index_t start = pack * P - (index_t)(((word_t)plane & 15) / sizeof(T));
    C v[P], g[P];
    read_both(plane, grad ? grad + (n * channels + channel) * inner : nullptr, start, inner, v, g);
#pragma unroll
    for (int j = 0; j < P; ++j)
      if (start + j >= 0 && start + j < inner) {
        C centred = v[j] - middle, a = grad ? g[j] : centred;
        first += a, second += a * centred;
      }
  }
  first = total<0>(first), second = total<0>(second);
  if (threadIdx.x == 0) {
    partial[part * 2 * channels + channel] = first;
    partial[(part * 2 + 1) * channels + channel] = second;
  }
}

// sum_planes for columns: blocks of 32 packs by 8 rows, `tiles` blocks across the channels.
template <class T>
__global__ void __launch_bounds__(256)
sum_columns(const T* x, const T* grad, const compute<T>* centre, compute<T>* partial, index_t outer, index_t channels,
            index_t tiles, index_t parts) {
  typedef compute<T> C;
  constexpr int P = PACK<T>;
  __shared__ C sums[8][32 * P];
  index_t tile = blockIdx.x % tiles, part = blockIdx.x / tiles, start = (tile * 32 + threadIdx.x) * P;
  C middle[P] = {}, first[P] = {}, second[P] = {};
#pragma unroll
  for (int j = 0; j < P; ++j)
    if (centre && start + j < channels) middle[j] = centre[start + j];
#pragma unroll 2
  for (index_t row = part * 8 + threadIdx.y; row < outer; row += parts * 8) {
    C v[P], g[P];
    read_both(x + row * channels, grad ? grad + row * channels : nullptr, start, channels, v, g);
#pragma unroll
    for (int j = 0; j < P; ++j) {
      C centred = v[j] - middle[j], a = grad ? g[j] : centred;
      first[j] += a, second[j] += a * centred;
    }
  }
  int thread = threadIdx.y * 32 + threadIdx.x;
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int j = 0; j < P; ++j) sums[threadIdx.y][threadIdx.x * P + j] = which ? second[j] : first[j];
    __syncthreads();
    for (int i = thread; i < 32 * P; i += 256) {
      C sum = 0;
      for (int y = 0; y < 8; ++y) sum += sums[y][i];
      index_t channel = tile * 32 * P + i;
      if (channel < channels) partial[(part * 2 + which) * channels + channel] = sum;
    }
    __syncthreads();
  }
}

// The sum of a channel's parts, for the first of its threads; blocks of 32 channels by 32 threads.
template <class C> __device__ inline C sum_parts(const C* partial, index_t parts, index_t channels, index_t channel,
                                                 int which) {
  __shared__ C sums[32][33];
  C sum = 0;
  if (channel < channels) {
#pragma unroll 4
    for (index_t part = threadIdx.y; part < parts; part += 32) sum += partial[(part * 2 + which) * channels + channel];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = total<32>(sums[threadIdx.x][threadIdx.y]);
  if (threadIdx.x == 0) sums[0][threadIdx.y] = sum;
  __syncthreads();
  sum = sums[0][threadIdx.x];
  __syncthreads();  // sums is free for the next one
  return sum;
}

// The sums of x alone.
template <class T>
__global__ void __launch_bounds__(1024)
finish_sums(const compute<T>* partial, T* sums, index_t parts, index_t channels) {
  index_t channel = blockIdx.x * 32ll + threadIdx.x;
  compute<T> sum = sum_parts(partial, parts, channels, channel, 0);
  if (threadIdx.y == 0 && channel < channels) narrow(sum, sums[channel]);
}

// Mean, variance and forward coefficients from sums about a pilot. mean_out, variance_out, scale and bias may be null.
template <class T>
__global__ void __launch_bounds__(1024)
finish_moments(const compute<T>* partial, const compute<T>* centre, const T* scale, const T* bias,
               compute<T>* coefficients, T* mean_out, T* variance_out, index_t parts, index_t channels, index_t count,
               double eps) {
  typedef compute<T> C;
  index_t channel = blockIdx.x * 32ll + threadIdx.x;
  C sum = sum_parts(partial, parts, channels, channel, 0), squares = sum_parts(partial, parts, channels, channel, 1);
  if (threadIdx.y || channel >= channels) return;
  C shift = sum / count;
  C variance = squares / count - shift * shift;
  if (variance < C(0)) variance = 0;
  C mean = centre[channel] + shift, inverse = C(1) / sqrt(variance + C(eps));
  C slope = scale ? inverse * widen(scale[channel]) : inverse;
  coefficients[CENTRE * channels + channel] = mean;
  coefficients[SLOPE * channels + channel] = slope;
  coefficients[OFFSET * channels + channel] = bias ? widen(bias[channel]) : C(0);
  coefficients[WEIGHT * channels + channel] = slope;
  coefficients[INVERSE * channels + channel] = inverse;
  if (mean_out) narrow(mean, mean_out[channel]);
  if (variance_out) narrow(variance, variance_out[channel]);
}

// Coefficients from given statistics, as in inference.
template <class T>
__global__ void moment_coefficients(const T* mean, const T* variance, const T* scale, const T* bias, compute<T>* coefficients,
                              index_t channels, double eps) {
  typedef compute<T> C;
  index_t channel = blockIdx.x * (index_t)blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  C inverse = C(1) / sqrt(widen(variance[channel]) + C(eps));
  coefficients[CENTRE * channels + channel] = widen(mean[channel]);
  coefficients[SLOPE * channels + channel] = scale ? inverse * widen(scale[channel]) : inverse;
  coefficients[OFFSET * channels + channel] = bias ? widen(bias[channel]) : C(0);
}

// Overwrites the forward coefficients with the backward ones; also the gradient for the scale.
template <class T>
__global__ void __launch_bounds__(1024)
finish_products(const compute<T>* partial, compute<T>* coefficients, T* grad_scale, index_t parts, index_t channels,
                index_t count) {
  typedef compute<T> C;
  index_t channel = blockIdx.x * 32ll + threadIdx.x;
  C sum = sum_parts(partial, parts, channels, channel, 0), product = sum_parts(partial, parts, channels, channel, 1);
  if (threadIdx.y || channel >= channels) return;
  C weight = coefficients[WEIGHT * channels + channel], inverse = coefficients[INVERSE * channels + channel];
  coefficients[SLOPE * channels + channel] = -weight * inverse * inverse * product / count;
  coefficients[OFFSET * channels + channel] = -weight * sum / count;
  narrow(product * inverse, grad_scale[channel]);
}

// out = (x - centre) * slope + offset, plus grad * weight if there is a gradient.
template <class T>
__global__ void __launch_bounds__(256)
apply_planes(const T* x, const T* grad, const compute<T>* coefficients, T* out, index_t planes, index_t channels,
             index_t inner) {
  typedef compute<T> C;
  constexpr int P = PACK<T>;
  index_t packs = (inner + 2 * P - 2) / P, count = planes * packs;
  for (index_t i = blockIdx.x * (index_t)blockDim.x + threadIdx.x; i < count; i += (index_t)gridDim.x * blockDim.x) {
    index_t plane, pack, example, channel;
    divide(i, packs, plane, pack);
    divide(plane, channels, example, channel);
    const T* line = x + plane * inner;
    index_t start = pack * P - (index_t)(((word_t)line & 15) / sizeof(T));
    if (start >= inner) continue;
    C v[P], g[P];
    read_both(line, grad ? grad + plane * inner : nullptr, start, inner, v, g);
    C centre = coefficients[CENTRE * channels + channel], slope = coefficients[SLOPE * channels + channel];
    C offset = coefficients[OFFSET * channels + channel];
    C weight = grad ? coefficients[WEIGHT * channels + channel] : C(0);
#pragma unroll
    for (int j = 0; j < P; ++j) v[j] = (v[j] - centre) * slope + offset + (grad ? g[j] * weight : C(0));
    write(out + plane * inner, start, inner, v);
  }
}

template <class T>
__global__ void __launch_bounds__(256)
apply_columns(const T* x, const T* grad, const compute<T>* coefficients, T* out, index_t outer, index_t channels,
              index_t tiles, index_t parts) {
  typedef compute<T> C;
  constexpr int P = PACK<T>;
  index_t tile = blockIdx.x % tiles, part = blockIdx.x / tiles, start = (tile * 32 + threadIdx.x) * P;
  C c[4][P] = {};
#pragma unroll
  for (int j = 0; j < P; ++j)
    if (start + j < channels) {
      for (int which = 0; which < (grad ? 4 : 3); ++which) c[which][j] = coefficients[which * channels + start + j];
    }
#pragma unroll 2
  for (index_t row = part * 8 + threadIdx.y; row < outer; row += parts * 8) {
    C v[P], g[P];
    read_both(x + row * channels, grad ? grad + row * channels : nullptr, start, channels, v, g);
#pragma unroll
    for (int j = 0; j < P; ++j)
      v[j] = (v[j] - c[CENTRE][j]) * c[SLOPE][j] + c[OFFSET][j] + (grad ? g[j] * c[WEIGHT][j] : C(0));
    write(out + row * channels, start, channels, v);
  }
}
