// cuBLASLt on host memory: it checks arguments at least as strictly as the real library, and multiplies with plain
// loops in double. Every product is stored, so that it can be repeated, as by the replay of a graph.

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, INTERNAL_ERROR = 14, NOT_SUPPORTED = 15 };
enum Type { FLOAT = 0, DOUBLE = 1, HALF = 2, COMPLEX = 4, COMPLEX_DOUBLE = 5, BFLOAT = 14 };
enum Compute { BY_FLOAT = 68, BY_DOUBLE = 70, BY_TF32 = 77 };
constexpr uint32_t EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4, EPILOGUE_BGRADB = 512;
constexpr uint32_t EPILOGUE_GELU_AUX_BIAS = 164, EPILOGUE_DGELU_BGRAD = 208;

// Every object begins with a word for its kind.
enum Kind : uint64_t { HANDLE = 0xA1, DESC = 0xA2, LAYOUT = 0xA3, PREFERENCE = 0xA4, ALGORITHM = 0xA5, GONE = 0xDEAD };

struct Handle { Kind kind = HANDLE; };
struct Desc {
  Kind kind = DESC;
  int32_t compute = 0, scale = 0, transposed[2] = {0, 0};
  uint32_t epilogue = EPILOGUE_DEFAULT;
  void *bias = nullptr, *aux = nullptr;
  int64_t aux_leading = 0;
  bool has_aux() const { return epilogue == EPILOGUE_GELU_AUX_BIAS || epilogue == EPILOGUE_DGELU_BGRAD; }
};
struct Layout {
  Kind kind = LAYOUT;
  int32_t type = 0;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0, step = 0;
  int32_t count = 1;
};
struct Preference {
  Kind kind = PREFERENCE;
  uint64_t workspace = 0;
  uint32_t schemes = 7, alignment[4] = {256, 256, 256, 256};
};
struct Algorithm { uint64_t kind, problem, workspace, alignment[4]; uint32_t bias_alignment, aux_alignment; };
static_assert(sizeof(Algorithm) == 64);
struct Result {
  Algorithm algorithm;
  size_t workspace;
  int32_t state;
  float waves;
  int32_t reserved[4];
};
static_assert(sizeof(Result) == 96);

struct Product {
  Desc desc;
  Layout a, b, d;
  double alpha, beta;
  const char *at_a, *at_b;
  char* at_d;
  void* stream;
};
std::vector<Product> products;
void (*listener)(int64_t) = nullptr;
int refused = 0;  // 1: products with an epilogue, 2: all
int64_t alive = 0;

template <class T> T* as(void* p) {
  T* object = static_cast<T*>(p);
  return object && object->kind == T().kind ? object : nullptr;
}
template <class T> int make(void** place, const T& value) {
  *place = new T(value);
  ++alive;
  return SUCCESS;
}
template <class T> int destroy(void* p) {
  T* object = as<T>(p);
  if (!object) return INVALID_VALUE;
  object->kind = GONE;
  delete object;
  --alive;
  return SUCCESS;
}
template <class T> int assign(T& place, const void* value, size_t size) {
  if (!value || size != sizeof(T)) return INVALID_VALUE;
  std::memcpy(&place, value, size);
  return SUCCESS;
}

bool is_complex(int type) { return type == COMPLEX || type == COMPLEX_DOUBLE; }
bool is_double(int type) { return type == DOUBLE || type == COMPLEX_DOUBLE; }
size_t size_of(int type) {
  return type == COMPLEX_DOUBLE ? 16 : type == DOUBLE || type == COMPLEX ? 8 : type == FLOAT ? 4 : 2;
}
bool is_type(int type) {
  return type == FLOAT || type == DOUBLE || type == HALF || type == BFLOAT || is_complex(type);
}

double read(const char* at, int type) {
  if (type == DOUBLE) return *reinterpret_cast<const double*>(at);
  if (type == FLOAT) return *reinterpret_cast<const float*>(at);
  if (type == HALF) return static_cast<float>(*reinterpret_cast<const _Float16*>(at));
  const uint32_t bits = static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(at)) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// A float without its last bits, rounded to nearest even.
