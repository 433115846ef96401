// Structures of modules, blocks, warps, and memory with checked accesses.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef std::runtime_error Error;

constexpr u32 LANES = 32, ALL = ~0u, NONE = ~0u;

// ---- a module ----

struct Warp;
struct Instruction;
typedef void (*Handler)(Warp&, const Instruction&, u32 lanes);

enum Kind : u8 { PLAIN, BRANCH, CALL, RETURN, BLOCK_BARRIER, WARP_BARRIER, SHUFFLE, ALIGNED };
enum Space : u8 { PARAMETERS, LOCAL, SHARED, GLOBAL };

struct Instruction {
  Handler run = nullptr;
  Kind kind = PLAIN;
  Space space = GLOBAL;
  bool negated = false, is_signed = false;  // of its predicate; of loaded values
  u8 size = 0, count = 0;                   // of a load or store: bytes per element, and number of elements
  u32 guard = NONE;                         // the register of its predicate
  u32 operands[14] = {};                    // registers
  s64 offset = 0;                           // added to an address
  u32 target = NONE;
  u32 line = 0, source = 0;                 // its line in the PTX, and in the CUDA source
};

struct Parameter { size_t offset, size; };

struct Registers { u32 first, count; };

struct Function {
  std::string name;
  u32 start = 0, back = 0;                  // `back` is the register of the return address
  bool is_entry = false;
  std::vector<Parameter> parameters;        // of an entry
  std::vector<Registers> given, returned;   // of other functions: their parameters and results
  size_t parameter_bytes = 0, shared_bytes = 0;
  u32 threads = 1024;                       // the most per block
};

// A register has 64 bits per lane; a predicate has one bit per lane, in the first word.
struct Module {
  std::vector<Instruction> code;
  std::vector<std::string> lines;                        // the text
  std::map<std::string, Function> functions;
  u32 registers = 0;
  std::vector<std::pair<u32, u64>> constants;            // registers that hold a number
  std::map<std::string, u32> special;                    // registers such as %tid.x
  std::map<std::string, std::pair<u64, u64>> shared;     // variables: the first byte and the end
  std::map<std::string, std::vector<u8>> tables;         // constants in global memory
  std::map<std::string, u64> locals;                     // variables of a thread
  u64 shared_end = 64, local_end = 0;
  std::string message;
};

// ---- memory ----

// The last accesses to a cell of memory. Times count barriers: of the block, and of the warp.
struct Access { u32 block = NONE; u16 thread = 0, block_time = 0; u32 warp_time = 0; };

struct Cell {
  Access write, read;              // the last ones
  u32 readers = 0;                 // lanes of that reader's warp, since its barrier
  bool by_warps = false;           // read by several of the block, since its barrier
  bool by_blocks = false;
  bool atomic = false, written = false, under_way = false;
};

struct Region {
  u64 start, size, item;
  u8* known;                       // for each byte of a fresh array, whether a kernel has written it; or null
  std::vector<Cell> cells;         // one per element
};

struct Copy { u32 to; u64 from; u32 size; int group; };

struct Block {
  const Module* module;
  u32 number = 0, time = 0;
  u32 x, y, threads;
  std::vector<u8> shared, parameters, local;
  std::vector<Cell> cells;         // of shared memory, one per four bytes
  std::vector<Region>* regions;    // in order
  std::vector<std::vector<Copy>> copies;  // pending, by thread
  std::vector<int> groups;
};

struct Warp {
  Block* block;
  u32 first;                       // thread
  u32 live = 0, waiting = 0, time = 0;
  bool at_barrier = false;
  u32 at[LANES];
  u32 lane = 0;                    // that executes
  u32 carry = 0;                   // of each lane
  std::vector<u64> registers;
  u64* slot(u32 number) { return &registers[size_t(number) * LANES]; }
};

#define FOR_LANES(w, lanes) \
  for (u32 rest_ = (lanes); rest_ && ((w).lane = __builtin_ctz(rest_), true); rest_ &= rest_ - 1)

// ---- checks ----

