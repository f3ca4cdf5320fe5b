// A driver of GPUs that are not there: libcuda.so.1 with what crates/tensor/src/cuda/driver.rs asks for, whose kernels run on the processor. See emulate.py.
//
// Work is done when it is asked for, in the order of the calls. Memory is counted as on a card, has guards around it and begins with what is no number.
//
//   FRESCO_EMULATED_GPUS      how many there are (1)
//   FRESCO_EMULATED_MEMORY    MiB of each (8192)
//   FRESCO_EMULATED_OTHERS    MiB of each that other programs have (0), or the path of a file with the number, which may change
//   FRESCO_EMULATED_IDLE      kernels do nothing if this is 1, memory begins with zeros, and large copies to it are left out: what large networks ask for,
//                             without the hours and without the memory
//   FRESCO_EMULATED_LINK      MiB that are copied to a card in a second (as many as main memory copies)
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "device.h"

#ifndef __x86_64__
#error "fibers are switched with instructions of x86-64"
#endif

using emulated::Entry;
using emulated::Slot;
using emulated::Thread;
typedef void* Handle;
#define API extern "C" __attribute__((visibility("default")))

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 101, NO_CONTEXT = 201, NO_IMAGE = 209, NOT_FOUND = 500 };

static long setting(const char* name, long usual) {
  const char* text = getenv(name);
  return text && *text ? atol(text) : usual;
}
static bool is_idle() {
  static const bool idle = setting("FRESCO_EMULATED_IDLE", 0) != 0;
  return idle;
}

// ---- fibers ------------------------------------------------------------------------------------------------------------

extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.type emulated_switch,@function
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulated_switch,.-emulated_switch
)");

namespace {

constexpr int MOST_THREADS = 1024;
constexpr size_t STACK = 128 << 10;
constexpr size_t SHARED = 256 << 10;

struct Copy { void* to; const void* from; int bytes; };

enum State { READY, AT_WARP, AT_BLOCK, ENDED };

struct Fiber {
  Thread thread;
  void* stack;
  State state;
  std::vector<Copy> copies;
  std::vector<size_t> groups;          // copies before each commit that was not waited for
};

struct Warp {
  Slot slots[2][32];
  int here, alive;
};

// What runs blocks on one thread of the system.
struct Runner {
  void* own;
  unsigned char* stacks;
  unsigned char* shared;
  std::vector<Fiber> fibers{MOST_THREADS};
  std::vector<Warp> warps{MOST_THREADS / 32};
  Fiber* running = nullptr;
  const Entry* entry;
  void** given;
  int count, alive, at_block;

  Runner() {
    stacks = (unsigned char*)mmap(nullptr, STACK * MOST_THREADS + SHARED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) { perror("emulated GPU: stacks"); abort(); }
    shared = stacks + STACK * MOST_THREADS;
  }
  ~Runner() { munmap(stacks, STACK * MOST_THREADS + SHARED); }

