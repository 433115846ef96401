// The part of CUDA's runtime and driver that CuPy calls, on host memory. Kernels are not run: their launches are
// checked and counted. Calls that a recording forbids fail as in CUDA; calls that it would lose are reported.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

typedef void* P;

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_DEVICE = 101, NOT_WHILE_CAPTURING = 900 };
enum { TO_DEVICE = 1, TO_HOST = 2, WITHIN = 3 };

std::mutex lock;
std::map<uintptr_t, size_t> blocks;  // of device memory
std::set<P> capturing;               // streams
size_t used;
long launches;
int last_error;
std::string problems;
uintptr_t next_handle = 4096;

int fail(int code) { return last_error = code; }
void problem(const std::string& words) { problems += words + "\n"; }
P handle() { return reinterpret_cast<P>(next_handle += 16); }

bool is_device(const void* p, size_t size) {
  std::lock_guard<std::mutex> guard(lock);
  auto block = blocks.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (block == blocks.begin()) return false;
  --block;
  return reinterpret_cast<uintptr_t>(p) + size <= block->first + block->second;
}

// Whether work on a stream runs now, and is not recorded.
bool is_done(P stream, const char* what) {
  if (capturing.empty()) return true;
  if (!capturing.count(stream)) problem(std::string(what) + " on another stream than the one that is recorded");
  return false;
}

int copy(P to, const void* from, size_t size, int kind, bool now) {
  if (size && kind != TO_HOST && !is_device(to, size)) problem("a copy to what is no memory of the device");
  if (size && kind != TO_DEVICE && !is_device(from, size)) problem("a copy from what is no memory of the device");
  if (now) memmove(to, from, size);
  return SUCCESS;
}
}  // namespace

