// Executes the PTX of a kernel on the CPU, as the PTX ISA defines it; an instruction that our kernels do not use is an
// error. Threads of a warp run together while they are at the same instruction; warps of a block run one after another,
// each as far as it can, and blocks run sequentially.
//
// Errors, because they are undefined or fatal on a GPU: an access outside every array, or unaligned; accesses of two
// threads to the same memory, one of them a write, without a barrier in between; a read of shared memory or a new array
// before it is written; barriers, shuffles and matrix instructions that not all threads reach; a shuffle from a missing
// thread; more threads or shared memory than a kernel may have; an integer division by 0.
#include <memory>
#include <numeric>

#include "reader.h"

namespace {

constexpr size_t MOST_SHARED = 48 << 10;  // bytes; more would need an attribute of the kernel

[[noreturn]] void complain(const Warp& w, const Instruction& in, const std::string& what) {
  throw Error(what + " (block " + std::to_string(w.block->number) + ", thread " + std::to_string(w.first + w.lane) +
              ", line " + std::to_string(in.source) + " of the source, line " + std::to_string(in.line) +
              " of the PTX: " + trimmed(w.block->module->lines[in.line - 1]) + ")");
}

void go(Warp& w, u32 lanes, u32 to) {
  for (; lanes; lanes &= lanes - 1) w.at[__builtin_ctz(lanes)] = to;
}

u32 lanes_at(const Warp& w, u32 among, u32 at) {
  u32 found = 0;
  for (u32 rest = among; rest; rest &= rest - 1)
    if (u32 lane = __builtin_ctz(rest); w.at[lane] == at) found |= 1u << lane;
  return found;
}

u32 first_place(const Warp& w, u32 among) {
  u32 at = NONE;
  for (; among; among &= among - 1) at = std::min(at, w.at[__builtin_ctz(among)]);
  return at;
}

// `lanes` are at an instruction that the threads of a warp execute together, when the last of them arrives. Returns the
// lanes that have executed it or have reached a block barrier.
u32 meet(Warp& w, const Instruction& in, u32 lanes, u32 at) {
  w.lane = __builtin_ctz(lanes);
  u32 needed = w.live, here = lanes | lanes_at(w, w.waiting, at);
  if (in.kind == SHUFFLE || in.kind == WARP_BARRIER) {
    u32 mask = w.slot(in.operands[in.kind == SHUFFLE ? 5 : 0])[w.lane];
    if (lanes & ~mask) throw Error("a thread that is not in the mask");
    if (in.kind == WARP_BARRIER && mask != ALL) throw Error("a barrier of part of a warp, which is not known here");
    needed &= mask;
  }
  if (needed & ~here) return w.waiting |= lanes, 0;
  if (in.kind == BLOCK_BARRIER) return w.waiting |= lanes, w.at_barrier = true, here;
  if (in.kind == ALIGNED && here != ALL) throw Error("a matrix instruction without the whole warp");
  w.waiting &= ~here;
  in.run(w, in, here);
  return here;
}

// Execute from `at` on while these lanes stay together and before `other`, the position of the next lanes.
void step(Warp& w, u32 lanes, u32 at, u32 other) {
  for (;;) {
    const Instruction& in = w.block->module->code[at];
    u32 active = lanes;
    if (in.guard != NONE) active &= u32(w.slot(in.guard)[0]) ^ (in.negated ? ALL : 0);
    try {
      if (in.kind == PLAIN) {
        if (active) in.run(w, in, active);
        if (++at < other) continue;
        return go(w, lanes, at);
      }
      go(w, lanes & ~active, at + 1);
      if (!active) return;
      if (in.kind == BRANCH || in.kind == CALL) {
        for (u32 rest = in.kind == CALL ? active : 0; rest; rest &= rest - 1)
          w.slot(in.operands[0])[__builtin_ctz(rest)] = at + 1;
        go(w, active, in.target);
        if (active == lanes && in.target < other) { at = in.target; continue; }
      } else if (in.kind == RETURN && in.target) {
        w.live &= ~active, w.waiting = 0;  // others no longer wait for them
      } else if (in.kind == RETURN) {
        for (u32 rest = active; rest; rest &= rest - 1)
          w.at[__builtin_ctz(rest)] = w.slot(in.operands[0])[__builtin_ctz(rest)];
      } else {
        go(w, active, at);
        u32 done = meet(w, in, active, at);
        if (!w.at_barrier) go(w, done, at + 1);
      }
      return;
    } catch (const Error& error) {
      complain(w, in, error.what());
    }
  }
}

// Run until all threads have ended or wait at a block barrier.
void run(Warp& w) {
  w.at_barrier = false;
  while (u32 ready = w.live & ~w.waiting) {
    // Threads that are behind run first, so that threads reconverge where their paths do.
    u32 at = first_place(w, ready), lanes = lanes_at(w, ready, at);
    step(w, lanes, at, first_place(w, ready & ~lanes));
    if (w.at_barrier) return;
  }
  if (!w.live) return;
  w.lane = __builtin_ctz(w.live);
  complain(w, w.block->module->code[w.at[w.lane]], "threads wait for others of their warp that never come");
}

void prepare(Warp& w, Block& block, u32 first, u32 start, u32 grid) {
  w.block = &block, w.first = first, w.waiting = 0, w.time = 0;
  u32 count = std::min(LANES, block.threads - first);
  w.live = count == LANES ? ALL : (1u << count) - 1;
  std::fill(std::begin(w.at), std::end(w.at), start);
  for (auto& [name, number] : block.module->special)
    for (u32 lane = 0; lane < LANES; ++lane)
      w.slot(number)[lane] = name == "%tid.x"      ? (first + lane) % block.x
                             : name == "%tid.y"    ? (first + lane) / block.x
                             : name == "%ntid.x"   ? block.x
                             : name == "%ntid.y"   ? block.y
                             : name == "%ctaid.x"  ? block.number
                             : name == "%nctaid.x" ? grid
                                                   : throw Error("a register that is not known: " + name);
}

void run_block(Block& block, std::vector<Warp>& warps, const std::vector<u32>& order, u32 start, u32 grid) {
  std::fill(block.cells.begin(), block.cells.end(), Cell());
  block.time = 0;
  for (u32 i = 0; i < warps.size(); ++i) prepare(warps[i], block, i * LANES, start, grid);
  for (;;) {
    u32 barrier = NONE;
    for (u32 i : order) {
      Warp& w = warps[i];
      if (w.live) run(w);
      if (!w.live) continue;
      w.lane = __builtin_ctz(w.live);
      if (barrier != NONE && barrier != w.at[w.lane])
        complain(w, block.module->code[w.at[w.lane]], "warps meet at different barriers");
      barrier = w.at[w.lane];
    }
    if (barrier == NONE) break;
    ++block.time;
    for (Warp& w : warps) w.waiting = 0, go(w, w.live, barrier + 1);
  }
  for (auto& copies : block.copies)
    if (!copies.empty()) throw Error("a thread ends while its copies are under way");
}

void scatter(std::vector<u32>& numbers, int order) {
  if (order % 2) std::reverse(numbers.begin(), numbers.end());
  if (order >= 2)
    for (u32 i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[(i * 2654435761u + order) % i]);
}

void launch(const Module& module, const std::string& name, u32 grid, u32 x, u32 y, int order, void** arguments,
            std::vector<Region>& regions) {
  const Function& entry = module.functions.at(name);
  Block block;
  block.module = &module, block.x = x, block.y = y, block.threads = x * y, block.regions = &regions;
  if (block.threads > entry.threads) throw Error("a block has more threads than the kernel was compiled for");
  if (entry.shared_bytes > MOST_SHARED) throw Error("a kernel has more than 48 KB of shared memory");
  block.shared.resize(module.shared_end), block.cells.resize(module.shared_end / 4 + 1);
  block.parameters.resize(entry.parameter_bytes), block.local.resize(block.threads * module.local_end);
  for (size_t i = 0; i < entry.parameters.size(); ++i)
    std::memcpy(&block.parameters[entry.parameters[i].offset], arguments[i], entry.parameters[i].size);
  block.copies.resize(block.threads), block.groups.resize(block.threads);
  std::vector<Warp> warps((block.threads + LANES - 1) / LANES);
  for (Warp& w : warps) {
    w.registers.assign(size_t(module.registers) * LANES, 0xfff8badbadbadbad);  // NaN
    for (auto [number, constant] : module.constants) std::fill_n(w.slot(number), LANES, constant);
  }
  std::vector<u32> turns(warps.size()), numbers(grid);
  std::iota(turns.begin(), turns.end(), 0u), std::iota(numbers.begin(), numbers.end(), 0u);
  scatter(turns, order), scatter(numbers, order);
  for (u32 number : numbers) block.number = number, run_block(block, warps, turns, entry.start, grid);
}

}  // namespace

// ---- for Python ----

struct Memory { u64 start, size, item; u8* known; };

extern "C" void* ptx_read(const char* text, const char** error) {
  static std::string message;
  auto module = std::make_unique<Module>();
  try {
    Reader(text, *module);
  } catch (const std::exception& e) {
    message = e.what(), *error = message.c_str();
    return nullptr;
  }
  return module.release();
}

extern "C" const char* ptx_run(void* of, const char* name, u32 grid, u32 x, u32 y, int order, void** arguments,
                               const Memory* memory, u32 count) {
  Module& module = *static_cast<Module*>(of);
  std::vector<Region> regions;
  const auto add = [&](u64 start, u64 size, u64 item, u8* known) {
    regions.push_back({start, size, item, known, std::vector<Cell>((size + item - 1) / item)});
  };
  for (u32 i = 0; i < count; ++i) add(memory[i].start, memory[i].size, memory[i].item, memory[i].known);
  for (auto& [_, table] : module.tables) add(reinterpret_cast<u64>(table.data()), table.size(), 1, nullptr);
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.start < b.start; });
  try {
    launch(module, name, grid, x, y, order, arguments, regions);
  } catch (const std::exception& e) {
    module.message = e.what();
    return module.message.c_str();
  }
  return nullptr;
}