  void block(const Entry* kernel, void** parameters, uint3 where, uint3 threads, uint3 blocks, size_t shared_bytes);
  void leave(State state) {
    Fiber* me = running;
    me->state = state;
    emulated_switch(&me->stack, own);
  }
  // Goes on with another thread of the warp, if one can.
  void leave_to_warp() {
    Fiber* me = running;
    me->state = AT_WARP;
    int at = (int)me->thread.thread.x, first = at / 32 * 32, last = std::min(first + 32, count);
    for (int i = at + 1; i < last; i++) if (fibers[i].state == READY) return go(me, fibers[i]);
    for (int i = first; i < at; i++) if (fibers[i].state == READY) return go(me, fibers[i]);
    emulated_switch(&me->stack, own);
  }
  void go(Fiber* from, Fiber& to) {
    running = &to;
    emulated_switch(&from->stack, to.stack);
  }
};

__attribute__((tls_model("initial-exec"))) thread_local Runner* runner = nullptr;

[[noreturn]] void fail(const std::string& why) {
  fprintf(stderr, "emulated GPU: %s\n", why.c_str());
  abort();
}

void begin() {
  Runner* r = runner;
  r->entry->call(r->given);
  Fiber* me = r->running;
  Warp& warp = r->warps[me->thread.thread.x / 32];
  warp.alive--;
  r->alive--;
  r->leave(ENDED);
}

void Runner::block(const Entry* kernel, void** parameters, uint3 where, uint3 threads, uint3 blocks, size_t shared_bytes) {
  entry = kernel;
  given = parameters;
  count = alive = (int)(threads.x * threads.y * threads.z);
  at_block = 0;
  if (count > MOST_THREADS || threads.y != 1 || threads.z != 1) fail("blocks have at most 1,024 threads in one row");
  if (shared_bytes > SHARED) fail("too much shared memory");
  memset(shared, 0xff, shared_bytes);
  for (int w = 0; w * 32 < count; w++) {
    warps[w].here = 0;
    warps[w].alive = std::min(32, count - 32 * w);
  }
  for (int i = 0; i < count; i++) {
    Fiber& f = fibers[i];
    f.thread = {{(unsigned)i, 0, 0}, where, threads, blocks, warps[i / 32].slots[0], warps[i / 32].slots[1], i % 32};
    f.state = READY;
    f.copies.clear();
    f.groups.clear();
    // Six registers, and where to begin; the stack is aligned as after a call.
    void** top = (void**)(stacks + STACK * (i + 1)) - 2;
    *top = (void*)&begin;
    f.stack = top - 6;
    memset(f.stack, 0, 48);
  }
  while (alive > 0) {
    bool moved = false;
    for (int i = 0; i < count; i++) {
      Fiber& f = fibers[i];
      if (f.state != READY) continue;
      moved = true;
      running = &f;
      emulated_switch(&own, f.stack);
      if (alive > 0 && at_block == alive) {
        at_block = 0;
        for (int k = 0; k < count; k++) if (fibers[k].state == AT_BLOCK) fibers[k].state = READY;
      }
    }
    if (!moved && alive > 0) fail("threads of a block wait for each other in different places");
  }
}

}  // namespace

API Thread* emulated_thread() { return &runner->running->thread; }
API unsigned char* emulated_shared() { return runner->shared; }
API void emulated_fail(const char* why) { fail(why); }
API void emulated_meet_block() {
  runner->at_block++;
  runner->leave(AT_BLOCK);
}
API bool emulated_meet_warp() {
  Runner* r = runner;
  Fiber* me = r->running;
  Warp& warp = r->warps[me->thread.thread.x / 32];
  if (++warp.here < warp.alive) {
    r->leave_to_warp();
    return false;
  }
  return true;
}
API void emulated_met() {
  Runner* r = runner;
  int first = (int)(r->running->thread.thread.x / 32 * 32);
  Warp& warp = r->warps[first / 32];
  warp.here = 0;
  for (int i = first; i < std::min(first + 32, r->count); i++) {
    Fiber& f = r->fibers[i];
    if (f.state == AT_WARP) f.state = READY;
  }
}
API void emulated_copy(void* to, const void* from, int bytes) { runner->running->copies.push_back({to, from, bytes}); }
API void emulated_commit() { runner->running->groups.push_back(runner->running->copies.size()); }
API void emulated_wait(int newest) {
  Fiber& f = *runner->running;
  int ready = (int)f.groups.size() - newest;
  if (ready <= 0) return;
  size_t upto = f.groups[ready - 1];
  for (size_t i = 0; i < upto; i++) {
    const Copy& c = f.copies[i];
    if (c.bytes) memcpy(c.to, c.from, c.bytes);
    memset((unsigned char*)c.to + c.bytes, 0, 16 - c.bytes);
  }
  f.copies.erase(f.copies.begin(), f.copies.begin() + upto);
  f.groups.erase(f.groups.begin(), f.groups.begin() + ready);
  for (size_t& g : f.groups) g -= upto;
}

// ---- kernels -----------------------------------------------------------------------------------------------------------

namespace {

struct Function { const Entry* entry; };

struct Start {
  const Entry* entry;
  uint3 blocks, threads;
  size_t shared;
  bool at_once;
  std::vector<std::vector<unsigned char>> parameters;

  void take(void** given) {
    parameters.clear();
    for (int i = 0; i < entry->count; i++) {
      unsigned char* from = (unsigned char*)given[i];
      parameters.emplace_back(from, from + entry->sizes[i]);
    }
  }
};

// Threads that run blocks, one kernel at a time.
class Pool {
  std::mutex one;
  std::mutex lock;
  std::condition_variable changed;
  std::vector<std::thread> threads;
  const Start* start = nullptr;
  void** given = nullptr;
  uint64_t number = 0;
  size_t next = 0, all = 0, busy = 0;