extern "C" {
long host_launches() { return launches; }
const char* host_problems() { return problems.c_str(); }
void host_forget() { problems.clear(); }

// ---- the runtime, with the names of CuPy's library ----

const char* host_cudaGetErrorName(int code) {
  return code == NO_MEMORY ? "cudaErrorMemoryAllocation"
         : code == NOT_WHILE_CAPTURING ? "cudaErrorStreamCaptureUnsupported" : "cudaErrorInvalidValue";
}
const char* host_cudaGetErrorString(int code) {
  return code == NOT_WHILE_CAPTURING ? "operation not permitted when stream is capturing" : "";
}
int host_cudaGetLastError() { int code = last_error; last_error = SUCCESS; return code; }
int host_cudaDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
int host_cudaGetDeviceCount(int* count) { return *count = 1, SUCCESS; }
int host_cudaGetDevice(int* device) { return *device = 0, SUCCESS; }
int host_cudaSetDevice(int device) { return device ? fail(INVALID_DEVICE) : SUCCESS; }
int host_cudaDeviceGetAttribute(int* value, int attribute, int) {
  static const std::map<int, int> known = {{1, 1024}, {8, 49152}, {10, 32}, {16, 132}, {75, 9}, {76, 0}};
  auto found = known.find(attribute);
  return *value = found == known.end() ? 0 : found->second, SUCCESS;
}
int host_cudaGetDeviceProperties_v2(P properties, int) {
  memset(properties, 0, 1024);
  *reinterpret_cast<int*>(static_cast<char*>(properties) + 308) = 32;  // warp size
  return SUCCESS;
}
int host_cudaGetDeviceProperties(P properties, int device) { return host_cudaGetDeviceProperties_v2(properties, device); }
int host_cudaDeviceSynchronize() { return capturing.empty() ? SUCCESS : fail(NOT_WHILE_CAPTURING); }

int host_cudaMalloc(P* place, size_t size) {
  if (size > size_t(4) << 30 || posix_memalign(place, 512, size ? size : 512)) return fail(NO_MEMORY);
  memset(*place, 0, size);
  std::lock_guard<std::mutex> guard(lock);
  return blocks[reinterpret_cast<uintptr_t>(*place)] = size, used += size, SUCCESS;
}
int host_cudaFree(P place) {
  std::lock_guard<std::mutex> guard(lock);
  if (!place) return SUCCESS;
  auto block = blocks.find(reinterpret_cast<uintptr_t>(place));
  if (block == blocks.end()) return problem("cudaFree of what was not allocated"), fail(INVALID_VALUE);
  if (!capturing.empty()) problem("cudaFree in the midst of a recording");
  used -= block->second, blocks.erase(block), free(place);
  return SUCCESS;
}
int host_cudaHostAlloc(P* place, size_t size, unsigned) { return *place = calloc(1, size ? size : 1), SUCCESS; }
int host_cudaFreeHost(P place) { return free(place), SUCCESS; }
int host_cudaMemGetInfo(size_t* free_, size_t* total) {
  return *total = size_t(139) << 30, *free_ = *total - used, SUCCESS;
}
struct Attributes { int type, device; P on_device, on_host; };
int host_cudaPointerGetAttributes(Attributes* attributes, P place) {
  return *attributes = {is_device(place, 0) ? 2 : 0, 0, place, place}, SUCCESS;
}
int host_cudaMemcpy(P to, const void* from, size_t size, int kind) {
  return capturing.empty() ? copy(to, from, size, kind, true) : fail(NOT_WHILE_CAPTURING);
}
int host_cudaMemcpyAsync(P to, const void* from, size_t size, int kind, P stream) {
  return copy(to, from, size, kind, is_done(stream, "a copy"));
}
int host_cudaMemset(P to, int value, size_t size) {
  return capturing.empty() ? memset(to, value, size), SUCCESS : fail(NOT_WHILE_CAPTURING);
}
int host_cudaMemsetAsync(P to, int value, size_t size, P stream) {
  if (size && !is_device(to, size)) problem("a fill of what is no memory of the device");
  if (is_done(stream, "a fill")) memset(to, value, size);
  return SUCCESS;
}

int host_cudaStreamCreateWithPriority(P* stream, unsigned, int) { return *stream = handle(), SUCCESS; }
int host_cudaStreamDestroy(P) { return SUCCESS; }
int host_cudaStreamSynchronize(P stream) { return capturing.count(stream) ? fail(NOT_WHILE_CAPTURING) : SUCCESS; }
int host_cudaStreamQuery(P) { return SUCCESS; }
int host_cudaStreamWaitEvent(P, P, unsigned) { return SUCCESS; }
int host_cudaStreamBeginCapture(P stream, int) {
  return stream ? capturing.insert(stream), SUCCESS : fail(NOT_WHILE_CAPTURING);
}
int host_cudaStreamEndCapture(P stream, P* graph) { return capturing.erase(stream), *graph = handle(), SUCCESS; }
int host_cudaStreamIsCapturing(P stream, int* status) { return *status = capturing.count(stream), SUCCESS; }
int host_cudaEventCreateWithFlags(P* event, unsigned) { return *event = handle(), SUCCESS; }
int host_cudaEventDestroy(P) { return SUCCESS; }
int host_cudaEventQuery(P) { return SUCCESS; }
int host_cudaEventRecord(P, P) { return SUCCESS; }
int host_cudaEventSynchronize(P) { return SUCCESS; }
int host_cudaGraphInstantiate(P* instance, P, unsigned long long) { return *instance = handle(), SUCCESS; }
int host_cudaGraphLaunch(P, P) { return ++launches, SUCCESS; }
int host_cudaGraphDestroy(P) { return SUCCESS; }
int host_cudaGraphExecDestroy(P) { return SUCCESS; }
int host_cudaGraphDebugDotPrint(P, const char*, unsigned) { return fail(INVALID_VALUE); }
long host_nothing() { return 0; }

// ---- the driver ----

int cuGetErrorName(int, const char** words) { return *words = "CUDA_ERROR_INVALID_VALUE", SUCCESS; }
int cuGetErrorString(int, const char** words) { return *words = "invalid argument", SUCCESS; }
int cuCtxGetCurrent(P* context) { return *context = reinterpret_cast<P>(1), SUCCESS; }
int cuModuleLoadData(P* module, const void*) { return *module = handle(), SUCCESS; }
int cuModuleUnload(P) { return SUCCESS; }
int cuModuleGetFunction(P* function, P, const char* name) { return *function = new std::string(name), SUCCESS; }
int cuFuncGetAttribute(int* value, int, P) { return *value = 1024, SUCCESS; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks_, P, int, size_t) { return *blocks_ = 2, SUCCESS; }
int cuLaunchKernel(P function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   P stream, P*, P*) {
  ++launches;
  is_done(stream, "a launch");
  bool has_threads = x && y && z && bx && by && bz;
  if (has_threads && x <= 2147483647u && y <= 65535 && z <= 65535 && bz <= 64 && bx * by * bz <= 1024 && shared <= 49152)
    return SUCCESS;
  problem("a launch of " + *static_cast<std::string*>(function) + " that no device takes");
  return fail(INVALID_VALUE);
}
}
