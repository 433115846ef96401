// Fused log-softmax and cross-entropy: a row of logits is read once, and the forward pass never stores its softmax.
// `step` is the stride of the losses' gradients: 0 for the gradient of a mean, which all rows share.
#include "fault.cuh"
#include "powers.cuh"

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>, BLOCKS<T, ITEMS>)
label_cross_entropy(const T* x, const index_t* labels, T* out, index_t rows, index_t length, Fault* fault) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 1> line(group, row, rows, length, true, x);
    C top, sum;
    powers<T, LANES>(line, top, sum);
    if (row < rows && group.lane == 0) {
      index_t label = labels[row];
      bool known = label >= 0 && label < length;
      if (!known) report(fault, label, length);
      // A label out of range gives NaN here, and raises when the host next checks.
      C picked = known ? widen(x[row * length + label]) - top : infinity(C(0)) - infinity(C(0));
      narrow(log(sum) - picked, out[row]);
    }
  }
}

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>, BLOCKS<T, ITEMS>)
label_cross_entropy_backward(const T* grad, index_t step, const T* x, const index_t* labels, T* out, index_t rows,
                             index_t length, Fault* fault) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 1> line(group, row, rows, length, true, x);
    C top, sum;
    powers<T, LANES>(line, top, sum);
    index_t label = row < rows ? labels[row] : 0;
    C g = row < rows ? widen(grad[row * step]) : C(0), inverse = C(1) / sum;
    if (row < rows && group.lane == 0 && (label < 0 || label >= length)) report(fault, label, length);
    // The share of the label minus 1 is minus that of the others, which does not cancel; a row of one class keeps NaN.
    C others = 0;
    line.each([&](C v, C, index_t element) {
      const C share = exponential<T>(v - top);
      others += element == label ? share - share : share;
    });
    others = total<LANES>(others);
    line.store(out + row * length, [&](C v, C, index_t element) {
      return (element == label ? -others : exponential<T>(v - top)) * inverse * g;
    });
  }
}

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>)
softmax_cross_entropy(const T* x, const T* targets, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 2> line(group, row, rows, length, true, x, targets);
    C top, sum, loss = 0;
    powers<T, LANES>(line, top, sum);
    C logarithm = log(sum);
    line.each([&](C v, C target, index_t) { loss += target == C(0) ? C(0) : target * (v - top - logarithm); });
    loss = total<LANES>(loss);
    if (row < rows && group.lane == 0) narrow(-loss, out[row]);
  }
}

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>)
softmax_cross_entropy_backward(const T* grad, index_t step, const T* x, const T* targets, T* out, index_t rows,
                               index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 2> line(group, row, rows, length, true, x, targets);
    C top, sum, others = 0, of_others = 0, of_winner = 0;
    powers<T, LANES>(line, top, sum);
    const C inverse = C(1) / sum, g = row < rows ? widen(grad[row * step]) : C(0);
    // A share above 1/2 is computed from the others, as in softmax_backward.
    line.each([&](C v, C target, index_t) {
      const C share = exponential<T>(v - top) * inverse;
      if (share > C(0.5)) of_winner += target;
      else others += share, of_others += target;
    });
    others = total<LANES>(others), of_others = total<LANES>(of_others);
    const C weight = of_others + total<LANES>(of_winner);
    line.store(out + row * length, [&](C v, C target, index_t) {
      const C share = exponential<T>(v - top) * inverse;
      return (share > C(0.5) ? share * of_others - target * others : share * weight - target) * g;
    });
  }
}