  void work() {
    Runner mine;
    runner = &mine;
    uint64_t seen = 0;
    std::unique_lock<std::mutex> guard(lock);
    for (;;) {
      changed.wait(guard, [&] { return number != seen && next < all; });
      seen = number;
      busy++;
      while (next < all) {
        // Some at a time: blocks may be small.
        size_t from = next, to = std::min(all, from + std::max<size_t>(1, (all - from) / (4 * threads.size())));
        next = to;
        const Start& s = *start;
        void** parameters = given;
        guard.unlock();
        for (size_t i = from; i < to; i++) run(mine, s, parameters, i);
        guard.lock();
      }
      busy--;
      changed.notify_all();
    }
  }
  static void run(Runner& r, const Start& s, void** parameters, size_t i) {
    uint3 where = {(unsigned)(i % s.blocks.x), (unsigned)(i / s.blocks.x % s.blocks.y), (unsigned)(i / s.blocks.x / s.blocks.y)};
    r.block(s.entry, parameters, where, s.threads, s.blocks, s.shared);
  }

 public:
  void launch(const Start& s) {
    if (is_idle()) return;
    std::lock_guard<std::mutex> only(one);
    std::vector<void*> list;
    for (const auto& p : s.parameters) list.push_back((void*)p.data());
    size_t count = (size_t)s.blocks.x * s.blocks.y * s.blocks.z;
    if (s.at_once) {
      // Blocks wait for each other: each needs a thread of its own.
      std::vector<std::thread> own;
      for (size_t i = 0; i < count; i++)
        own.emplace_back([&, i] {
          Runner mine;
          runner = &mine;
          run(mine, s, list.data(), i);
        });
      for (auto& t : own) t.join();
      return;
    }
    std::unique_lock<std::mutex> guard(lock);
    if (threads.empty())
      for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); i++) threads.emplace_back(&Pool::work, this);
    start = &s;
    given = list.data();
    next = 0;
    all = count;
    number++;
    changed.notify_all();
    changed.wait(guard, [&] { return next >= all && busy == 0; });
  }
};
Pool* pool = new Pool;   // never ended: its threads wait when the process does

// ---- devices, memory -----------------------------------------------------------------------------------------------------

constexpr size_t GUARD = 256;
constexpr unsigned char MARK = 0xa5;

// What other programs have of a card.
size_t others() {
  const char* text = getenv("FRESCO_EMULATED_OTHERS");
  long mib = setting("FRESCO_EMULATED_OTHERS", 0);
  if (text && *text == '/') std::ifstream(text) >> mib;
  return (size_t)mib << 20;
}

struct Device {
  int number;
  size_t total;
  size_t used = 0, reserved = 0;
  std::map<uint64_t, size_t> pieces;
  size_t free() const { size_t taken = others() + reserved; return total > taken ? total - taken : 0; }
};
std::mutex books;
std::vector<std::unique_ptr<Device>> devices;
thread_local Device* current = nullptr;

struct Stream { Device* device; };
struct Event { std::chrono::steady_clock::time_point time; };
struct Node { Start start; };
struct Graph { std::vector<Node*> nodes; };
struct Exec { std::vector<std::unique_ptr<Node>> nodes; std::map<Node*, Node*> of; };

Device* device_of(int number) { return number >= 0 && number < (int)devices.size() ? devices[number].get() : nullptr; }
Device* owner(uint64_t address) {
  for (auto& d : devices) {
    auto next = d->pieces.upper_bound(address);
    if (next == d->pieces.begin()) continue;
    --next;
    if (address < next->first + next->second) return d.get();
  }
  return nullptr;
}
// Whether memory of a device is there, all of it in one piece.
bool inside(uint64_t address, size_t bytes) {
  Device* d = owner(address);
  if (!d) return bytes == 0;
  auto piece = --d->pieces.upper_bound(address);
  return address + bytes <= piece->first + piece->second;
}

std::map<uint64_t, std::string> images;
std::string folder;