float rounded(float value, int dropped) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) return value;
  const uint32_t half = (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
  bits = (bits + half) >> dropped << dropped;
  std::memcpy(&value, &bits, 4);
  return value;
}

void write(char* at, int type, double value) {
  if (type == DOUBLE) { std::memcpy(at, &value, 8); return; }
  float narrow = static_cast<float>(value);
  if (type == FLOAT) { std::memcpy(at, &narrow, 4); return; }
  if (type == HALF) { *reinterpret_cast<_Float16*>(at) = static_cast<_Float16>(narrow); return; }
  narrow = rounded(narrow, 16);
  std::memcpy(at, reinterpret_cast<char*>(&narrow) + 2, 2);
}

// The bytes from the first element of a layout to the end of the last.
size_t extent(const Layout& l) {
  return ((l.count - 1) * l.step + (l.columns - 1) * l.leading + l.rows) * size_of(l.type);
}

// The tanh form of GELU, and its derivative.
double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
double gelu_gradient(double x) {
  const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

[[gnu::optimize("O3")]] void add(double* __restrict__ sums, const double* column, double factor, uint64_t rows) {
  for (uint64_t row = 0; row < rows; ++row) sums[row] += column[row] * factor;
}

// A product of complex matrices with parts of type T, accumulated in double, without epilogues.
template <class T> void run_complex(const Product& p) {
  typedef std::complex<double> Wide;
  const uint64_t length = p.desc.transposed[0] ? p.a.rows : p.a.columns;
  auto element = [&](const Layout& l, const char* at, int transposed, int place, uint64_t row, uint64_t column) {
    if (transposed) std::swap(row, column);
    return Wide(reinterpret_cast<const std::complex<T>*>(at)[place * l.step + column * l.leading + row]);
  };
  for (int place = 0; place < p.d.count; ++place)
    for (uint64_t column = 0; column < p.d.columns; ++column)
      for (uint64_t row = 0; row < p.d.rows; ++row) {
        Wide total = 0;
        for (uint64_t i = 0; i < length; ++i)
          total += element(p.a, p.at_a, p.desc.transposed[0], place, row, i) *
                   element(p.b, p.at_b, p.desc.transposed[1], place, i, column);
        reinterpret_cast<std::complex<T>*>(p.at_d)[place * p.d.step + column * p.d.leading + row] =
            std::complex<T>(p.alpha * total);
      }
}

void run(const Product& p) {
  if (p.d.type == COMPLEX) return run_complex<float>(p);
  if (p.d.type == COMPLEX_DOUBLE) return run_complex<double>(p);
  const uint64_t length = p.desc.transposed[0] ? p.a.rows : p.a.columns;
  const size_t size = size_of(p.d.type);
  auto element = [&](const Layout& l, const char* at, int transposed, int place, uint64_t row, uint64_t column) {
    if (transposed) std::swap(row, column);
    const double value = read(at + (place * l.step + column * l.leading + row) * size_of(l.type), l.type);
    return p.desc.compute == BY_TF32 ? rounded(static_cast<float>(value), 13) : value;
  };
  // An operand as a dense column-major matrix, transposed if requested.
  auto dense = [&](const Layout& l, const char* at, int transposed, int place, uint64_t rows, uint64_t columns) {
    std::vector<double> matrix;
    matrix.reserve(rows * columns);
    for (uint64_t column = 0; column < columns; ++column)
      for (uint64_t row = 0; row < rows; ++row) matrix.push_back(element(l, at, transposed, place, row, column));
    return matrix;
  };
  std::vector<double> sums(p.d.rows), totals;
  for (int place = 0; place < p.d.count; ++place) {
    const auto a = dense(p.a, p.at_a, p.desc.transposed[0], place, p.d.rows, length);
    const auto b = dense(p.b, p.at_b, p.desc.transposed[1], place, length, p.d.columns);
    for (uint64_t column = 0; column < p.d.columns; ++column) {
      totals.assign(p.d.rows, 0);
      for (uint64_t i = 0; i < length; ++i) add(totals.data(), &a[i * p.d.rows], b[column * length + i], p.d.rows);
      for (uint64_t row = 0; row < p.d.rows; ++row) {
        double total = totals[row];
        char* at = p.at_d + (place * p.d.step + column * p.d.leading + row) * size;
        total = p.alpha * total + (p.beta != 0 ? p.beta * read(at, p.d.type) : 0);
        if (p.desc.epilogue == EPILOGUE_BIAS || p.desc.epilogue == EPILOGUE_GELU_AUX_BIAS)
          total += read(static_cast<const char*>(p.desc.bias) + row * size, p.d.type);
        char* beside = static_cast<char*>(p.desc.aux) + (column * p.desc.aux_leading + row) * size;
        if (p.desc.epilogue == EPILOGUE_GELU_AUX_BIAS) {
          write(beside, p.d.type, total);
          total = gelu(total);
        } else if (p.desc.epilogue == EPILOGUE_DGELU_BGRAD) {
          total *= gelu_gradient(read(beside, p.d.type));
          sums[row] += total;
        }
        write(at, p.d.type, total);
      }
    }
  }
  if (p.desc.epilogue == EPILOGUE_DGELU_BGRAD)
    for (uint64_t row = 0; row < p.d.rows; ++row)
      write(static_cast<char*>(p.desc.bias) + row * size, p.d.type, sums[row]);
  if (p.desc.epilogue == EPILOGUE_BGRADB)
    for (uint64_t column = 0; column < p.d.columns; ++column) {
      double total = 0;
      for (uint64_t i = 0; i < length; ++i) total += element(p.b, p.at_b, p.desc.transposed[1], 0, i, column);
      write(static_cast<char*>(p.desc.bias) + column * size, p.d.type, total);
    }
}

uint64_t alignment_of(const void* at) {
  const uint64_t address = reinterpret_cast<uint64_t>(at), largest = address & (~address + 1);
  return largest < 256 ? largest : 256;
}

// Whether layouts match, and meet the documented requirements.
bool fit(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  for (const Layout* l : {&a, &b, &d})
    if (!is_type(l->type) || l->rows == 0 || l->columns == 0 || l->count != a.count ||
        l->leading < static_cast<int64_t>(l->rows) || l->step < 0)
      return false;
  // The result of 16-bit operands may be of float32.
  if (b.type != a.type || (d.type != a.type && !(size_of(a.type) == 2 && d.type == FLOAT))) return false;
  if ((desc.compute == BY_DOUBLE) != is_double(a.type)) return false;
  if (desc.scale != (is_complex(a.type) || a.type == DOUBLE ? a.type : FLOAT)) return false;
  if (is_complex(a.type) && desc.epilogue != EPILOGUE_DEFAULT) return false;
  if (desc.compute == BY_TF32 && a.type != FLOAT) return false;
  if (desc.epilogue != EPILOGUE_DEFAULT && !desc.bias) return false;
  if (desc.has_aux()) {
    if (!desc.aux || alignment_of(desc.aux) < 16) return false;
    if (desc.aux_leading % 8 || desc.aux_leading < static_cast<int64_t>(d.rows)) return false;
  } else if (desc.epilogue != EPILOGUE_DEFAULT && desc.epilogue != EPILOGUE_BIAS && desc.epilogue != EPILOGUE_BGRADB) {
    return false;
  }
  if ((desc.epilogue == EPILOGUE_BGRADB || desc.has_aux()) && d.count > 1) return false;  // ambiguous
  if (d.count > 1 && d.step < static_cast<int64_t>(d.leading * d.columns)) return false;  // results would overlap
  const auto [m, k] = desc.transposed[0] ? std::pair(a.columns, a.rows) : std::pair(a.rows, a.columns);
  const auto [l, n] = desc.transposed[1] ? std::pair(b.columns, b.rows) : std::pair(b.rows, b.columns);
  return m == d.rows && n == d.columns && k == l;
}

// A hash of everything that the choice of an algorithm depends on.
uint64_t problem_of(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  uint64_t hash = 1469598103934665603ull;
  auto add = [&](uint64_t word) { hash = (hash ^ word) * 1099511628211ull; };
  for (uint64_t word : {(uint64_t)desc.compute, (uint64_t)desc.scale, (uint64_t)desc.transposed[0],
                        (uint64_t)desc.transposed[1], (uint64_t)desc.epilogue, (uint64_t)desc.aux_leading})
    add(word);
  for (const Layout* l : {&a, &b, &d})
    for (uint64_t word : {(uint64_t)l->type, l->rows, l->columns, (uint64_t)l->leading, (uint64_t)l->step, (uint64_t)l->count})
      add(word);
  return hash;
}

}  // namespace

