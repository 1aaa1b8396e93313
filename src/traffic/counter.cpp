#include <atomic>

#include "cpu/common/traffic_counter.h"
#include "traffic/traffic.h"

namespace tilewise {
namespace {

std::atomic<int64_t> total_read{0}, total_written{0};

}  // namespace

void add_to_counted_traffic(int64_t bytes_read, int64_t bytes_written) {
  total_read.fetch_add(bytes_read, std::memory_order_relaxed);
  total_written.fetch_add(bytes_written, std::memory_order_relaxed);
}

bool counts_traffic() { return kCountTraffic; }

Traffic counted_traffic() { return {0, total_read.load(), total_written.load()}; }

void reset_counted_traffic() { total_read = 0, total_written = 0; }

}  // namespace tilewise
