// Batch norm and sums of x as (outer, channels, inner): sums per channel in two stages, then a pass that applies them.
//
// If inner is 1 the channels are contiguous and a thread has a pack of them ("columns"); otherwise a block has planes
// of one channel ("planes"). A thread sums differences from the first element that it reads, so that its sums of
// squares do not cancel for any mean; sums of threads are added as doubles, as differences from the channel's first
// element. The terms of a gradient of FEW elements may cancel, so it is computed in double.
//
// Each channel has six coefficients, COEFFICIENTS rows of `channels`. The mean is CENTRE plus its rounding error, REST.
#include "common.cuh"

enum { CENTRE, REST, SLOPE, OFFSET, WEIGHT, INVERSE, COEFFICIENTS };

template <class C> __device__ inline C finite_or_zero(C x) { return x - x == C(0) ? x : C(0); }

// Converts the sums of x - pilot and of its square, of count elements, to those of x - origin.
__device__ inline void move_origin(double pilot, double origin, index_t count, double& first, double& second) {
  double distance = pilot - origin;
  if (distance == 0.0) return;  // infinite sums stay so
  second += distance * (2.0 * first + distance * count);
  first += distance * count;
}

__device__ inline void divide(index_t n, index_t d, index_t& quotient, index_t& rest) {
  if (((n | d) >> 32) == 0)
    quotient = (unsigned)n / (unsigned)d, rest = (unsigned)n % (unsigned)d;
  else
    quotient = n / d, rest = n % d;
}

// partial[part][0 or 1][channel] = the sums of a and of a * (x - mean), where a is grad and the mean is among the
// coefficients; or without these the sums of x - origin and its square, where origin is the channel's first element, if
// finite.
template <class T, bool FEW>
__global__ void __launch_bounds__(256)
sum_planes(const T* x, const T* grad, const arithmetic<T, FEW>* coefficients, double* partial, index_t outer,
           index_t channels, index_t inner, index_t parts) {
  typedef compute<T> C;
  typedef arithmetic<T, FEW> A;
  constexpr int P = PACK<T>;
  index_t channel = blockIdx.x % channels, part = blockIdx.x / channels;
  index_t packs = (inner + 2 * P - 2) / P;  // of a plane that may be unaligned
  A pilot = grad ? coefficients[CENTRE * channels + channel] : A(0);
  A rest = grad ? coefficients[REST * channels + channel] : A(0);
  Tally<A> first, second;
  index_t skip = (int)blockDim.x / packs, left = (int)blockDim.x % packs, count = 0;
  index_t n = threadIdx.x / packs * parts + part, pack = threadIdx.x % packs;
  for (; n < outer; n += skip * parts, pack += left) {
    if (pack >= packs && (pack -= packs, n += parts) >= outer) break;
    const T* plane = x + (n * channels + channel) * inner;
    index_t start = pack * P - (index_t)(((word_t)plane & 15) / sizeof(T));
    if (start >= inner) continue;
    C v[P], g[P];
    read_both(plane, grad ? grad + (n * channels + channel) * inner : nullptr, start, inner, v, g);
    if (!grad && count == 0) pilot = finite_or_zero(widen(plane[start < 0 ? 0 : start]));
    A sum = 0, product = 0;
#pragma unroll
    for (int j = 0; j < P; ++j)
      if (start + j >= 0 && start + j < inner) {
        A centred = (v[j] - pilot) - rest, a = grad ? g[j] : centred;
        sum += a, product += a * centred, ++count;
      }
    first += sum, second += product;
  }
  double sums[] = {first.template value<double>(), second.template value<double>()};
  if (!grad) move_origin(pilot, finite_or_zero((double)widen(x[channel * inner])), count, sums[0], sums[1]);
  for (int which = 0; which < 2; ++which) {
    double sum = total<0>(sums[which]);
    if (threadIdx.x == 0) partial[(part * 2 + which) * channels + channel] = sum;
  }
}

