#include "launch.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

#include "primitives.h"

namespace emu {

const Runtime& runtime() {
  static const Runtime table = {
      kAbiVersion, access, hook, smem_offset, atomic_u32, atomic_add_f32, load_acquire, store_release, threadfence,
      barrier_sync, barrier_arrive, syncwarp, warp_op, cp_async, cp_async_commit, cp_async_wait, ldmatrix, mma,
      multiply_shared,
      mbar_init, mbar_arrive, mbar_wait, fence_mbar_init, fence_proxy_async, tma_load, tma_store, tma_commit, tma_wait,
      wgmma, wgmma_fence, wgmma_commit, wgmma_wait, setmaxnreg, grid_wait, grid_launch_dependents};
  return table;
}

const KernelEntry* Twin::kernel(const std::string& name) const {
  return static_cast<const KernelEntry*>(dlsym(handle, ("llmc_kernel_" + name).c_str()));
}

Twin* load_twin(const std::string& path, std::string* why) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) { *why = dlerror(); return nullptr; }
  auto* rt = static_cast<const Runtime**>(dlsym(handle, "llmc_emu_rt"));
  auto* abi = static_cast<const u32*>(dlsym(handle, "llmc_emu_abi"));
  if (!rt || !abi || *abi != kAbiVersion) {
    *why = path + text(": not a twin of emulator ABI %u", kAbiVersion);
    dlclose(handle);
    return nullptr;
  }
  *rt = &runtime();
  install_fault_handler();
  return new Twin{handle, path, dlsym(handle, "llmc_emu_checked") != nullptr};
}

namespace {

// Worker threads live as long as the process: each keeps its fiber stacks.
class Pool {
 public:
  static Pool& instance() { static Pool* pool = new Pool; return *pool; }
  void run(u32 workers, const std::function<void()>& job) {
    std::lock_guard one_at_a_time(entry_);
    const u32 extra = workers - 1;
    {
      std::lock_guard lock(mutex_);
      while (threads_ < extra) std::thread(&Pool::loop, this, threads_++).detach();
      job_ = &job;
      wanted_ = running_ = extra;
      generation_++;
    }
    start_.notify_all();
    job();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return running_ == 0; });
    job_ = nullptr;
  }

 private:
  void loop(u32 index) {
    u64 seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      start_.wait(lock, [&] { return generation_ != seen && job_; });
      seen = generation_;
      if (index >= wanted_) continue;
      const auto* job = job_;
      lock.unlock();
      (*job)();
      lock.lock();
      if (--running_ == 0) done_.notify_all();
    }
  }
  std::mutex entry_, mutex_;
  std::condition_variable start_, done_;
  const std::function<void()>* job_ = nullptr;
  u32 threads_ = 0, wanted_ = 0, running_ = 0;
  u64 generation_ = 0;
};

}  // namespace

Failure run_grid(const LaunchInfo& launch) {
  const u64 total = u64{launch.grid.x} * launch.grid.y * launch.grid.z;
  const Mode mode = launch.schedule.mode;
  std::vector<u32> order(total);
  std::iota(order.begin(), order.end(), 0u);
  if (mode == Mode::reverse) std::reverse(order.begin(), order.end());
  if (mode == Mode::random) {
    u64 state = launch.schedule.seed * 0x9E3779B97F4A7C15ull + 12345;
    for (size_t i = total; i > 1; i--) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      std::swap(order[i - 1], order[(state >> 33) % i]);
    }
  }
  std::atomic<u64> next{0};
  std::atomic<bool> stop{false}, waited{false};
  std::mutex mutex;
  Failure failure;
  auto work = [&] {
    Block& block = worker_block();
    for (u64 i; !stop && (i = next++) < total;) {
      const u32 k = order[i];
      run_block(block, launch, {k % launch.grid.x, k / launch.grid.x % launch.grid.y, k / (launch.grid.x * launch.grid.y)});
      if (block.waited_for_grid) waited = true;
      if (block.failure.fault == Fault::none) continue;
      std::lock_guard lock(mutex);
      if (!stop.exchange(true)) failure = block.failure;
    }
  };
  const u32 cores = launch.schedule.workers ? launch.schedule.workers : std::max(1u, std::thread::hardware_concurrency());
  const u32 workers = launch.checked ? 1 : u32(std::min<u64>(cores, total));
  if (workers <= 1) work();
  else Pool::instance().run(workers, work);
  if (failure.fault == Fault::none && launch.op && launch.op->primary && !waited)
    failure = {Fault::misuse, std::string(launch.kernel->name) + ": launched with programmatic stream serialization, "
                              "but no thread executed grid_wait"};
  return failure;
}

}  // namespace emu