uint64_t hash_of(const unsigned char* from, size_t bytes) {
  uint64_t h = 1469598103934665603ull;
  for (size_t i = 0; i < bytes; i++) h = (h ^ from[i]) * 1099511628211ull;
  return h;
}
template <class T> T at(const unsigned char* image, size_t place) { T v; memcpy(&v, image + place, sizeof v); return v; }
// As in emulate.py: a text to its end, machine code to the end of its tables.
size_t length_of(const unsigned char* image) {
  if (memcmp(image, "\x7f" "ELF", 4)) return strlen((const char*)image);
  uint64_t segments = at<uint64_t>(image, 32) + (uint64_t)at<uint16_t>(image, 54) * at<uint16_t>(image, 56);
  uint64_t sections = at<uint64_t>(image, 40) + (uint64_t)at<uint16_t>(image, 58) * at<uint16_t>(image, 60);
  return std::max(segments, sections);
}

}  // namespace

API int cuInit(unsigned) {
  std::lock_guard<std::mutex> guard(books);
  if (!devices.empty()) return OK;
  Dl_info info;
  dladdr((void*)&cuInit, &info);
  folder = info.dli_fname;
  folder = folder.substr(0, folder.rfind('/'));
  std::ifstream list(folder + "/modules.txt");
  std::string hash, file;
  while (list >> hash >> file) images[strtoull(hash.c_str(), nullptr, 16)] = file;
  for (int i = 0; i < setting("FRESCO_EMULATED_GPUS", 1); i++) {
    auto d = std::make_unique<Device>();
    d->number = i;
    d->total = (size_t)setting("FRESCO_EMULATED_MEMORY", 8192) << 20;
    devices.push_back(std::move(d));
  }
  return devices.empty() ? 100 : OK;
}
API int cuDriverGetVersion(int* to) { *to = 12090; return OK; }
API int cuDeviceGetCount(int* to) { *to = (int)devices.size(); return OK; }
API int cuDeviceGet(int* to, int number) { *to = number; return device_of(number) ? OK : NO_DEVICE; }
API int cuDeviceGetName(char* to, int room, int number) { snprintf(to, room, "Emulated GPU %d", number); return OK; }
API int cuDeviceGetAttribute(int* to, int attribute, int) {
  switch (attribute) {
    case 16: *to = 16; break;                       // multiprocessors
    case 75: *to = CAPABILITY / 10; break;
    case 76: *to = CAPABILITY % 10; break;
    case 97: *to = CAPABILITY < 80 ? 64 << 10 : CAPABILITY == 80 ? 163 << 10 : 99 << 10; break;
    case 115: *to = 1; break;                       // pools of memory
    default: *to = 0;
  }
  return OK;
}
API int cuDeviceTotalMem_v2(size_t* to, int number) { *to = device_of(number)->total; return OK; }
API int cuDevicePrimaryCtxRetain(Handle* to, int number) { *to = device_of(number); return OK; }
API int cuCtxSetCurrent(Handle context) { current = (Device*)context; return OK; }
API int cuMemGetInfo_v2(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> guard(books);
  if (!current) return INVALID;
  *free = current->free();
  *total = current->total;
  return OK;
}
API int cuStreamCreate(Handle* to, unsigned) { *to = new Stream{current}; return OK; }
API int cuStreamSynchronize(Handle) { return OK; }
API int cuStreamWaitEvent(Handle, Handle, unsigned) { return OK; }
API int cuEventCreate(Handle* to, unsigned) { *to = new Event{}; return OK; }
API int cuEventRecord(Handle event, Handle) { ((Event*)event)->time = std::chrono::steady_clock::now(); return OK; }
API int cuEventSynchronize(Handle) { return OK; }
API int cuEventElapsedTime(float* to, Handle a, Handle b) {
  *to = std::chrono::duration<float, std::milli>(((Event*)b)->time - ((Event*)a)->time).count();
  return OK;
}
API int cuEventDestroy_v2(Handle event) { delete (Event*)event; return OK; }