// sum_planes for columns: blocks of 32 packs by 8 rows, `tiles` blocks across the channels.
template <class T, bool FEW>
__global__ void __launch_bounds__(256)
sum_columns(const T* x, const T* grad, const arithmetic<T, FEW>* coefficients, double* partial, index_t outer,
            index_t channels, index_t tiles, index_t parts) {
  typedef compute<T> C;
  typedef arithmetic<T, FEW> A;
  constexpr int P = PACK<T>;
  __shared__ double sums[2][8][32 * P];
  index_t tile = blockIdx.x % tiles, part = blockIdx.x / tiles, start = (tile * 32 + threadIdx.x) * P;
  index_t begin = part * 8 + threadIdx.y, count = 0;
  A pilot[P] = {}, rest[P] = {};
  Tally<A> first[P], second[P];
#pragma unroll
  for (int j = 0; j < P; ++j)
    if (start + j < channels) {
      if (grad)
        pilot[j] = coefficients[CENTRE * channels + start + j], rest[j] = coefficients[REST * channels + start + j];
      else if (begin < outer)
        pilot[j] = finite_or_zero(widen(x[begin * channels + start + j]));
    }
#pragma unroll 2
  for (index_t row = begin; row < outer; row += parts * 8) {
    C v[P], g[P];
    read_both(x + row * channels, grad ? grad + row * channels : nullptr, start, channels, v, g);
#pragma unroll
    for (int j = 0; j < P; ++j) {
      A centred = (v[j] - pilot[j]) - rest[j], a = grad ? g[j] : centred;
      first[j] += a, second[j] += a * centred;
    }
    ++count;
  }
#pragma unroll
  for (int j = 0; j < P; ++j) {
    double of[] = {first[j].template value<double>(), second[j].template value<double>()};
    if (!grad && start + j < channels) move_origin(pilot[j], finite_or_zero((double)widen(x[start + j])), count, of[0], of[1]);
    for (int which = 0; which < 2; ++which) sums[which][threadIdx.y][threadIdx.x * P + j] = of[which];
  }
  __syncthreads();
  for (int i = threadIdx.y * 32 + threadIdx.x; i < 2 * 32 * P; i += 256) {
    int which = i / (32 * P), column = i % (32 * P);
    double sum = 0;
    for (int y = 0; y < 8; ++y) sum += sums[which][y][column];
    index_t channel = tile * 32 * P + column;
    if (channel < channels) partial[(part * 2 + which) * channels + channel] = sum;
  }
}

