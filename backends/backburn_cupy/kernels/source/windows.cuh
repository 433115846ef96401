// Windows over the last one to three axes of an array.
#pragma once
#include "common.cuh"

// Windows over the last three axes of an array (examples, channels, ...); strides in elements. Unused axes: size 1.
struct Windows {
  index_t example, channel, step[3];  // the array's strides
  index_t sizes[3], window[3], places[3], stride[3], dilation[3], before[3];
  index_t examples, channels;
};