// Whether another thread's access is unordered with this warp's: no barrier lies between them.
inline bool may_swap(const Warp& w, const Access& other) {
  if (other.block == NONE) return false;
  if (other.block != w.block->number) return true;
  if (other.block_time != w.block->time) return false;
  return other.thread / LANES != w.first / LANES || other.warp_time == w.time;
}

// Record an access; fail if it is unordered with another thread's, and either writes.
inline void touch(Warp& w, Cell& cell, bool writes, bool atomic) {
  const auto who = [](const Access& a) {
    return "thread " + std::to_string(a.thread) + " of block " + std::to_string(a.block);
  };
  if (cell.under_way) throw Error("an access to memory to which a copy is under way");
  const Access last = cell.write, read = cell.read;
  const Access now = {w.block->number, u16(w.first + w.lane), u16(w.block->time), w.time};
  bool mine = last.thread == now.thread && last.block == now.block;
  if (!mine && !(atomic && cell.atomic) && may_swap(w, last))
    throw Error(std::string("a race: it ") + (writes ? "writes" : "reads") + " what is written by " + who(last));
  u32 me = 1u << w.lane;
  bool near = read.block == now.block && read.block_time == now.block_time;
  bool in_warp = near && read.thread / LANES == w.first / LANES;
  if (writes) {
    bool only_mine = in_warp && !cell.by_warps && !cell.by_blocks && !(cell.readers & ~me);
    if (cell.by_blocks || (near && cell.by_warps) || (may_swap(w, read) && !only_mine))
      throw Error("a race: it writes what is read by another thread, such as " + who(read));
    cell.write = now, cell.atomic = atomic, cell.written = true;
    return;
  }
  cell.by_blocks |= read.block != NONE && read.block != now.block;
  cell.by_warps = near && (cell.by_warps || !in_warp);
  cell.readers = me | (in_warp && read.warp_time == w.time ? cell.readers : 0);
  cell.read = now;
}

inline void check_aligned(u64 address, u64 bytes) {
  if (address % bytes) throw Error("an access of " + std::to_string(bytes) + " bytes that is not aligned");
}

inline std::string outside(const std::vector<Region>& regions, std::vector<Region>::iterator after, u64 address) {
  std::string text = " bytes outside of every array";
  if (after != regions.begin())
    text += ", " + std::to_string(address - after[-1].start) + " after the start of one of " +
            std::to_string(after[-1].size) + " bytes";
  if (after != regions.end()) text += ", " + std::to_string(after->start - address) + " before one";
  return text;
}

// The address of `bytes` bytes in an array.
inline u8* global(Warp& w, u64 address, u64 bytes, bool writes, bool atomic = false) {
  check_aligned(address, bytes);
  auto& regions = *w.block->regions;
  auto after = std::upper_bound(regions.begin(), regions.end(), address,
                                [](u64 a, const Region& region) { return a < region.start; });
  if (after == regions.begin() || address + bytes > after[-1].start + after[-1].size)
    throw Error("an access of " + std::to_string(bytes) + outside(regions, after, address));
  Region& region = after[-1];
  u64 begin = address - region.start;
  u8* place = reinterpret_cast<u8*>(address);
  for (u64 cell = begin / region.item; cell <= (begin + bytes - 1) / region.item; ++cell)
    touch(w, region.cells[cell], writes, atomic);
  for (u64 i = 0; region.known && i < bytes; ++i) {
    if (!writes && !region.known[begin + i] && place[i] == 0xff)
      throw Error("a read of a new array where nothing was written");
    region.known[begin + i] |= writes;
  }
  return place;
}

inline u8* shared(Warp& w, u64 address, u64 bytes, bool writes, u64 alignment) {
  check_aligned(address, alignment);
  Block& block = *w.block;
  bool inside = false;
  for (auto& [_, ends] : block.module->shared) inside |= address >= ends.first && address + bytes <= ends.second;
  if (!inside) throw Error("an access to shared memory outside of every variable");
  for (u64 cell = address / 4; cell <= (address + bytes - 1) / 4; ++cell) {
    if (!writes && !block.cells[cell].written) throw Error("a read of shared memory where nothing was written");
    touch(w, block.cells[cell], writes, false);
  }
  return &block.shared[address];
}

