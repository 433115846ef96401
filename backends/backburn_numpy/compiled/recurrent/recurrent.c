/* Steps of LSTMs and GRUs, of float and of double. */
#include "runtime/either_type.h"
#include "runtime/thread_pool.h"

#include "recurrent.h"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double
#include "recurrent.h"