API int cuModuleLoadData(Handle* to, const void* image) {
  auto bytes = (const unsigned char*)image;
  auto found = images.find(hash_of(bytes, length_of(bytes)));
  if (found == images.end()) return NO_IMAGE;
  std::string path = folder + "/" + found->second;
  *to = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!*to) fprintf(stderr, "emulated GPU: %s\n", dlerror());
  return *to ? OK : NO_IMAGE;
}
API int cuModuleGetFunction(Handle* to, Handle module, const char* name) {
  std::string symbol = std::string("emulated_kernel_") + name;
  auto entry = (const Entry*)dlsym(module, symbol.c_str());
  if (!entry) return NOT_FOUND;
  *to = new Function{entry};
  return OK;
}
API int cuFuncSetAttribute(Handle, int, int) { return OK; }

static Start start_of(Handle function, uint3 blocks, uint3 threads, size_t shared, void** given) {
  Start s{((Function*)function)->entry, blocks, threads, shared, false, {}};
  s.take(given);
  return s;
}
API int cuLaunchKernel(Handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Handle, void** given, void**) {
  if (!gx || !gy || !gz || !bx || gy > 65535 || gz > 65535 || bx > 1024) return INVALID;
  pool->launch(start_of(f, {gx, gy, gz}, {bx, by, bz}, shared, given));
  return OK;
}
API int cuLaunchCooperativeKernel(Handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Handle, void** given) {
  Start s = start_of(f, {gx, gy, gz}, {bx, by, bz}, shared, given);
  s.at_once = true;
  pool->launch(s);
  return OK;
}

API int cuDeviceGetDefaultMemPool(Handle* to, int number) { *to = device_of(number); return OK; }
API int cuMemPoolSetAttribute(Handle, int, void*) { return OK; }
API int cuMemPoolGetAttribute(Handle pool, int attribute, void* to) {
  std::lock_guard<std::mutex> guard(books);
  auto d = (Device*)pool;
  *(uint64_t*)to = attribute == 5 ? d->reserved : d->used;
  return OK;
}
API int cuMemPoolTrimTo(Handle pool, size_t keep) {
  std::lock_guard<std::mutex> guard(books);
  auto d = (Device*)pool;
  d->reserved = std::max(d->used, std::min(d->reserved, keep));
  return OK;
}
// Memory of a card between its guards. Where kernels do nothing, large pieces are pages that nobody touches.
static size_t whole(size_t bytes) { return (bytes + GUARD - 1) / GUARD * GUARD + 2 * GUARD; }
static bool is_untouched(size_t bytes) { return is_idle() && bytes >= (1 << 20); }
static unsigned char* taken(size_t bytes) {
  if (is_untouched(bytes)) {
    void* pages = mmap(nullptr, whole(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? nullptr : (unsigned char*)pages;
  }
  auto memory = (unsigned char*)aligned_alloc(GUARD, whole(bytes));
  if (memory) memset(memory + GUARD, is_idle() ? 0 : 0xff, bytes);
  return memory;
}
API int cuMemAllocAsync(uint64_t* to, size_t bytes, Handle stream) {
  std::lock_guard<std::mutex> guard(books);
  Device* d = ((Stream*)stream)->device;
  size_t counted = (bytes + 511) / 512 * 512, kept = d->reserved - d->used;
  size_t more = counted > kept ? counted - kept : 0;
  if (!bytes) return INVALID;
  if (more > d->free()) return OUT_OF_MEMORY;
  auto memory = taken(bytes);
  if (!memory) return OUT_OF_MEMORY;
  memset(memory, MARK, GUARD);
  memset(memory + GUARD + bytes, MARK, GUARD);
  d->used += counted;
  d->reserved += more;
  *to = (uint64_t)(memory + GUARD);
  d->pieces[*to] = bytes;
  return OK;
}
API int cuMemFreeAsync(uint64_t address, Handle) {
  std::lock_guard<std::mutex> guard(books);
  Device* d = owner(address);
  auto piece = d ? d->pieces.find(address) : std::map<uint64_t, size_t>::iterator();
  if (!d || piece == d->pieces.end()) { fprintf(stderr, "emulated GPU: memory was freed that was not taken\n"); abort(); }
  auto memory = (unsigned char*)address;
  for (size_t i = 0; i < GUARD; i++)
    if (memory[i - GUARD] != MARK || memory[piece->second + i] != MARK) {
      fprintf(stderr, "emulated GPU: something was written beside a piece of %zu bytes\n", piece->second);
      abort();
    }
  size_t piece_bytes = piece->second;
  d->used -= (piece_bytes + 511) / 512 * 512;
  d->pieces.erase(piece);
  if (is_untouched(piece_bytes)) munmap(memory - GUARD, whole(piece_bytes)); else free(memory - GUARD);
  return OK;
}
API int cuMemHostAlloc(void** to, size_t bytes, unsigned) { *to = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096); return *to ? OK : OUT_OF_MEMORY; }
API int cuMemFreeHost(void* address) { free(address); return OK; }
API int cuMemHostRegister_v2(void*, size_t, unsigned) { return current ? OK : NO_CONTEXT; }
API int cuMemHostUnregister(void*) { return OK; }
// A copy to a card, which takes the time of its link.
static void carry(void* to, const void* from, size_t bytes) {
  static const long link = setting("FRESCO_EMULATED_LINK", 0);
  if (link > 0) std::this_thread::sleep_for(std::chrono::duration<double>((double)bytes / ((double)link * (1 << 20))));
  if (!is_idle() || bytes < (1 << 20)) memcpy(to, from, bytes);
}
static int copied(void* to, const void* from, size_t bytes, uint64_t device) {
  {
    std::lock_guard<std::mutex> guard(books);
    if (!inside(device, bytes)) return INVALID;
  }
  if ((uint64_t)to == device) carry(to, from, bytes); else memcpy(to, from, bytes);
  return OK;
}
API int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Handle) { return copied((void*)to, from, bytes, to); }
API int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Handle) { return copied(to, (const void*)from, bytes, from); }
API int cuMemcpyPeerAsync(uint64_t to, Handle to_context, uint64_t from, Handle from_context, size_t bytes, Handle) {
  {
    std::lock_guard<std::mutex> guard(books);
    if (bytes && (owner(to) != to_context || owner(from) != from_context || !inside(from, bytes))) return INVALID;
  }
  return copied((void*)to, (const void*)from, bytes, to);
}
API int cuGetErrorName(int code, const char** to) {
  *to = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == NO_IMAGE ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : code == INVALID ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR";
  return OK;
}
API int cuGetErrorString(int, const char** to) { *to = "an emulated GPU"; return OK; }