extern "C" {

// ---- the real library's interface ----

size_t cublasLtGetVersion() { return 120901; }

int cublasLtCreate(void** place) { return make(place, Handle()); }

int cublasLtMatmulDescCreate(void** place, int compute, int scale) {
  Desc desc;
  desc.compute = compute;
  desc.scale = scale;
  return make(place, desc);
}
int cublasLtMatmulDescDestroy(void* p) { return destroy<Desc>(p); }
int cublasLtMatmulDescSetAttribute(void* p, int attribute, const void* value, size_t size) {
  Desc* desc = as<Desc>(p);
  if (!desc) return INVALID_VALUE;
  if (attribute == 3 || attribute == 4) return assign(desc->transposed[attribute - 3], value, size);
  if (attribute == 7) return assign(desc->epilogue, value, size);
  if (attribute == 8) return assign(desc->bias, value, size);
  if (attribute == 11) return assign(desc->aux, value, size);
  if (attribute == 12) return assign(desc->aux_leading, value, size);
  return INVALID_VALUE;
}

int cublasLtMatrixLayoutCreate(void** place, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  Layout layout;
  layout.type = type;
  layout.rows = rows;
  layout.columns = columns;
  layout.leading = leading;
  return make(place, layout);
}
int cublasLtMatrixLayoutDestroy(void* p) { return destroy<Layout>(p); }
int cublasLtMatrixLayoutSetAttribute(void* p, int attribute, const void* value, size_t size) {
  Layout* layout = as<Layout>(p);
  if (!layout) return INVALID_VALUE;
  if (attribute == 5) return assign(layout->count, value, size);
  if (attribute == 6) return assign(layout->step, value, size);
  return INVALID_VALUE;
}

int cublasLtMatmulPreferenceCreate(void** place) { return make(place, Preference()); }
int cublasLtMatmulPreferenceDestroy(void* p) { return destroy<Preference>(p); }
int cublasLtMatmulPreferenceSetAttribute(void* p, int attribute, const void* value, size_t size) {
  Preference* preference = as<Preference>(p);
  if (!preference) return INVALID_VALUE;
  if (attribute == 1) return assign(preference->workspace, value, size);
  if (attribute == 3) return assign(preference->schemes, value, size);
  if (attribute >= 5 && attribute <= 8) return assign(preference->alignment[attribute - 5], value, size);
  return INVALID_VALUE;
}

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference,
                                   int wanted, Result* results, int* count) {
  if (!as<Handle>(handle)) return NOT_INITIALIZED;
  Desc* what = as<Desc>(desc);
  Layout *la = as<Layout>(a), *lb = as<Layout>(b), *lc = as<Layout>(c), *ld = as<Layout>(d);
  Preference* wishes = as<Preference>(preference);
  // The real library returns INVALID_VALUE here, which the backend reads as "no algorithm"; it would be our error.
  if (!what || !la || !lb || !lc || !ld || !wishes || wanted < 1 || !results || !count) return INTERNAL_ERROR;
  if (lc != ld || !fit(*what, *la, *lb, *ld)) return INTERNAL_ERROR;
  if (size_of(ld->type) == 2 && wishes->schemes != 2) return INTERNAL_ERROR;  // 16-bit partial sums
  *count = 0;
  if (refused == 3) return INVALID_VALUE;
  if (refused == 2 || (refused == 1 && what->epilogue != EPILOGUE_DEFAULT)) return NOT_SUPPORTED;
  Result& best = results[0];
  best = Result();
  best.algorithm.kind = ALGORITHM;
  best.algorithm.problem = problem_of(*what, *la, *lb, *ld);
  best.algorithm.bias_alignment = what->bias ? alignment_of(what->bias) : 1;
  best.algorithm.aux_alignment = what->aux ? alignment_of(what->aux) : 1;
  for (int i = 0; i < 4; ++i) best.algorithm.alignment[i] = wishes->alignment[i];
  best.workspace = best.algorithm.workspace = ld->rows % 2 && wishes->workspace >= 4096 ? 4096 : 0;
  *count = 1;
  return SUCCESS;
}

