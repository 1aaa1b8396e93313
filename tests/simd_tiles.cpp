// Products, panels, limits, and the order of units.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "simd_fixture.h"

namespace tilewise::cpu {
namespace {

class SimdTiles : public SimdTest {};

TEST_P(SimdTiles, Product) {
  const int rows = ops.tile_rows, cols = ops.tile_cols;
  for (int64_t count : {4, 8, 60, 512})
    for (bool transposed : {false, true})
      for (bool repeated_init : {false, true}) {
        const int64_t a_row = transposed ? 1 : count + 3, a_step = transposed ? rows + 2 : 1;
        const int64_t b_row = cols + 5, c_row = cols + 1, init_row = repeated_init ? 0 : cols + 2;
        const auto a = whole_numbers((rows + count) * (count + rows + 3)), b = whole_numbers(count * b_row);
        const auto init = whole_numbers(rows * (cols + 2));
        std::vector<float> c(rows * c_row, NAN);
        ops.product(c.data(), c_row, init.data(), init_row, a.data(), a_row, a_step, b.data(), b_row, count);
        for (int r = 0; r < rows; ++r) {
          for (int j = 0; j < cols; ++j) {
            float want = init[r * init_row + j];
            for (int64_t k = 0; k < count; ++k) want += a[r * a_row + k * a_step] * b[k * b_row + j];
            EXPECT_EQ(c[r * c_row + j], want) << count << ' ' << r << ' ' << j;
          }
          EXPECT_TRUE(std::isnan(c[r * c_row + cols]));
        }
      }
}

// All bits, in the second vector zeros.
TEST_P(SimdTiles, NarrowProductIsTheProductOfOneVector) {
  const int rows = ops.tile_rows, cols = ops.tile_cols, lanes = ops.lanes;
  if (!ops.narrow_product) GTEST_SKIP() << "its tiles are not two vectors wide";
  for (int64_t count : {4, 60, 512}) {
    const auto a = numbers(rows * count);
    auto b = numbers(count * cols), init = numbers(rows * cols);
    for (auto* x : {&b, &init})
      for (int64_t i = 0; i < std::ssize(*x); ++i)
        if (i % cols >= lanes) (*x)[i] = 0;
    std::vector<float> want(rows * cols, NAN), c = want;
    ops.product(want.data(), cols, init.data(), cols, a.data(), count, 1, b.data(), cols, count);
    ops.narrow_product(c.data(), cols, init.data(), cols, a.data(), count, 1, b.data(), cols, count);
    EXPECT_EQ(std::memcmp(c.data(), want.data(), c.size() * sizeof(float)), 0) << count;
  }
}

TEST_P(SimdTiles, StripProduct) {
  const int rows = ops.strip_rows, cols = ops.strip_cols;
  for (int64_t count : {4, 8, 60, 512}) {
    const int64_t a_row = count + 3, b_row = cols + 5, c_row = cols + 1;
    const auto a = whole_numbers(rows * a_row), b = whole_numbers(count * b_row);
    auto c = whole_numbers(rows * c_row);
    const auto before = c;
    ops.strip_product(c.data(), c_row, a.data(), a_row, b.data(), b_row, count);
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < c_row; ++j) {
        float want = before[r * c_row + j];
        for (int64_t k = 0; j < cols && k < count; ++k) want += a[r * a_row + k] * b[k * b_row + j];
        EXPECT_EQ(c[r * c_row + j], want) << count << ' ' << r << ' ' << j;
      }
  }
}

TEST_P(SimdTiles, PanelsThereAndBack) {
  const int64_t dims = 3 * ops.lanes, row = dims + 5;
  const auto rows = numbers(ops.tile_cols * row), factor = numbers(ops.tile_cols);
  std::vector<float> panel(dims * ops.tile_cols), back(ops.tile_cols * row, NAN);
  ops.rows_to_panel(rows.data(), row, dims, panel.data());
  ops.panel_to_rows(panel.data(), factor.data(), dims, back.data(), row);
  for (int i = 0; i < ops.tile_cols; ++i)
    for (int64_t d = 0; d < row; ++d) {
      if (d < dims) {
        EXPECT_EQ(panel[d * ops.tile_cols + i], rows[i * row + d]);
        EXPECT_EQ(back[i * row + d], rows[i * row + d] * factor[i]);
      } else {
        EXPECT_TRUE(std::isnan(back[i * row + d]));
      }
    }
}

TEST_P(SimdTiles, LimitsOfAPanel) {
  const int64_t first_key = int64_t{1} << 40, keys = 192;
  std::vector<KeyRange> rows(ops.tile_cols);
  for (auto& row : rows) {
    row.lo = first_key - 100 + static_cast<int64_t>(random() % 300);
    row.hi = row.lo + static_cast<int64_t>(random() % 200);
  }
  rows[0] = {}, rows[1] = {0, INT64_MAX}, rows[2] = {first_key, first_key + 1};
  std::vector<float> mask(ops.tile_cols);
  for (int64_t key = 0; key < keys; ++key) {
    ops.live(rows.data(), first_key, keys, key, mask.data());
    for (int i = 0; i < ops.tile_cols; ++i) {
      const bool live = rows[i].lo <= first_key + key && first_key + key < rows[i].hi;
      EXPECT_EQ(bits_of(mask[i]), live ? ~0u : 0u) << key << ' ' << i;
    }
  }
}

TEST_P(SimdTiles, LongestFirst) {
  std::vector<int64_t> cost(1000), order(1000);
  for (auto& c : cost) c = static_cast<int64_t>(random() % 100000);
  cost[17] = 0, cost[18] = int64_t{1} << 50;
  ops.order_longest_first(cost.data(), cost.size(), order.data());
  EXPECT_EQ(order[0], 18);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(sorted[i], i);
  cost[18] = 0;
  ops.order_longest_first(cost.data(), cost.size(), order.data());
  for (int64_t i = 1; i < 1000; ++i) EXPECT_GE(cost[order[i - 1]], cost[order[i]] - 100000 / 63 - 1);
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdTiles, testing::ValuesIn(code_of_this_build()), isa_name);

}  // namespace
}  // namespace tilewise::cpu