// The sum of a channel's parts, for the first of its threads; blocks of 32 channels by 32 threads.
__device__ inline double sum_parts(const double* partial, index_t parts, index_t channels, index_t channel, int which) {
  __shared__ double sums[32][33];
  double sum = 0;
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

// Only the sums of x.
template <class T>
__global__ void __launch_bounds__(1024)
finish_sums(const T* x, const double* partial, T* sums, index_t parts, index_t channels, index_t inner, index_t count) {
  index_t channel = blockIdx.x * 32ll + threadIdx.x;
  double sum = sum_parts(partial, parts, channels, channel, 0);
  if (threadIdx.y || channel >= channels) return;
  narrow(compute<T>(sum + finite_or_zero((double)widen(x[channel * inner])) * count), sums[channel]);
}

// Coefficients from a mean and a variance.
template <class T, class A>
__device__ inline void set_coefficients(double mean, double variance, const T* scale, const T* bias, A* coefficients,
                                        index_t channels, index_t channel, double eps) {
  double inverse = 1.0 / sqrt(variance + eps), slope = scale ? inverse * widen(scale[channel]) : inverse;
  A values[COEFFICIENTS];
  values[CENTRE] = mean, values[REST] = mean - values[CENTRE];
  values[SLOPE] = values[WEIGHT] = slope, values[OFFSET] = bias ? widen(bias[channel]) : compute<T>(0);
  values[INVERSE] = inverse;
#pragma unroll
  for (int which = 0; which < COEFFICIENTS; ++which) coefficients[which * channels + channel] = values[which];
}

// Mean, variance and forward coefficients from sums. mean_out, variance_out, scale and bias may be null.
template <class T, bool FEW>
__global__ void __launch_bounds__(1024)
finish_moments(const T* x, const double* partial, const T* scale, const T* bias, arithmetic<T, FEW>* coefficients,
               T* mean_out, T* variance_out, index_t parts, index_t channels, index_t inner, index_t count, double eps) {
  typedef compute<T> C;
  index_t channel = blockIdx.x * 32ll + threadIdx.x;
  double sum = sum_parts(partial, parts, channels, channel, 0), squares = sum_parts(partial, parts, channels, channel, 1);
  if (threadIdx.y || channel >= channels) return;
  double shift = sum / count, mean = finite_or_zero((double)widen(x[channel * inner])) + shift;
  double variance = squares / count - shift * shift;
  if (variance < 0.0) variance = 0.0;
  set_coefficients(mean, variance, scale, bias, coefficients, channels, channel, eps);
  if (mean_out) narrow(C(mean), mean_out[channel]);
  if (variance_out) narrow(C(variance), variance_out[channel]);
}

// Coefficients from given statistics, as in inference.
template <class T>
__global__ void moment_coefficients(const T* mean, const T* variance, const T* scale, const T* bias,
                                    compute<T>* coefficients, index_t channels, double eps) {
  index_t channel = blockIdx.x * (index_t)blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  set_coefficients((double)widen(mean[channel]), (double)widen(variance[channel]), scale, bias, coefficients, channels,
                   channel, eps);
}

// Overwrites the forward coefficients with the backward ones; also the gradient for the scale.
template <class T, bool FEW>
__global__ void __launch_bounds__(1024)
finish_products(const double* partial, arithmetic<T, FEW>* coefficients, T* grad_scale, index_t parts, index_t channels,
                index_t count) {
  index_t channel = blockIdx.x * 32ll + threadIdx.x;
  double sum = sum_parts(partial, parts, channels, channel, 0), product = sum_parts(partial, parts, channels, channel, 1);
  if (threadIdx.y || channel >= channels) return;
  double weight = coefficients[WEIGHT * channels + channel], inverse = coefficients[INVERSE * channels + channel];
  coefficients[SLOPE * channels + channel] = -weight * inverse * inverse * product / count;
  coefficients[OFFSET * channels + channel] = -weight * sum / count;
  narrow(compute<T>(product * inverse), grad_scale[channel]);
}

// out = (x - mean) * slope + offset, plus grad * weight if there is a gradient.
template <class T, bool FEW>
__global__ void __launch_bounds__(256)
apply_planes(const T* x, const T* grad, const arithmetic<T, FEW>* coefficients, T* out, index_t planes,
             index_t channels, index_t inner) {
  typedef compute<T> C;
  typedef arithmetic<T, FEW> A;
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
    A centre = coefficients[CENTRE * channels + channel], rest = coefficients[REST * channels + channel];
    A slope = coefficients[SLOPE * channels + channel], offset = coefficients[OFFSET * channels + channel];
    A weight = grad ? coefficients[WEIGHT * channels + channel] : A(0);
#pragma unroll
    for (int j = 0; j < P; ++j) v[j] = ((v[j] - centre) - rest) * slope + offset + (grad ? g[j] * weight : A(0));
    write(out + plane * inner, start, inner, v);
  }
}

template <class T, bool FEW>
__global__ void __launch_bounds__(256)
apply_columns(const T* x, const T* grad, const arithmetic<T, FEW>* coefficients, T* out, index_t outer,
              index_t channels, index_t tiles, index_t parts) {
  typedef compute<T> C;
  typedef arithmetic<T, FEW> A;
  constexpr int P = PACK<T>;
  index_t tile = blockIdx.x % tiles, part = blockIdx.x / tiles, start = (tile * 32 + threadIdx.x) * P;
  A c[INVERSE][P] = {};
#pragma unroll
  for (int j = 0; j < P; ++j)
    if (start + j < channels) {
#pragma unroll
      for (int which = 0; which < INVERSE; ++which)
        if (which < WEIGHT || grad) c[which][j] = coefficients[which * channels + start + j];
    }
#pragma unroll 2
  for (index_t row = part * 8 + threadIdx.y; row < outer; row += parts * 8) {
    C v[P], g[P];
    read_both(x + row * channels, grad ? grad + row * channels : nullptr, start, channels, v, g);
#pragma unroll
    for (int j = 0; j < P; ++j)
      v[j] = ((v[j] - c[CENTRE][j]) - c[REST][j]) * c[SLOPE][j] + c[OFFSET][j] + (grad ? g[j] * c[WEIGHT][j] : A(0));
    write(out + row * channels, start, channels, v);
  }
}