int cublasLtMatmul(void* handle, void* desc, const void* alpha, const void* a, void* at_a, const void* b, void* at_b,
                   const void* beta, const void* c, void* at_c, void* d, void* at_d, const Algorithm* algorithm,
                   void* workspace, size_t workspace_size, void* stream) {
  if (!as<Handle>(handle)) return NOT_INITIALIZED;
  Desc* what = as<Desc>(desc);
  Layout *la = as<Layout>(at_a), *lb = as<Layout>(at_b), *lc = as<Layout>(at_c), *ld = as<Layout>(at_d);
  if (!what || !la || !lb || !lc || !ld || !alpha || !beta || !a || !b || !d || c != d || lc != ld)
    return INVALID_VALUE;
  if (!algorithm || algorithm->kind != ALGORITHM || algorithm->problem != problem_of(*what, *la, *lb, *ld))
    return INVALID_VALUE;
  const void* places[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (alignment_of(places[i]) < algorithm->alignment[i]) return INVALID_VALUE;
  if (what->epilogue != EPILOGUE_DEFAULT && (!what->bias || alignment_of(what->bias) < algorithm->bias_alignment))
    return INVALID_VALUE;
  if (what->has_aux() && alignment_of(what->aux) < algorithm->aux_alignment) return INVALID_VALUE;
  if (workspace_size < algorithm->workspace || (algorithm->workspace && !workspace)) return INVALID_VALUE;
  if (algorithm->workspace) std::memset(workspace, 0x7F, workspace_size);  // the library may write it
  const char *first = static_cast<char*>(d), *last = first + extent(*ld);
  const char *in_a = static_cast<const char*>(a), *in_b = static_cast<const char*>(b);
  if ((in_a < last && first < in_a + extent(*la)) || (in_b < last && first < in_b + extent(*lb))) return INVALID_VALUE;
  const bool wide = is_double(what->scale);
  auto factor = [&](const void* p) { return wide ? *static_cast<const double*>(p) : *static_cast<const float*>(p); };
  auto imaginary = [&](const void* p) {
    return wide ? static_cast<const double*>(p)[1] : static_cast<const float*>(p)[1];
  };
  if (is_complex(what->scale) && (imaginary(alpha) != 0 || factor(beta) != 0 || imaginary(beta) != 0))
    return INVALID_VALUE;
  products.push_back({*what, *la, *lb, *ld, factor(alpha), factor(beta), in_a, in_b, static_cast<char*>(d), stream});
  run(products.back());
  if (listener) listener(static_cast<int64_t>(products.size()) - 1);
  return SUCCESS;
}

// ---- for the tests ----

void fake_listen(void (*to)(int64_t)) { listener = to; }
void fake_refuse(int what) { refused = what; }
void fake_again(int64_t number) { run(products[number]); }
int64_t fake_alive() { return alive; }
// Fields of a product: m, n, k, batch, transposed a and b, type, compute type, epilogue, stream.
void fake_describe(int64_t number, int64_t* to) {
  const Product& p = products[number];
  const int64_t words[] = {(int64_t)p.d.rows, (int64_t)p.d.columns,
                           (int64_t)(p.desc.transposed[0] ? p.a.rows : p.a.columns), p.d.count, p.desc.transposed[0],
                           p.desc.transposed[1], p.d.type, p.desc.compute, p.desc.epilogue,
                           (int64_t)p.stream};
  std::memcpy(to, words, sizeof words);
}
}