API int cuGraphCreate(Handle* to, unsigned) { *to = new Graph; return OK; }
struct KernelNode {
  Handle function;
  unsigned grid[3], block[3], shared;
  void** parameters;
  void** extra;
  Handle kernel, context;
};
static Start start_of(const KernelNode& n) {
  return start_of(n.function, {n.grid[0], n.grid[1], n.grid[2]}, {n.block[0], n.block[1], n.block[2]}, n.shared, n.parameters);
}
API int cuGraphAddKernelNode_v2(Handle* to, Handle graph, const Handle*, size_t, const KernelNode* node) {
  auto made = new Node{start_of(*node)};
  ((Graph*)graph)->nodes.push_back(made);
  *to = made;
  return OK;
}
API int cuGraphKernelNodeSetAttribute(Handle node, int attribute, const void* value) {
  if (attribute == 2) ((Node*)node)->start.at_once = *(const int*)value != 0;
  return OK;
}
API int cuGraphInstantiateWithFlags(Handle* to, Handle graph, uint64_t) {
  auto exec = new Exec;
  for (Node* node : ((Graph*)graph)->nodes) {
    exec->nodes.push_back(std::make_unique<Node>(*node));
    exec->of[node] = exec->nodes.back().get();
  }
  *to = exec;
  return OK;
}
API int cuGraphLaunch(Handle exec, Handle) {
  for (auto& node : ((Exec*)exec)->nodes) pool->launch(node->start);
  return OK;
}
API int cuGraphExecKernelNodeSetParams_v2(Handle exec, Handle node, const KernelNode* given) {
  auto found = ((Exec*)exec)->of.find((Node*)node);
  if (found == ((Exec*)exec)->of.end()) return INVALID;
  bool at_once = found->second->start.at_once;
  found->second->start = start_of(*given);
  found->second->start.at_once = at_once;
  return OK;
}
API int cuGraphExecDestroy(Handle exec) { delete (Exec*)exec; return OK; }
API int cuGraphDestroy(Handle graph) {
  for (Node* node : ((Graph*)graph)->nodes) delete node;
  delete (Graph*)graph;
  return OK;
}