inline u8* parameter(Warp& w, u64 address, u64 bytes) {
  check_aligned(address, bytes);
  if (address + bytes > w.block->parameters.size()) throw Error("a read outside of the parameters");
  return &w.block->parameters[address];
}

inline u8* local(Warp& w, u64 address, u64 bytes) {
  check_aligned(address, bytes);
  u64 size = w.block->module->local_end;
  if (address + bytes > size) throw Error("an access outside of a thread's own memory");
  return &w.block->local[(w.first + w.lane) * size + address];
}

// ---- loads, stores, and copies to shared memory ----

inline u8* place(Warp& w, const Instruction& in, u64 address, bool writes) {
  u64 bytes = in.size * in.count;
  return in.space == GLOBAL   ? global(w, address, bytes, writes)
         : in.space == SHARED ? shared(w, address, bytes, writes, bytes)
         : in.space == LOCAL  ? local(w, address, bytes)
                              : parameter(w, address, bytes);
}

inline void load(Warp& w, const Instruction& in, u32 lanes) {
  FOR_LANES(w, lanes) {
    const u8* from = place(w, in, w.slot(in.operands[in.count])[w.lane] + in.offset, false);
    for (int i = 0; i < in.count; ++i) {
      u64 value = 0;
      std::memcpy(&value, from + i * in.size, in.size);
      if (int unused = 64 - 8 * in.size; in.is_signed) value = s64(value << unused) >> unused;
      w.slot(in.operands[i])[w.lane] = value;
    }
  }
}

inline void store(Warp& w, const Instruction& in, u32 lanes) {
  FOR_LANES(w, lanes) {
    u8* to = place(w, in, w.slot(in.operands[0])[w.lane] + in.offset, true);
    for (int i = 0; i < in.count; ++i) std::memcpy(to + i * in.size, &w.slot(in.operands[1 + i])[w.lane], in.size);
  }
}

// A copy is performed when it is awaited, as late as allowed; before that, its target must not be accessed.
inline void copy(Warp& w, const Instruction& in, u32 lanes) {
  FOR_LANES(w, lanes) {
    u64 to = w.slot(in.operands[0])[w.lane] + in.offset, from = w.slot(in.operands[1])[w.lane];
    u32 size = w.slot(in.operands[3])[w.lane], thread = w.first + w.lane;
    if (u32(w.slot(in.operands[2])[w.lane]) != 16 || size > 16) throw Error("a copy of another size");
    check_aligned(from, 16);
    shared(w, to, 16, true, 16);
    if (size) global(w, from, size, false);
    for (u64 cell = to / 4; cell < to / 4 + 4; ++cell) w.block->cells[cell].under_way = true;
    w.block->copies[thread].push_back({u32(to), from, size, w.block->groups[thread]});
  }
}

inline void end_group(Warp& w, const Instruction&, u32 lanes) {
  FOR_LANES(w, lanes) ++w.block->groups[w.first + w.lane];
}

inline void land(Warp& w, const Copy& copy) {
  for (u64 cell = copy.to / 4; cell < copy.to / 4 + 4; ++cell) w.block->cells[cell].under_way = false;
  u8* to = shared(w, copy.to, 16, true, 16);
  std::memset(to, 0, 16);
  std::memcpy(to, reinterpret_cast<const u8*>(copy.from), copy.size);
}

inline void await_groups(Warp& w, const Instruction& in, u32 lanes) {
  FOR_LANES(w, lanes) {
    u32 thread = w.first + w.lane;
    auto& copies = w.block->copies[thread];
    int left = w.block->groups[thread] - int(w.slot(in.operands[0])[w.lane]);
    auto kept = std::stable_partition(copies.begin(), copies.end(), [&](const Copy& c) { return c.group < left; });
    for (auto c = copies.begin(); c != kept; ++c) land(w, *c);
    copies.erase(copies.begin(), kept);
  }
}
